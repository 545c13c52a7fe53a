"""Plans of claims under a queue's limits, and of the turns of its keys: leases are counted once for each claim or key, and
no row of the backlog is read but those that are picked.
"""

from functools import cache
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import SqlQueue
from tests.plans.conftest import KEYS, LIMITED
from tests.plans.explaining import CLAIM, EVERYWHERE, FROM_THE_BEGINNING, SLACK, Explainer, Plan, due
from tests.support import rows
from tests.support.few import few


def test_limit_allowance(explain: Explainer, backlog: SqlQueue) -> None:
    settings = backlog.settings("limited")
    plan = explain("limit_allowance", queue="limited", revision=settings.revision, limit=100)
    assert plan.root["Actual Rows"] == 1
    assert {index for _, index in plan.scans()} - {None} <= {"job_limited", "rate_start_window"}
    assert plan.rows_read <= LIMITED
    assert plan.buffers <= LIMITED + SLACK


@pytest.mark.parametrize("limit", [1, 100])
def test_claim_limited(explain: Explainer, backlog: SqlQueue, limit: int) -> None:
    plan = explain(
        "claim_limited",
        queue="limited",
        revision=backlog.settings("limited").revision,
        buckets=EVERYWHERE,
        hints=FROM_THE_BEGINNING,
        limit=limit,
        **CLAIM,
    )
    assert plan.root["Actual Rows"] == limit
    assert {index for _, index in plan.scans()} - {None} <= {
        "job_limited",
        "job_claim",
        "job_pkey",
        "rate_start_window",
    }
    assert plan.rows_read <= LIMITED + 3 * limit + 16
    assert plan.buffers <= 2 * LIMITED + 60 * limit + SLACK


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
    assert plan.buffers <= LIMITED + SLACK


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
        **CLAIM,
    )
    assert plan.root["Actual Rows"] == limit
    assert {index for _, index in plan.scans()} - {None} <= {
        "job_claim",
        "job_pkey",
        "rate_start_window",
        "limit_reservation_pkey",
    }
    assert plan.rows_read <= 3 * limit + 20
    assert plan.buffers <= 60 * limit + SLACK


@pytest.mark.parametrize("count", few([1, 500, 100], 2))
@pytest.mark.parametrize("keys", ["many", "one"])
def test_turns_of_keys(explain: Explainer, backlog: SqlQueue, count: int, keys: str) -> None:
    """One key with 45,000 jobs that wait costs no more than 500 keys with 90 each."""
    plan = explain("key_turns", queue="keyed", ids=picked(backlog, count, keys))
    assert {index for _, index in plan.scans()} - {None} == {"job_pkey", "job_key", "job_key_running"}
    assert plan.rows_read <= 3 * count
    assert plan.buffers <= 16 * count + SLACK


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
    assert plan.buffers <= 16 * 500 + SLACK


@pytest.mark.parametrize("count", few([1, 500, 100], 2))
def test_park(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("park_waiting", queue="keyed", ids=due(backlog, count, "keyed"))
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} <= {"job_key", "job_key_running", "job_pkey"}
    assert plan.rows_read <= 3 * count
    assert plan.buffers <= 40 * count + SLACK


@pytest.mark.parametrize("count", few([1, 500, 100], 2))
def test_promote_in_an_ordered_queue(explain: Explainer, count: int) -> None:
    """Of the 500 keys, and of the one with 50,000 jobs among them, the first comes back; nobody reads the others."""
    explain.run(
        "UPDATE {s}.job SET state = 'queued', available_at = 'infinity' WHERE queue = 'keyed' AND state = 'running'"
    )
    before = explain.read_whole("job")
    plan = explain("key_promote", queue="keyed", keys=["big", *(f"key {n}" for n in range(count - 1))])
    promotes(plan, count)
    assert explain.read_whole("job") == before


@pytest.mark.parametrize("count", few([1, 500, 100], 2))
def test_promote_under_a_limit_for_each_key(explain: Explainer, count: int) -> None:
    explain.run("UPDATE {s}.queue SET ordered = false, max_running_per_key = 800 WHERE name = 'keyed'")
    before = explain.read_whole("job")
    plan = explain("key_promote", queue="keyed", keys=["big"] * count)
    promotes(plan, count)
    assert explain.read_whole("job") == before


def promotes(plan: Plan, count: int) -> None:
    assert plan.root["Actual Rows"] == count
    assert plan.buffers <= 40 * count + SLACK


def test_promote_of_keys_without_jobs(explain: Explainer) -> None:
    plan = explain("key_promote", queue="keyed", keys=[f"gone {n}" for n in range(100)])
    assert plan.root["Actual Rows"] == 0
    assert plan.buffers <= 5 * 100 + SLACK


KEY_INDEXES = {"job_parked", "job_key", "job_key_running", "queue_pkey"}
EVERYBODY = KEYS + 1
"""The keys of the queue, and the one with half of its jobs."""


@pytest.mark.parametrize("limit", few([1, 1_000, 100], 2))
@pytest.mark.parametrize("settings", ["ordered = true", "ordered = false, max_running_per_key = 1"])
def test_keys_that_go_on_are_a_few_probes_each(explain: Explainer, limit: int, settings: str) -> None:
    """However many of their jobs wait."""
    explain.run(f"UPDATE {{s}}.queue SET {settings} WHERE name = 'keyed'")
    count = min(limit, EVERYBODY)
    plan = explain("stuck_keys", after_queue="", after_key="", limit=limit)
    assert explain.run("SELECT count(*) FROM {s}.job")[0][0] >= 100_000
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} <= KEY_INDEXES
    assert not plan.read_whole("job")
    assert plan.rows_read <= 4 * (count + 1)
    assert plan.buffers <= 16 * (count + 1) + SLACK


@pytest.mark.parametrize("settings", ["ordered = true", "ordered = false, max_running_per_key = 1"])
def test_keys_that_stand_still_are_looked_into_so_far_and_no_further(explain: Explainer, settings: str) -> None:
    """None is due among the first hundred of each: of the longest line no more is read than of the others."""
    explain.run(f"UPDATE {{s}}.queue SET {settings} WHERE name = 'keyed'")
    explain.run(
        "UPDATE {s}.job SET state = 'queued', available_at = 'infinity' WHERE queue = 'keyed' AND state = 'running'"
    )
    plan = explain("stuck_keys", after_queue="keyed", after_key="", limit=1_000)
    assert {index for _, index in plan.scans()} - {None} <= KEY_INDEXES
    assert plan.rows_read <= 104 * EVERYBODY
    assert plan.buffers <= 130 * EVERYBODY + SLACK


def test_where_nothing_waits_for_its_turn_one_probe_is_enough(explain: Explainer) -> None:
    plan = explain("stuck_keys", after_queue="keyed", after_key="zzz", limit=1_000)
    assert plan.rows_read == 0
    assert plan.buffers <= SLACK


@cache
def picked(queue: SqlQueue, count: int, keys: str) -> list[UUID]:
    query = (
        "SELECT id FROM {s}.job WHERE queue = 'keyed' AND state = 'queued' AND available_at <= now()"
        f" AND ordering_key {'=' if keys == 'one' else '<>'} 'big' ORDER BY md5(id::text) LIMIT %s"
    )
    return [row[0] for row in rows(queue, query, count)]
