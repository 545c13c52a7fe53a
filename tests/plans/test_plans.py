"""Query plans, run on 200,000 jobs: the index is used, and what is read is bounded by the batch, never by the backlog.

The bounds, for batches of `n` jobs. A probe of the claim index or the primary key descends three levels: with the page
of the table four buffers, five where the entry is the first of a page. What is written is counted by PostgreSQL too:

- claim: for each job the entry and the row in the search, once more for the lock, the row through the primary key, then
  the new version in the table and in each of its indexes: at most 25 buffers a job, and 160 empty lanes at 4 buffers.
- picks that merge buckets look at `n` entries in each of the 16, at the row of each of those, and lock `n`.
- finish: the row through the primary key, its deletion, the new row and its index entries in the archive.
- requeue, hold, park and heartbeat: the row through the primary key, the new version and its index entries.
- turns of keys: a probe for the first job, and for the leases, of each key.
- heads and depth: one probe for each of 16 x 10 lanes; depth then reads entries, and rows, up to its cap twice.
- enqueue: the row, its index entries, and the check of the queue's row.
- batch_seal reads one bucket through the index and, as it has no limit, every due job in it.
"""

import json
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue, columns
from tests.core.support import Work, rows
from tests.plans.conftest import JOBS, KEYS, LIMITED
from tests.plans.explaining import BY_ID, LANES, Explainer, Plan, changes_by_id, due, running
from tests.plans.explaining import PLAN_MODES as PLAN_MODES


@pytest.fixture(scope="session")
def revision(backlog: SqlQueue) -> int:
    return backlog.settings("work").revision


BY_CLAIM = {("Index Scan", "job_claim"), ("Index Only Scan", "job_claim")}

EVERYWHERE = list(range(16))
FROM_THE_BEGINNING: list[str] = []


def hints(at: str) -> list[str]:
    """The parameter of a claim of 16 buckets that begins everywhere at one moment."""
    return ["{" + ",".join([at] * 10) + "}"] * 16


class Choice(NamedTuple):
    """A statement that chooses jobs: its parameters beside those that all of them have, and its bounds."""

    name: str
    more: dict[str, Any]
    rows: int
    """How many rows it looks at, for each job of its limit."""
    buffers: int
    """How many pages it touches, for each job of its limit."""


LEASE = {"lease_seconds": 60.0, "worker": "w"}
CHOICES = [
    Choice("claim_round_robin", LEASE, 2, 25),
    Choice("pick_round_robin", {}, 1, 3),
    Choice("pick_fanout", {}, 1, 3),
    Choice("pick_fifo", {}, 2 * 16, 35),
    Choice("list_executable", {}, 2 * 16, 30),
    Choice("mark_token", {**LEASE, "token": uuid4()}, 2, 25),
]


@pytest.mark.parametrize("limit", [1, 100, 2_000])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
@pytest.mark.parametrize("hinted", [False, True], ids=["swept", "hinted"])
def test_choosing(explain: Explainer, revision: int, choice: Choice, limit: int, hinted: bool) -> None:
    begin = hints("2000-01-01") if hinted else FROM_THE_BEGINNING
    plan = explain(
        choice.name,
        queue="work",
        revision=revision,
        buckets=EVERYWHERE,
        hints=begin,
        limit=limit,
        look=limit,
        **choice.more,
    )
    assert plan.scans() <= BY_CLAIM | BY_ID
    assert plan.rows_read <= choice.rows * limit + 16
    assert plan.buffers <= choice.buffers * limit + 7 * 16
    if choice.name == "mark_token":
        marked = explain.run("SELECT count(*) FROM {s}.job WHERE claim_token = %s", choice.more["token"])
        assert marked == [(limit,)]
    else:
        assert plan.root["Actual Rows"] == limit


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
@pytest.mark.parametrize("where", ["other buckets", "hinted past it", "another revision"])
def test_choosing_where_nothing_is_due(explain: Explainer, revision: int, choice: Choice, where: str) -> None:
    plan = explain(
        choice.name,
        queue="work",
        revision=revision + (where == "another revision"),
        buckets=list(range(16, 32)) if where == "other buckets" else EVERYWHERE,
        hints=hints("2999-01-01") if where == "hinted past it" else FROM_THE_BEGINNING,
        limit=100,
        look=100,
        **choice.more,
    )
    assert plan.scans() <= BY_CLAIM | BY_ID
    assert plan.rows_read == 0
    assert plan.buffers <= (5 if where == "another revision" else 5 * LANES)


