"""Plans of the statements about batches: what reads a bucket goes by job_claim, what ends a batch by job_batch, and nothing
reads through the table.
"""

import json
from datetime import UTC, datetime
from uuid import UUID, uuid4

from tests.plans.conftest import JOBS
from tests.plans.explaining import PLAN_MODES as PLAN_MODES
from tests.plans.explaining import SLACK, Explainer, due

IN_BUCKET = JOBS / 16 / 2, JOBS / 16
"""How many due jobs a bucket has, at least and at most."""
OTHER = 5_000
"""Live jobs of the queue `other`."""


def opened(explain: Explainer, state: str = "sealing") -> UUID:
    batch = uuid4()
    explain.run(
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
        " VALUES (%s, 'k', 'work', %s, now() + interval '1 minute', 'w')",
        batch,
        state,
    )
    return batch


def leased(explain: Explainer, count: int) -> UUID:
    """A sealed batch of so many jobs."""
    batch = opened(explain, "sealed")
    explain.run(
        "UPDATE {s}.job SET state = 'running', available_at = 'infinity', attempt = 1, batch_id = %s WHERE id IN"
        " (SELECT id FROM {s}.job WHERE queue = 'work' AND state = 'queued' LIMIT %s)",
        batch,
        count,
    )
    return batch


def test_seal(explain: Explainer) -> None:
    batch = opened(explain)
    matching = json.dumps({"note": "x" * 100})
    asked = {"batch_id": batch, "token": 1, "queue": "work", "worker": "w", "lease_seconds": 60.0}
    plan = explain("batch_seal", buckets=list(range(4)), filter=matching, **asked)
    ((sealed,),) = explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch)
    assert 4 * IN_BUCKET[0] < sealed < 4 * IN_BUCKET[1]
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert "job_claim" in {index for _, index in plan.scans()}
    # Each job once, by no other index.
    assert plan.rows_read <= 4 * JOBS / 16 * 1.1
    assert plan.buffers <= 25 * sealed + SLACK


def test_seal_of_what_nobody_has_locked(explain: Explainer) -> None:
    batch = opened(explain)
    matching = json.dumps({"note": "x" * 100})
    plan = explain(
        "batch_seal_free",
        batch_id=batch,
        token=1,
        queue="work",
        bucket=3,
        filter=matching,
        worker="w",
        lease_seconds=60.0,
    )
    ((sealed,),) = explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch)
    assert IN_BUCKET[0] < sealed < IN_BUCKET[1]
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert "job_claim" in {index for _, index in plan.scans()}
    # One bucket, the later jobs in it stepped over in the index, and each sealed job once more through the primary key.
    assert plan.rows_read <= 2 * JOBS / 16 * 1.1
    assert plan.buffers <= 25 * sealed + SLACK


def test_seal_of_days(explain: Explainer) -> None:
    """Of twenty days two have jobs: all of them are looked for at once."""
    explain.run(
        "UPDATE {s}.job SET payload = payload || jsonb_build_object('day', '2013-01-0' || bucket, 'account', 'a')"
        " WHERE queue = 'work' AND bucket IN (2, 3)"
    )
    made = [uuid4() for _ in range(20)]
    days = [f"2013-01-{n:02}" for n in range(1, 21)]
    explain.run(
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
        " SELECT id, CAST(id AS text), 'work', 'sealing', now() + interval '1 minute', 'w' FROM unnest(%s) AS made (id)",
        made,
    )
    asked = {"ids": made, "tokens": [1] * 20, "days": days, "queue": "work", "worker": "w", "lease_seconds": 60.0}
    events = {"events": "other", "day_path": ["day"], "account_path": ["account"]}
    events |= {"zoned": False, "day_zone": None, "zone_path": None}
    plan = explain("batch_seal_days", buckets=[2, 3], **asked, **events)
    found = explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = ANY (%s) GROUP BY batch_id", made)
    sealed = sum(count for (count,) in found)
    assert len(found) == 2
    assert 2 * IN_BUCKET[0] < sealed < 2 * IN_BUCKET[1]
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert "job_claim" in {index for _, index in plan.scans()}
    # Two buckets, each sealed job once more through the primary key, and the live jobs of the other queue.
    assert plan.rows_read <= 2 * 2 * JOBS / 16 * 1.1 + OTHER
    assert plan.buffers <= 30 * sealed + 3 * OTHER + SLACK


