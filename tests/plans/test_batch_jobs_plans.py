"""What a task that works on the jobs of a batch asks for: one bucket of the batch, whatever else the table holds."""

from uuid import uuid4

from tests.plans.conftest import JOBS
from tests.plans.explaining import Explainer


def test_the_next_jobs_of_a_bucket_are_found_in_the_batch(explain: Explainer) -> None:
    batch = uuid4()
    explain.run(
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
        " VALUES (%s, 'k', 'work', 'sealed', now() + interval '1 minute', 'w')",
        batch,
    )
    explain.run(
        "UPDATE {s}.job SET batch_id = %s, state = 'running' WHERE queue = 'work' AND bucket < 4 AND state = 'queued'"
        " AND available_at <= now()",
        batch,
    )
    explain.run(
        "INSERT INTO {s}.batch_outcome (batch_id, job_id, state, spent)"
        " SELECT batch_id, id, 'succeeded', true FROM {s}.job WHERE batch_id = %s ORDER BY id LIMIT %s",
        batch,
        JOBS // 10,
    )
    explain.run("ANALYZE {s}.job")
    explain.run("ANALYZE {s}.batch_outcome")
    ((reported,),) = explain.run(
        "SELECT count(*) FROM {s}.batch_outcome AS o JOIN {s}.job AS j ON j.id = o.job_id WHERE j.bucket = 3"
    )
    ((last,),) = explain.run(
        "SELECT id FROM {s}.job WHERE batch_id = %s AND bucket = 3 ORDER BY id OFFSET %s LIMIT 1", batch, reported
    )
    assert reported > 1_000
    for after, passed in ((None, reported), (last, 0)):
        plan = explain("batch_jobs", batch_id=batch, token=1, bucket=3, after=after, limit=100)
        assert ("Index Scan", "job_batch") in plan.scans(), plan.scans()
        # What was reported of the bucket before is passed over once, when it is begun.
        assert plan.rows_read <= 3 * (100 + passed) + 10
