"""Plans of the statements that get ids, or unique keys: each goes to those rows alone, whatever else there is."""

from typing import Any

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.queue import validation
from tests.plans.conftest import KEYS
from tests.plans.explaining import BY_ID, SLACK, Explainer, changes_by_id, due, running
from tests.support import Work
from tests.support.few import few

SIZES = few([1, 1_000, 100], 2)

OF_WAITING: dict[str, dict[str, Any]] = {
    "cancel_waiting": {"reason": "x"},
    "hold_queued": {"reason": "x"},
    "reschedule": {"seconds": 60.0, "moment": None},
    "reprioritise": {"priority": 9},
    "complete_locked": {"states": ["succeeded"], "results": [None], "errors": [None], "worker": "w"},
    "complete_plain_locked": {"worker": "w"},
    "return_locked": {"states": ["queued"], "delays": [1.0], "moments": [None], "errors": ["x"], "spent": [True]},
    "pick_ids": {"limit": 1_000},
    "lock_live": {},
    "live_rows": {},
}
"""By verb, what is said beside the ids; arrays are as long as those."""


@pytest.mark.parametrize("verb", list(OF_WAITING))
@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", SIZES)
def test_what_is_done_with_jobs_that_wait(
    explain: Explainer, backlog: SqlQueue, verb: str, queue: str, count: int
) -> None:
    ids = due(backlog, count, queue)
    more = {name: given * count if isinstance(given, list) else given for name, given in OF_WAITING[verb].items()}
    changes_by_id(explain(verb, queue=queue, ids=ids, **more), len(ids))


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", SIZES)
def test_cancelling_what_runs(explain: Explainer, backlog: SqlQueue, queue: str, count: int) -> None:
    count = min(count, KEYS) if queue == "keyed" else count
    changes_by_id(explain("cancel_running", ids=running(backlog, count, queue)), count)


@pytest.mark.parametrize("count", SIZES)
def test_releasing_what_is_held(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    ids = running(backlog, count)
    explain.run("UPDATE {s}.job SET state = 'held', available_at = 'infinity' WHERE id = ANY (%s)", ids)
    changes_by_id(explain("release_held", ids=ids), count)


@pytest.mark.parametrize("release", [False, True], ids=["and nothing else", "and releasing"])
@pytest.mark.parametrize("state", ["queued", "held"])
@pytest.mark.parametrize("count", SIZES)
def test_replacing_payloads(explain: Explainer, backlog: SqlQueue, state: str, release: bool, count: int) -> None:
    """By a function, whose reads are seen from outside: no table of jobs is read row by row."""
    ids = due(backlog, count)
    if state == "held":
        explain.run("UPDATE {s}.job SET state = 'held', available_at = 'infinity' WHERE id = ANY (%s)", ids)
    whole = (
        "SELECT sum(seq_tup_read) FROM pg_stat_xact_all_tables WHERE schemaname = %s AND relname ~ '^job'",
        explain.schema,
    )
    before = explain.run(*whole)
    plan = explain("replace_payload", ids=ids, payload='{"n": 7}', release=release)
    assert plan.root["Actual Rows"] == count
    assert explain.run(*whole) == before
    # A queued one is changed twice.
    assert plan.buffers <= 25 * (2 if state == "queued" else 1) * count + SLACK


@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", SIZES)
def test_replacing(explain: Explainer, backlog: SqlQueue, queue: str, count: int) -> None:
    keys = [f"u{n}" for n in range(count)]
    ids = due(backlog, count, queue)
    explain.run(
        "UPDATE {s}.job AS j SET unique_key = new.key"
        " FROM unnest(%s::uuid[], %s::text[]) AS new (id, key) WHERE j.id = new.id",
        ids,
        keys,
    )
    jobs = [NewJob(Work(n=n), unique_key=key) for n, key in enumerate(keys)]
    arrays = validation.as_columns([validation.values(QueueSpec(queue, Work), job) for job in jobs])
    plan = explain("enqueue_replace", queue=queue, named=[False] * count, **arrays)
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} <= {"job_unique_key", "job_pkey", "job_replaced_pkey"}
    assert plan.rows_read <= 3 * count
    # Nothing is compared with everything.
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes) <= 25 * count + count**2 // 4
    assert plan.buffers <= 45 * count + SLACK
    looked_up = explain("replace_keys", queue=queue, unique_keys=keys)
    assert {index for _, index in looked_up.scans()} - {None} <= {"job_unique_key"}
    assert looked_up.rows_read <= count
    assert looked_up.buffers <= 6 * count + SLACK


@pytest.mark.parametrize("count", SIZES)
def test_what_was_sent_before(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    ids = due(backlog, count)
    known = explain("known_ids", ids=ids)
    assert known.root["Actual Rows"] == count
    assert {index for _, index in known.scans()} - {None} <= {"job_pkey"}
    assert not any(kind == "Seq Scan" for kind, _ in known.scans())
    assert known.rows_read <= count
    plan = explain("conflicting_ids", queue="other", ids=ids, unique_keys=[None] * count)
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count


def test_what_a_manager_granted(explain: Explainer, backlog: SqlQueue) -> None:
    """A worker takes its own, beside others that were granted as much."""
    ids = running(backlog, 2_000)
    explain.run(
        "INSERT INTO {s}.assignment (queue, worker, job_id, lease_no, alone)"
        " SELECT 'work', 'w' || n %% 4, id, 1, false FROM unnest(%s::uuid[]) WITH ORDINALITY AS granted (id, n)",
        ids,
    )
    plan = explain("take_assigned", queue="work", worker="w1", limit=100)
    assert plan.root["Actual Rows"] == 100
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= 100
    explain.run("UPDATE {s}.assignment SET alone = true WHERE worker = 'w2'")
    plan = explain("take_assigned", queue="work", worker="w2", limit=100)
    assert plan.root["Actual Rows"] == 1
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= 3


def test_a_job_that_is_begun_by_itself(explain: Explainer, backlog: SqlQueue) -> None:
    (id,) = due(backlog, 1)
    for name, given in (("begin_alone", {"worker": "w", "alone": True}), ("lock_alone", {"lease_no": 1})):
        plan = explain(name, id=id, **given)
        assert plan.scans() <= BY_ID
        assert plan.rows_read <= 1
        assert plan.buffers <= 25 + SLACK


@pytest.mark.parametrize("limit", [1, 1_000])
def test_forgetting_what_was_replaced_or_deleted(explain: Explainer, limit: int) -> None:
    explain.run(
        "INSERT INTO {s}.job_replaced (id, noted_at)"
        " SELECT gen_random_uuid(), statement_timestamp() - make_interval(mins => n) FROM generate_series(1, 50000) AS n"
    )
    explain.run("ANALYZE {s}.job_replaced")
    plan = explain("forget_replaced", limit=limit)
    assert {index for _, index in plan.scans()} <= {"job_replaced_noted", "job_replaced_pkey"}
    assert plan.root["Actual Rows"] == 1
    assert plan.rows_read <= 3 * limit
    assert plan.buffers <= 25 * limit + SLACK