def test_choosing_steps_over_what_is_running_and_later(explain: Explainer, backlog: SqlQueue, revision: int) -> None:
    """Leases and later jobs lie past the end of what is due: a claim does not see them."""
    explain.run("UPDATE {s}.job SET available_at = now() + interval '1 hour' WHERE queue = 'work' AND bucket = 3")
    plan = explain("claim_round_robin", **claiming(revision, 100), buckets=[3], hints=FROM_THE_BEGINNING)
    assert plan.rows_read == 0


def claiming(revision: int, limit: int) -> dict[str, Any]:
    return {"queue": "work", "revision": revision, "limit": limit, **LEASE}


@pytest.mark.parametrize("limit", [10_000])
def test_the_largest_claim(explain: Explainer, revision: int, limit: int) -> None:
    plan = explain("claim_round_robin", **claiming(revision, limit), buckets=EVERYWHERE, hints=FROM_THE_BEGINNING)
    assert plan.scans() <= BY_CLAIM | BY_ID
    assert plan.rows_read <= 2 * limit
    assert plan.buffers <= 25 * limit + 4 * LANES


SIZES = [1, 100, 1_000]


@pytest.mark.parametrize("count", SIZES)
def test_pick_ids(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("pick_ids", ids=due(backlog, count), limit=count)
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 6 * count + 10


@pytest.mark.parametrize("count", SIZES)
def test_grant(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("grant", ids=due(backlog, count), limited=True, **LEASE)
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_grant_assign(explain: Explainer, backlog: SqlQueue, revision: int, count: int) -> None:
    plan = explain(
        "grant_assign",
        queue="work",
        revision=revision,
        ids=due(backlog, count),
        lease_nos=[0] * count,
        limited=False,
        **LEASE,
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_marked_by_token(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    token = uuid4()
    explain.run("UPDATE {s}.job SET claim_token = %s WHERE id = ANY (%s)", token, running(backlog, count))
    plan = explain("marked_by_token", token=token)
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} == {"job_claim_token"}
    assert plan.rows_read <= count
    assert plan.buffers <= 3 * count + 10


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", SIZES)
def test_finish(explain: Explainer, backlog: SqlQueue, count: int, queue: str) -> None:
    count = min(count, KEYS) if queue == "keyed" else count
    plan = explain(
        "finish",
        ids=running(backlog, count, queue),
        lease_nos=[1] * count,
        states=["succeeded"] * count,
        results=[None] * count,
        errors=[None] * count,
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_succeed(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("succeed", ids=running(backlog, count), lease_no=1)
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
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_hold(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("hold", ids=running(backlog, count), lease_nos=[1] * count, reasons=["x"] * count)
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", [1, 100, 500])
def test_lock_leased(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("lock_leased", ids=running(backlog, count), lease_nos=[1] * count)
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} == {"job_pkey"}
    assert plan.rows_read <= 2 * count
    assert plan.buffers <= 8 * count + 10


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


@pytest.mark.parametrize("scan", [100, 10_000])
@pytest.mark.parametrize("tag", ["t7", "nobody has it"])
def test_a_filter_looks_at_no_more_than_its_bound(explain: Explainer, revision: int, scan: int, tag: str) -> None:
    plan = explain("scan_fitting", **scanning(revision, scan, tag))
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= scan
    assert plan.buffers <= 2 * scan + 4 * LANES


def test_a_filter_goes_on_where_it_ended(explain: Explainer, backlog: SqlQueue, revision: int) -> None:
    ((bucket, priority, at, job),) = explain.run(
        "SELECT bucket, priority, available_at, id FROM {s}.job"
        " WHERE queue = 'work' AND bucket = 9 AND priority = 5 AND available_at < now()"
        " ORDER BY available_at, id OFFSET 200 LIMIT 1"
    )
    after = {"after_bucket": bucket, "after_priority": priority, "after_at": at, "after_id": job}
    plan = explain("scan_fitting", **{**scanning(revision, 1_000, "nobody has it"), **after})
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 1_000
    assert plan.buffers <= 2 * 1_000 + 4 * LANES


def scanning(revision: int, scan: int, tag: str) -> dict[str, Any]:
    return {
        "queue": "work",
        "revision": revision,
        "buckets": EVERYWHERE,
        "tags": [tag],
        "payload": "{}",
        "scan": scan,
        "limit": 10,
        "after_bucket": None,
        "after_priority": None,
        "after_at": None,
        "after_id": None,
    }


def test_limit_allowance(explain: Explainer, backlog: SqlQueue) -> None:
    settings = backlog.settings("limited")
    plan = explain("limit_allowance", queue="limited", revision=settings.revision, limit=100)
    assert plan.root["Actual Rows"] == 1
    assert {index for _, index in plan.scans()} - {None} <= {"job_limited", "rate_start_window"}
    assert plan.rows_read <= LIMITED
    assert plan.buffers <= LIMITED + 20


@pytest.mark.parametrize("limit", [1, 100])
def test_claim_limited(explain: Explainer, backlog: SqlQueue, limit: int) -> None:
    plan = explain(
        "claim_limited",
        queue="limited",
        revision=backlog.settings("limited").revision,
        buckets=EVERYWHERE,
        hints=FROM_THE_BEGINNING,
        limit=limit,
        **LEASE,
    )
    assert plan.root["Actual Rows"] == limit
    assert {index for _, index in plan.scans()} - {None} <= {
        "job_limited",
        "job_claim",
        "job_pkey",
        "rate_start_window",
    }
    assert plan.rows_read <= LIMITED + 3 * limit + 16
    assert plan.buffers <= 2 * LIMITED + 60 * limit + 200


def test_limit_reserve(explain: Explainer, backlog: SqlQueue) -> None:
    revision = backlog.settings("limited").revision
    plan = explain("limit_reserve", queue="limited", revision=revision, limit=1, reservation=uuid4())
    assert plan.root["Actual Rows"] == 1
    assert {index for _, index in plan.scans()} - {None} <= {
        "job_limited",
        "rate_start_window",
        "limit_reservation_queue",
        "limit_reservation_pkey",
    }
    assert plan.rows_read <= LIMITED
    assert plan.buffers <= LIMITED + 40


@pytest.mark.parametrize("limit", [1, 100])
def test_claim_reserved(explain: Explainer, backlog: SqlQueue, limit: int) -> None:
    reservation = uuid4()
    explain.run(
        "INSERT INTO {s}.limit_reservation SELECT CASE n WHEN 1 THEN CAST(%s AS uuid) ELSE gen_random_uuid() END,"
        " 'limited', 1000, now() + interval '1 hour' FROM generate_series(1, 1000) AS n",
        reservation,
    )
    explain.run("ANALYZE {s}.limit_reservation")
    plan = explain(
        "claim_reserved",
        queue="limited",
        revision=backlog.settings("limited").revision,
        buckets=EVERYWHERE,
        hints=FROM_THE_BEGINNING,
        limit=limit,
        reservation=reservation,
        **LEASE,
    )
    assert plan.root["Actual Rows"] == limit
    assert {index for _, index in plan.scans()} - {None} <= {
        "job_claim",
        "job_pkey",
        "rate_start_window",
        "limit_reservation_pkey",
    }
    assert plan.rows_read <= 3 * limit + 20
    assert plan.buffers <= 60 * limit + 200


@pytest.mark.parametrize("count", [1, 100, 500])
@pytest.mark.parametrize("keys", ["many", "one"])
def test_turns_of_keys(explain: Explainer, backlog: SqlQueue, count: int, keys: str) -> None:
    """One key with 45,000 jobs that wait costs no more than 500 keys with 90 each."""
    plan = explain("key_turns", queue="keyed", ids=picked(backlog, count, keys))
    assert {index for _, index in plan.scans()} - {None} == {"job_pkey", "job_key", "job_key_running"}
    assert plan.rows_read <= 3 * count
    assert plan.buffers <= 16 * count + 10


def test_turns_of_a_key_with_many_leases(explain: Explainer, backlog: SqlQueue) -> None:
    """The leases of a key are counted once, not for every job of it that was picked."""
    jobs = picked(backlog, 500, "one")
    explain.run("UPDATE {s}.queue SET ordered = false, max_running_per_key = 800 WHERE name = 'keyed'")
    explain.run(
        "UPDATE {s}.job SET state = 'running', available_at = now() + interval '1 hour' WHERE id IN ("
        "SELECT id FROM {s}.job WHERE queue = 'keyed' AND ordering_key = 'big' AND available_at = 'infinity' LIMIT 600)"
    )
    plan = explain("key_turns", queue="keyed", ids=jobs)
    assert plan.root["Actual Rows"] == 800 - 601
    assert plan.rows_read <= 500 + 601 + 1
    assert plan.buffers <= 16 * 500


@pytest.mark.parametrize("count", [1, 100, 500])
def test_park(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("park", queue="keyed", ids=due(backlog, count, "keyed"))
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} <= {"job_key", "job_key_running", "job_pkey"}
    assert plan.rows_read <= 3 * count
    assert plan.buffers <= 40 * count + 150


@pytest.mark.parametrize("count", [1, 100, 500])
def test_promote_in_an_ordered_queue(explain: Explainer, count: int) -> None:
    """Of the 500 keys, and of the one with 50,000 jobs among them, the first comes back; nobody looks at the others."""
    explain.run(
        "UPDATE {s}.job SET state = 'queued', available_at = 'infinity' WHERE queue = 'keyed' AND state = 'running'"
    )
    plan = explain("key_promote", queue="keyed", keys=["big", *(f"key {n}" for n in range(count - 1))])
    promotes(plan, count)


@pytest.mark.parametrize("count", [1, 100, 500])
def test_promote_under_a_limit_for_each_key(explain: Explainer, count: int) -> None:
    explain.run("UPDATE {s}.queue SET ordered = false, max_running_per_key = 800 WHERE name = 'keyed'")
    plan = explain("key_promote", queue="keyed", keys=["big"] * count)
    promotes(plan, count)


def promotes(plan: Plan, count: int) -> None:
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} <= {"job_parked", "job_key", "job_key_running", "job_pkey"}
    assert plan.rows_read <= 4 * count
    # Beside them the dead entries that other tests of this file leave at the head of a key until somebody vacuums.
    assert plan.buffers <= 40 * count + 2_000


def test_promote_of_keys_without_jobs(explain: Explainer) -> None:
    plan = explain("key_promote", queue="keyed", keys=[f"gone {n}" for n in range(100)])
    assert plan.rows_read == 0
    assert plan.buffers <= 5 * 100 + 10


def picked(queue: SqlQueue, count: int, keys: str) -> list[UUID]:
    query = (
        "SELECT id FROM {s}.job WHERE queue = 'keyed' AND state = 'queued' AND available_at <= now()"
        f" AND ordering_key {'=' if keys == 'one' else '<>'} 'big' ORDER BY md5(id::text) LIMIT %s"
    )
    return [row[0] for row in rows(queue, query, count)]


def test_settings(explain: Explainer) -> None:
    plan = explain("queues", name="work")
    assert {index for _, index in plan.scans()} - {None} <= {"job_claim", "bucket_pkey"}
    assert plan.rows_read == 0
    assert plan.buffers <= 15


def test_settings_step_over_no_dead_rows(explain: Explainer) -> None:
    explain.run("DELETE FROM {s}.job WHERE queue = 'other'")
    plan = explain("queues", name="other")
    assert sum(node.get("Heap Fetches", 0) for node in plan.nodes) == 0
    assert plan.buffers <= 15


def test_heads(explain: Explainer) -> None:
    plan = explain("heads", queue="work")
    assert plan.root["Actual Rows"] == LANES
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert not any("Bitmap" in kind for kind, _ in plan.scans())
    assert plan.rows_read <= LANES + 1
    assert plan.buffers <= 5 * (LANES + 1) + 5


@pytest.mark.parametrize("cap", [100, 10_000])
def test_depth(explain: Explainer, cap: int) -> None:
    plan = explain("depth", queue="work", cap=cap)
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert not any("Bitmap" in kind for kind, _ in plan.scans())
    assert plan.rows_read <= 4 * (cap + 1)
    assert plan.buffers <= 5 * cap + 4 * 4 * LANES


def test_peek(explain: Explainer) -> None:
    plan = explain("peek", queue="work", limit=20)
    assert plan.root["Actual Rows"] == 20
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 16 * (20 + 1) + 1
    assert plan.buffers <= 16 * 20 + 8 * 17


@pytest.mark.parametrize("queue", ["work", "keyed"])
def test_enqueue_one(explain: Explainer, queue: str) -> None:
    new = columns.values(QueueSpec(queue, Work), NewJob(Work(n=1), unique_key="u", ordering_key="big", tags=["a"]))
    plan = explain("enqueue", queue=queue, **new)
    assert plan.scans() == set()
    assert plan.buffers <= 50


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", [10, 2_000])
def test_enqueue_many(explain: Explainer, count: int, queue: str) -> None:
    jobs = [NewJob(Work(n=n), unique_key=f"u{n}", ordering_key="big", tags=["a"]) for n in range(count)]
    plan = explain("enqueue_many", queue=queue, **columns.columns(QueueSpec(queue, Work), jobs))
    assert plan.root["Actual Rows"] == count
    assert plan.scans() == set()
    assert plan.buffers <= 25 * count + 50


def test_seal(explain: Explainer) -> None:
    batch = uuid4()
    explain.run(
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
        " VALUES (%s, 'k', 'work', 'sealing', now() + interval '1 minute', 'w')",
        batch,
    )
    matching = json.dumps({"note": "x" * 100})
    plan = explain("batch_seal", batch_id=batch, token=1, queue="work", bucket=3, filter=matching, worker="w")
    ((sealed,),) = explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch)
    assert JOBS / 16 / 2 < sealed < JOBS / 16
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert ("job_claim") in {index for _, index in plan.scans()}
    # One bucket, the later jobs in it stepped over in the index, and each sealed job once more through the primary key.
    assert plan.rows_read <= 2 * JOBS / 16 * 1.1
    assert plan.buffers <= 25 * sealed
