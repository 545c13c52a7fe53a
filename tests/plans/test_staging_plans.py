"""Plans of what Spark's writes do, beside 100,000 jobs that other attempts have staged and 100,000 writes that were done:
an attempt, a name and a write are found by their keys.
"""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE, sized
from tests.plans.explaining import SLACK, Explainer
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows
from tests.support.cleared import own_schema

ROWS = sized(40_000, 100_000)
ATTEMPTS = 4
FIXED = 1_000
"""Pages that the function's own plans look at, which are made when it is first called."""

JOBS = """
    INSERT INTO {s}.staged_job (attempt, row_no, id, named, hash, priority, unique_until_claim, tags, payload)
    SELECT {attempt}, n, gen_random_uuid(), true, n, 0, false, ARRAY[]::text[], jsonb_build_object('n', n)
    FROM generate_series(0, %s) AS n
"""


@pytest.fixture(scope="module")
def busy(url: str) -> Iterator[SqlQueue]:
    """Attempts of a hundred jobs, each of another write, and as many live jobs."""
    with own_schema(url, "staging_plans", connect_timeout=round(PATIENCE)) as queue:
        queue.create_queue(QueueSpec("work", Work))
        rows(
            queue,
            "INSERT INTO {s}.staged_attempt (attempt, write_id)"
            " SELECT CAST(md5(CAST(n AS text)) AS uuid), gen_random_uuid() FROM generate_series(1, %s) AS n",
            ROWS // 100,
        )
        rows(queue, JOBS.replace("{attempt}", "CAST(md5(CAST(1 + n / 100 AS text)) AS uuid)"), ROWS - 1)
        rows(
            queue,
            "INSERT INTO {s}.spark_write (queue, name, batch, jobs, duplicates)"
            " SELECT 'work', 'write ' || n, 0, 1, 0 FROM generate_series(1, %s) AS n",
            ROWS,
        )
        rows(
            queue,
            "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, queue_kept, wakes,"
            " payload) SELECT gen_random_uuid(), 'work', n %% 16, 0, now(), now(), 3, n > 1, n = 1, '{{}}'"
            " FROM generate_series(1, %s) AS n",
            ROWS,
        )
        without_autovacuum(queue)
        rows(queue, "VACUUM ANALYZE {s}.staged_attempt, {s}.staged_job, {s}.spark_write, {s}.job")
        yield queue


@pytest.fixture
def explained(busy: SqlQueue) -> SqlQueue:
    return busy


def read_whole(explain: Explainer) -> int:
    """Rows that were read otherwise than by an index, in this transaction, in whatever function."""
    ((count,),) = explain.run(
        "SELECT sum(seq_tup_read) FROM pg_stat_xact_all_tables WHERE schemaname = %s AND relname ~ '^(job|staged|spark)'",
        explain.schema,
    )
    return int(count)


def write(explain: Explainer, count: int) -> tuple[UUID, list[UUID]]:
    """A write that four attempts have staged so many jobs of, together."""
    write_id, attempts = uuid4(), [uuid4() for _ in range(ATTEMPTS)]
    for attempt in attempts:
        assert explain("stage_attempt", attempt=attempt, write_id=write_id).buffers <= SLACK
        explain.run(JOBS.replace("{attempt}", "CAST(%s AS uuid)"), attempt, count // ATTEMPTS - 1)
    return write_id, attempts


@pytest.mark.parametrize("count", [ATTEMPTS, 400, 4_000])
def test_committing_a_write(explain: Explainer, count: int) -> None:
    write_id, attempts = write(explain, count)
    before = read_whole(explain)
    plan = explain(
        "write_commit",
        write_id=write_id,
        queue="work",
        name="mine",
        batch=0,
        accepted=attempts,
        expected=count,
    )
    assert read_whole(explain) <= before + 10
    assert plan.buffers <= 60 * count + FIXED + SLACK
    assert explain.run("SELECT count(*) FROM {s}.job WHERE created_at = now()") == [(count,)]


def test_a_write_that_was_done_before(explain: Explainer) -> None:
    write_id, attempts = write(explain, 400)
    before = read_whole(explain)
    plan = explain(
        "write_commit",
        write_id=write_id,
        queue="work",
        name="write 7",
        batch=0,
        accepted=attempts,
        expected=400,
    )
    assert read_whole(explain) <= before + 10
    assert plan.buffers <= 10 * 400 + FIXED + SLACK
    assert explain.run("SELECT count(*) FROM {s}.job WHERE created_at = now()") == [(0,)]


def test_giving_a_write_up(explain: Explainer) -> None:
    write_id, _ = write(explain, 400)
    before = read_whole(explain)
    assert explain("write_drop", write_id=write_id).buffers <= 10 * 400 + FIXED + SLACK
    assert read_whole(explain) <= before + 10
    assert explain.run("SELECT count(*) FROM {s}.staged_attempt WHERE write_id = %s", write_id) == [(0,)]


def test_what_is_known_of_a_write(explain: Explainer) -> None:
    plan = explain("write_known", queue="work", name="write 7")
    assert plan.root["Actual Rows"] == 1
    assert plan.rows_of("spark_write") == 1
    assert plan.buffers <= SLACK
