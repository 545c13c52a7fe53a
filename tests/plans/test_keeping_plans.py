"""Plans of what doctor, maintenance, managers and operators ask beside 200,000 live jobs: no backlog is looked through."""

import pytest

from dagster_sqlqueue import SqlQueue
from tests.plans.conftest import JOBS, KEY_JOBS, RUNNING
from tests.plans.explaining import BESIDE, BY_ID, LANES, SLACK, Explainer, due, running
from tests.support.few import few

QUEUES = 4
LIVE = JOBS + 2 * KEY_JOBS + 2 * 5_000


def test_queues_that_stand_still(explain: Explainer) -> None:
    plan = explain("doctor_queues", seconds=60.0)
    assert plan.root["Actual Rows"]
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    # Of each lane the first due job, a hundred of those that come, and the last bucket of the queue.
    assert plan.rows_read <= QUEUES * (101 * LANES + 1)
    assert plan.buffers <= QUEUES * (110 + 10) * LANES + SLACK


@pytest.mark.parametrize("limit", few([1, 1_000, 100], 2))
def test_some_leases(explain: Explainer, limit: int) -> None:
    plan = explain("leases", queue="work", limit=limit)
    assert plan.root["Actual Rows"] == limit
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert {index for _, index in plan.scans()} - {None} == {"job_claim"}
    # A lane is read until it has given enough; what is scheduled lies among the leases.
    assert plan.rows_read <= 25_000 + RUNNING


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_jobs_by_their_ids(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    for plan in (
        explain("leases_left", ids=running(backlog, count)),
        explain("keys_in_line", queue="keyed", ids=due(backlog, count, "keyed")),
    ):
        assert plan.scans() <= BY_ID
        assert plan.rows_read <= count
        assert plan.buffers <= 5 * count + SLACK


def test_grants_that_have_expired(explain: Explainer, backlog: SqlQueue) -> None:
    """Each grant is a read of its job; half of these are over."""
    over = due(backlog, RUNNING)
    for ids in (running(backlog, RUNNING), over):
        explain.run(
            "INSERT INTO {s}.assignment (queue, worker, job_id, lease_no, alone)"
            " SELECT 'work', 'w' || n %% 4, id, 1, false FROM unnest(%s::uuid[]) WITH ORDINALITY AS granted (id, n)",
            ids,
        )
    explain.run("ANALYZE {s}.assignment")
    plan = explain("forget_expired")
    assert explain.run("SELECT count(*) FROM {s}.assignment WHERE job_id = ANY (%s)", over) == [(0,)]
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= 2 * RUNNING
    assert plan.buffers <= 20 * 2 * RUNNING + SLACK


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_leaving_grants_for_a_worker(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    given = {"ids": running(backlog, count), "lease_nos": [1] * count, "alone": count == 1}
    plan = explain("deliver_grants", queue="work", worker="w1", **given)
    assert plan.scans() <= BY_ID
    assert plan.buffers <= 8 * count + SLACK


def test_noting_the_starts_of_a_claim(explain: Explainer) -> None:
    """What the interval reaches back to stays, and is not looked at."""
    explain.run(
        "INSERT INTO {s}.rate_start (queue, started_at, starts)"
        " SELECT 'work', now() - n * interval '1 ms', 1 FROM generate_series(1, %s) AS n",
        BESIDE,
    )
    explain.run("ANALYZE {s}.rate_start")
    plan = explain("rate_note", queue="work", starts=1, rate_seconds=3_600.0)
    assert not [node for node in plan.nodes if node["Node Type"] == "Seq Scan"]
    assert plan.rows_of("rate_start") == 0
    assert plan.buffers <= SLACK


def test_settling_the_turns_of_a_queue(explain: Explainer) -> None:
    """A rare statement: all live jobs are read once, and what changes through its primary key, or all of them once more."""
    for queue, rank in (("other", False), ("keyed", True)):
        explain.run("UPDATE {s}.queue SET ordered = false WHERE name = %s", queue)
        plan = explain("settle_turns", queue=queue, let_out=rank)
        assert plan.rows_read <= 2 * LIVE
        assert plan.buffers <= 2 * LIVE + 25 * (2 * KEY_JOBS if rank else 0) + SLACK


@pytest.mark.parametrize("limit", [10, 1_000])
def test_forgetting_groups(explain: Explainer, limit: int) -> None:
    """Beside many groups, most of which ended within the last month; each group goes with its members."""
    explain.run(
        "INSERT INTO {s}.job_group (id, priority, created_at, closed_at, ended_at)"
        " SELECT gen_random_uuid(), 0, at, at, at"
        " FROM (SELECT now() - n * interval '35 days' / %s AS at FROM generate_series(1, %s) AS n) AS made",
        BESIDE,
        BESIDE,
    )
    explain.run(
        "INSERT INTO {s}.follower (id, job_id, states, group_id)"
        " SELECT gen_random_uuid(), gen_random_uuid(), ARRAY['succeeded'], id FROM {s}.job_group"
    )
    explain.run("ANALYZE {s}.job_group")
    explain.run("ANALYZE {s}.follower")
    before = explain.run(
        "SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables WHERE relname IN ('job_group', 'follower')"
    )
    plan = explain("forget_groups", limit=limit)
    after = explain.run(
        "SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables WHERE relname IN ('job_group', 'follower')"
    )
    assert explain.run("SELECT %s - count(*) FROM {s}.job_group", BESIDE) == [(limit,)]
    assert after == before
    assert plan.rows_of("job_group") <= 2 * limit
    assert plan.buffers <= 30 * limit + SLACK


@pytest.mark.parametrize("name", ["doctor_strays", "move_strays"])
def test_jobs_where_nobody_looks_are_found_by_a_few_probes_a_bucket(explain: Explainer, name: str) -> None:
    """However many jobs there are, and where nobody asks for one there are none."""
    assert explain.run("SELECT count(*) FROM {s}.job")[0][0] >= 100_000
    buckets = explain.run("SELECT count(*) FROM (SELECT DISTINCT queue, bucket FROM {s}.job) AS b")[0][0]
    plan = explain(name, limit=1_000)
    assert not plan.read_whole("job")
    assert plan.rows_read <= 3 * (buckets + 1)
    # What others rolled back in this table stays in its index until a vacuum, and is stepped over.
    assert plan.buffers <= 64 * (buckets + 1) + SLACK


def test_leases_without_an_end_are_found_beside_any_number_of_held_and_parked_jobs(explain: Explainer) -> None:
    explain.run(
        "UPDATE {s}.job SET state = 'held', available_at = 'infinity' WHERE state = 'queued' AND order_no IS NULL"
    )
    lanes = explain.run("SELECT count(*) FROM {s}.lane")[0][0]
    leases = explain.run("SELECT count(*) FROM {s}.job WHERE state = 'running'")[0][0]
    plan = explain("doctor_leases", seconds=86_400.0, limit=10)
    assert not plan.read_whole("job")
    assert plan.rows_of("job") <= 20 * lanes + leases


def test_jobs_where_nobody_looks_are_moved_by_their_ids(explain: Explainer) -> None:
    explain.run("UPDATE {s}.job SET bucket = 900 WHERE id IN (SELECT id FROM {s}.job LIMIT 50)")
    plan = explain("move_strays", limit=1_000)
    assert not plan.read_whole("job")
    assert ("Index Scan", "job_pkey") in plan.scans()
