"""Plans of the statements about schedules, beside 100,000 of them: what is not due is not read."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE, sized
from tests.plans.explaining import SLACK, Explainer, Plan
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows
from tests.support.cleared import own_schema

SCHEDULES = sized(40_000, 100_000)
DUE = 50
PAUSED = 1_000
LIMIT = 200


@pytest.fixture(scope="module")
def many(url: str) -> Iterator[SqlQueue]:
    """100,000 schedules: 50 are due, 1,000 more would be if they were not paused, the rest comes within a week."""
    with own_schema(url, "schedule_plans", connect_timeout=round(PATIENCE)) as queue:
        queue.create_queue(QueueSpec("work", Work))
        rows(
            queue,
            "INSERT INTO {s}.schedule (queue, name, cron, time_zone, anchor, catch_up, grace_seconds, priority, tags,"
            " payload, next_tick, paused_at)"
            " SELECT 'work', 's' || n, '0 3 * * *', 'UTC', now(), 'one', 60, 0, ARRAY['schedule:s' || n], '{{\"n\": 1}}',"
            " now() + CASE WHEN n <= %s THEN interval '-1 hour' ELSE n * interval '6 seconds' END,"
            " CASE WHEN n > %s AND n <= %s THEN now() END FROM generate_series(1, %s) AS n",
            DUE + PAUSED,
            DUE,
            DUE + PAUSED,
            SCHEDULES,
        )
        without_autovacuum(queue)
        rows(queue, "VACUUM ANALYZE {s}.schedule")
        yield queue


@pytest.fixture
def explained(many: SqlQueue) -> SqlQueue:
    return many


def scans(plan: Plan) -> set[tuple[str, str | None]]:
    """The ways in which the table of schedules, or an index of it, was read."""
    found = [node for node in plan.nodes if node.get("Relation Name") == "schedule" and "Scan" in node["Node Type"]]
    bitmaps = {("Bitmap", node["Index Name"]) for node in plan.nodes if node["Node Type"] == "Bitmap Index Scan"}
    return {(node["Node Type"], node.get("Index Name")) for node in found} | bitmaps


def rows_read(plan: Plan) -> int:
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in plan.nodes
        if node.get("Relation Name") == "schedule" and "Scan" in node["Node Type"]
    )


def test_a_tick_reads_what_is_due_and_nothing_else(explain: Explainer) -> None:
    plan = explain("schedules_due", limit=LIMIT)
    assert plan.root["Actual Rows"] == DUE
    assert scans(plan) == {("Index Scan", "schedule_next")}
    assert rows_read(plan) == DUE
    assert plan.buffers <= 5 * DUE + SLACK


def test_nothing_due_is_seen_at_the_first_entry(explain: Explainer) -> None:
    explain.run("DELETE FROM {s}.schedule WHERE next_tick <= now() AND paused_at IS NULL")
    plan = explain("schedules_due", limit=LIMIT)
    assert plan.root["Actual Rows"] == 0
    assert rows_read(plan) == 0


def test_the_wait_for_the_next_tick(explain: Explainer) -> None:
    plan = explain("schedule_wait")
    assert {index for _, index in scans(plan)} == {"schedule_next"}
    assert rows_read(plan) == 1
    assert plan.buffers <= SLACK


@pytest.mark.parametrize("verb", ["schedule", "schedule_pause", "schedule_resume", "schedule_remove"])
def test_one_by_its_name(explain: Explainer, verb: str) -> None:
    plan = explain(verb, queue="work", name="s777")
    assert {index for _, index in scans(plan)} == {"schedule_pkey"}
    assert rows_read(plan) == 1
    assert plan.buffers <= SLACK


def test_moving_on(explain: Explainer) -> None:
    found = explain.run(
        "SELECT queue, name, next_tick + interval '1 day', next_tick, CAST(NULL AS text) FROM {s}.schedule"
        " WHERE next_tick <= now() AND paused_at IS NULL"
    )
    columns = [list(column) for column in zip(*found, strict=True)]
    names = ("queues", "names", "next_ticks", "last_ticks", "errors")
    plan = explain("schedules_move", **dict(zip(names, columns, strict=True)))
    assert {index for _, index in scans(plan)} == {"schedule_pkey"}
    assert rows_read(plan) == DUE
    assert plan.buffers <= 25 * DUE + SLACK


def test_when_everything_is_due_a_tick_reads_as_many_as_it_takes(explain: Explainer) -> None:
    explain.run("UPDATE {s}.schedule SET next_tick = next_tick - interval '30 days' WHERE next_tick > now()")
    plan = explain("schedules_due", limit=LIMIT)
    assert plan.root["Actual Rows"] == LIMIT
    assert ("Index Scan", "schedule_next") in scans(plan)
    assert rows_read(plan) <= LIMIT + 1