def test_move(explain: Explainer) -> None:
    plan = explain(
        "batch_move", batch_id=uuid4(), queue="work", buckets=[3], sealed_at=datetime.now(UTC), filter="{}", worker="w"
    )
    ((moved,),) = explain.run("SELECT count(*) FROM {s}.job_archive WHERE queue = 'work'")
    assert IN_BUCKET[0] < moved < IN_BUCKET[1]
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert "job_claim" in {index for _, index in plan.scans()}
    assert plan.rows_read <= JOBS / 16 * 1.1
    assert plan.buffers <= 25 * moved + SLACK


def test_move_of_several_buckets(explain: Explainer) -> None:
    """In the order of the pages, each once for all of them."""
    more = {"queue": "work", "sealed_at": datetime.now(UTC), "filter": "{}", "worker": "w"}
    plan = explain("batch_move", batch_id=uuid4(), buckets=list(range(4)), **more)
    ((moved,),) = explain.run("SELECT count(*) FROM {s}.job_archive WHERE queue = 'work'")
    assert 4 * IN_BUCKET[0] < moved < 4 * IN_BUCKET[1]
    assert {kind for kind, _ in plan.scans()} <= {"Bitmap Heap Scan", "Bitmap", "Index Scan", "CTE Scan"}
    assert "job_claim" in {index for _, index in plan.scans()}
    assert plan.rows_read <= 4 * JOBS / 16 * 1.1
    assert plan.buffers <= 25 * moved + SLACK


def test_succeed(explain: Explainer) -> None:
    batch = leased(explain, 2_000)
    plan = explain("batch_succeed", batch_id=batch)
    assert "job_batch" in {index for _, index in plan.scans()}
    assert plan.rows_read <= 2_000
    assert plan.buffers <= 25 * 2_000 + SLACK


def test_succeed_as_the_function_does(explain: Explainer) -> None:
    """Page by page, not entry by entry."""
    batch = leased(explain, 2_000)
    settings = (
        "SELECT proconfig FROM pg_proc WHERE pronamespace = CAST(%s AS regnamespace) AND proname = 'succeed_batch'"
    )
    for setting in explain.run(settings, f'"{explain.schema}"')[0][0]:
        explain.run("SELECT set_config(split_part(%s, '=', 1), split_part(%s, '=', 2), true)", setting, setting)
    plan = explain("batch_succeed", batch_id=batch)
    assert ("Bitmap", "job_batch") in plan.scans()
    assert {kind for kind, _ in plan.scans()} == {"Bitmap", "Bitmap Heap Scan"}
    assert plan.rows_read <= 2_000
    assert plan.buffers <= 25 * 2_000 + SLACK


def test_report(explain: Explainer) -> None:
    batch = leased(explain, 2_000)
    ids = [row[0] for row in explain.run("SELECT id FROM {s}.job WHERE batch_id = %s LIMIT 100", batch)]
    plan = explain(
        "batch_report",
        batch_id=batch,
        token=1,
        ids=ids,
        states=["succeeded"] * 100,
        spent=[True] * 100,
        afters=[None] * 100,
        moments=[None] * 100,
        results=[None] * 100,
        errors=[None] * 100,
    )
    assert plan.root["Actual Rows"] == 101
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert plan.rows_read <= 2_000


def test_members(explain: Explainer, backlog: object) -> None:
    ids = due(backlog, 100)  # type: ignore[arg-type]
    plan = explain("batch_members", ids=ids, queue="work", sealed_at=datetime.now(UTC), filter="{}")
    assert plan.root["Actual Rows"] == 100
    assert {index for _, index in plan.scans() if index} == {"job_pkey"}
    assert plan.rows_read <= 100


def test_one_heartbeat_touches_no_job(explain: Explainer) -> None:
    plan = explain("batch_extend", batch_id=leased(explain, 2_000), token=1, lease_seconds=60.0)
    assert plan.root["Actual Rows"] == 1
    assert plan.scans() == set()


def test_a_lock_touches_no_job(explain: Explainer) -> None:
    plan = explain("batch_lock", batch_id=leased(explain, 2_000), token=1)
    assert plan.root["Actual Rows"] == 1
    assert plan.scans() == set()
