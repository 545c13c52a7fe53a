"""Plans of what happens to a job beside its claim, on 200,000 jobs: what is read is bounded by the batch.

The bounds, for batches of `n` jobs. A probe of the claim index or the primary key descends three levels: with the page
of the table four buffers, five where the entry is the first of a page. What is written is counted by PostgreSQL too:

- finish: the row through the primary key, its deletion, the new row and its index entries in the archive.
- requeue, hold, park and heartbeat: the row through the primary key, the new version and its index entries.
- heads and depth: one probe for each of 16 x 10 lanes; depth then reads entries, and rows, up to its cap twice.
- enqueue: the row, its index entries, and the check of the queue's row.
"""

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.queue import validation
from tests.plans.conftest import JOBS, KEYS, LIMITED, RUNNING
from tests.plans.explaining import BY_ID, LANES, SIZES, SLACK, Explainer, changes_by_id, due, running
from tests.support import Work
from tests.support.few import few


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", SIZES)
def test_finish(explain: Explainer, backlog: SqlQueue, count: int, queue: str) -> None:
    count = min(count, KEYS) if queue == "keyed" else count
    plan = explain(
        "complete",
        ids=running(backlog, count, queue),
        lease_nos=[1] * count,
        states=["succeeded"] * count,
        results=[None] * count,
        errors=[None] * count,
        in_line=queue == "keyed",
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_succeed(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("complete_plain", ids=running(backlog, count), lease_no=1, in_line=False)
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_requeue(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain(
        "requeue",
        ids=running(backlog, count),
        lease_nos=[1] * count,
        delays=[1.0] * count,
        moments=[None] * count,
        errors=["x"] * count,
        spent=[True] * count,
        in_line=False,
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_hold(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain(
        "hold_running", ids=running(backlog, count), lease_nos=[1] * count, reasons=["x"] * count, in_line=False
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", few([1, 500, 100], 2))
def test_lock_leased(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("lock_leased", ids=running(backlog, count), lease_nos=[1] * count)
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} == {"job_pkey"}
    assert plan.rows_read <= 2 * count
    assert plan.buffers <= 8 * count + SLACK


@pytest.mark.parametrize("count", SIZES)
def test_heartbeat(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("heartbeat", ids=running(backlog, count), lease_nos=[1] * count, lease_seconds=60.0)
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_a_stale_write_reads_no_more(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("heartbeat", ids=running(backlog, count), lease_nos=[7] * count, lease_seconds=60.0)
    assert plan.root["Actual Rows"] == 0
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count


def test_settings(explain: Explainer) -> None:
    plan = explain("queues", name="work")
    assert {index for _, index in plan.scans()} - {None} <= {"job_claim", "bucket_pkey"}
    assert plan.rows_read == 0
    assert plan.buffers <= SLACK


def test_settings_step_over_no_dead_rows(explain: Explainer) -> None:
    explain.run("DELETE FROM {s}.job WHERE queue = 'other'")
    plan = explain("queues", name="other")
    assert sum(node.get("Heap Fetches", 0) for node in plan.nodes) == 0
    assert plan.buffers <= SLACK


def test_heads(explain: Explainer) -> None:
    plan = explain("heads", queue="work")
    assert plan.root["Actual Rows"] == LANES
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert not any("Bitmap" in kind for kind, _ in plan.scans())
    # The last bucket of all is looked up once, or for each bucket.
    assert plan.rows_read <= LANES + 16
    assert plan.buffers <= 5 * (LANES + 16) + SLACK


@pytest.mark.parametrize("cap", [100, 10_000])
def test_depth(explain: Explainer, cap: int) -> None:
    plan = explain("depth", queue="work", cap=cap, others=cap)
    assert {index for _, index in plan.scans()} - {None} == {"job_claim"}
    # Where the cap is more than a lane holds, the lane may be read in the order of the pages.
    whole_lanes = cap > JOBS / LANES
    assert not any(kind == "Seq Scan" or ("Bitmap" in kind and not whole_lanes) for kind, _ in plan.scans())
    assert plan.rows_read <= 4 * (cap + 1)
    assert plan.buffers <= 5 * cap + 4 * 4 * LANES + SLACK


def test_peek(explain: Explainer) -> None:
    plan = explain("peek", queue="work", limit=20)
    assert plan.root["Actual Rows"] == 20
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 16 * (20 + 1) + 1
    assert plan.buffers <= 16 * 20 + 8 * 17 + SLACK


@pytest.mark.parametrize("queue", ["work", "keyed", "limited"])
def test_explaining_a_job(explain: Explainer, backlog: SqlQueue, queue: str) -> None:
    cap = 100
    (job,) = due(backlog, 1, queue)
    plan = explain("explain", id=job, cap=cap)
    assert plan.root["Actual Rows"] == 1
    assert not any(kind == "Seq Scan" and index is None for kind, index in plan.scans() if kind != "Function Scan")
    assert plan.rows_read <= 10 * (cap + 1) + LIMITED + 2 * cap
    assert plan.buffers <= 10 * (cap + 5) + 2 * LIMITED + SLACK


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize(
    ("name", "key", "region"),
    [("enqueue", None, None), ("enqueue_keyed", "big", None), ("enqueue_in_region", "big", "local")],
)
def test_enqueue_one(explain: Explainer, queue: str, name: str, key: str | None, region: str | None) -> None:
    job = NewJob(Work(n=1), unique_key="u", ordering_key=key, tags=["a"], region=region)
    plan = explain(name, queue=queue, **validation.values(QueueSpec(queue, Work), job))
    assert plan.root["Actual Rows"] == 1
    assert plan.scans() == set()
    assert plan.buffers <= SLACK


def test_enqueue_plain(explain: Explainer) -> None:
    columns = validation.values(QueueSpec("work", Work), Work(n=1))
    plan = explain("enqueue_plain", queue="work", **{name: columns[name] for name in ("id", "hash", "payload")})
    assert plan.root["Actual Rows"] == 1
    assert plan.scans() == set()
    assert plan.buffers <= SLACK


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", [10, 2_000])
def test_enqueue_many(explain: Explainer, count: int, queue: str) -> None:
    jobs = [NewJob(Work(n=n), unique_key=f"u{n}", ordering_key="big", tags=["a"]) for n in range(count)]
    arrays = validation.as_columns([validation.values(QueueSpec(queue, Work), job) for job in jobs])
    plan = explain("enqueue_many", queue=queue, kept=True, **arrays)
    assert plan.root["Actual Rows"] == count
    assert plan.scans() == set()
    assert plan.buffers <= 25 * count + SLACK


def test_ending_the_leases_of_a_worker_reads_leases_and_no_backlog(explain: Explainer) -> None:
    explain.run("UPDATE {s}.job SET claimed_by = 'dead' WHERE queue = 'work' AND state = 'running' AND bucket = 3")
    plan = explain("end_leases", queue="work", worker="dead", within_seconds=3_600.0)
    assert plan.root["Actual Rows"] == RUNNING // 16
    assert {index for _, index in plan.scans()} <= {"job_claim", "job_pkey", None}
    assert not [node for node in plan.nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "job"]
    assert plan.rows_read <= RUNNING + RUNNING // 16 + LANES
    assert plan.buffers <= 6 * LANES + 5 * RUNNING + 25 * (RUNNING // 16) + SLACK
