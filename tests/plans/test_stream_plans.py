"""Plans of a stream's reads beside 100,000 archived jobs in 30 days: what is new is read, and what a batch holds."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE, sized
from tests.plans.explaining import SLACK, Explainer, Plan
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows
from tests.support.cleared import own_schema

ROWS = sized(60_000, 100_000)
DAYS = 30
NEW = 200
EVERYTHING = "1:1:"
TAIL = 16 * 60
"""Rows of the pages that have one summary: the new ones lie behind some of them."""


@pytest.fixture(scope="module")
def archived(url: str) -> Iterator[SqlQueue]:
    """100,000 ended jobs, three quarters of them of the queue `work`, in whole days: of one with hardly a row the planner
    would read them all.
    """
    insert = """
        INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at,
            finished_at, region, tags, payload)
        SELECT gen_random_uuid(), CASE WHEN n %% 4 = 0 THEN 'other' ELSE %s END, 0, 0, 'succeeded', 1, 1, 3, at, at, at,
            'local', '{{}}', '{{"n": 1}}'
        FROM (
            SELECT n, date_trunc('day', statement_timestamp(), 'UTC') - make_interval(secs => n * 86400.0 * %s / %s) AS at
            FROM generate_series(1, %s) AS n
        ) AS made
    """
    with own_schema(url, "stream_plans", connect_timeout=round(PATIENCE)) as queue:
        queue.create_queue(QueueSpec("work", Work))
        for day in range(DAYS):
            rows(
                queue,
                "SELECT {s}.make_archive_partition(CAST(timezone('UTC', now()) AS date) - CAST(%s AS integer))",
                day,
            )
        for part in range(10):
            rows(
                queue,
                insert.replace("generate_series(1, %s)", f"generate_series({part + 1}, %s, 10)"),
                *("work", DAYS - 1, ROWS, ROWS),
            )
        without_autovacuum(queue)
        rows(queue, "VACUUM ANALYZE {s}.job_archive")
        rows(queue, "SELECT {s}.summarize_archive()")
        yield queue


@pytest.fixture(scope="module")
def positions(archived: SqlQueue) -> tuple[str, str]:
    """Where the archive stood before the 200, and after."""
    before = str(archived.database.run("stream_now", {"queue": "work"})[0][0])
    rows(
        archived,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 3, now(), now(), now(), 'local', '{{}}', '{{}}'"
        " FROM generate_series(1, %s)",
        NEW,
    )
    return before, str(archived.database.run("stream_now", {"queue": "work"})[0][0])


@pytest.fixture
def explained(archived: SqlQueue, positions: tuple[str, str]) -> SqlQueue:
    return archived


def scanned(plan: Plan) -> int:
    """Rows of the archive that scans looked at, with those that a filter threw away."""
    return sum(
        round(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0))
            * node["Actual Loops"]
        )
        for node in plan.nodes
        if str(node.get("Relation Name", "")).startswith("job_archive") and "Scan" in node["Node Type"]
    )


def test_where_the_archive_stands(explain: Explainer) -> None:
    plan = explain("stream_now", queue="work")
    assert scanned(plan) <= 4 * (DAYS + 3)
    assert plan.buffers <= 10 * (DAYS + 3) + SLACK


def test_what_is_new(explain: Explainer, positions: tuple[str, str]) -> None:
    after, until = positions
    plan = explain("stream_window", queue="work", after=after, until=until, from_time=None)
    assert plan.root["Actual Rows"] == 1
    assert scanned(plan) <= NEW + TAIL
    assert plan.buffers <= 10 * (DAYS + 3) + NEW + TAIL + SLACK
    assert explain.answer("stream_window", queue="work", after=after, until=until, from_time=None)[0] == NEW


def _middle(explain: Explainer) -> tuple[datetime, UUID]:
    found: Any = explain.run(
        "SELECT finished_at, id FROM {s}.job_archive WHERE queue = 'work' ORDER BY finished_at OFFSET 30000 LIMIT 1"
    )
    return found[0]


def test_the_end_of_a_batch_of_a_backlog(explain: Explainer, positions: tuple[str, str]) -> None:
    at, row = _middle(explain)
    place = {"queue": "work", "after": EVERYTHING, "until": positions[1], "at": at, "id": row}
    plan = explain("stream_cut", **place, skip=999)
    assert plan.root["Actual Rows"] == 2
    assert scanned(plan) <= 1_100


def test_the_end_of_a_batch_within_one_moment(explain: Explainer, positions: tuple[str, str]) -> None:
    """On a day of published batches, a batch of the stream reads its own rows, not all of the moment, nor the next one."""
    opens = "date_trunc('day', now(), 'UTC') - interval '5 days'"
    explain.run(
        f"DELETE FROM {{s}}.job_archive WHERE finished_at >= {opens} AND finished_at < {opens} + interval '1 day'"
    )
    explain.run(
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 3, now(), now(),"
        f" {opens} + make_interval(hours => n %% 2), 'local', '{{}}', '{{}}' FROM generate_series(1, 40000) AS n"
    )
    explain.run("ANALYZE {s}.job_archive")
    ((at, row, until),) = explain.run(
        f"SELECT finished_at, id, CAST(pg_current_xact_id() AS text) FROM {{s}}.job_archive WHERE finished_at = {opens}"
        " ORDER BY id OFFSET 10000 LIMIT 1"
    )
    beyond = int(until) + 1
    place = {"queue": "work", "after": EVERYTHING, "until": f"{beyond}:{beyond}:", "at": at, "id": row}
    plan = explain("stream_cut", **place, skip=99)
    assert plan.root["Actual Rows"] == 2
    assert scanned(plan) <= 200


def test_the_slices_of_a_batch_of_a_backlog(explain: Explainer, positions: tuple[str, str]) -> None:
    at, row = _middle(explain)
    place = {"queue": "work", "after": EVERYTHING, "until": positions[1], "at": at, "id": row}
    ((end_at, end_id), _) = explain.run(
        "SELECT finished_at, id FROM {s}.job_archive WHERE queue = 'work' AND finished_at > %s"
        " ORDER BY finished_at, id OFFSET 999 LIMIT 2",
        at,
    )
    plan = explain("stream_slices", **place, end_at=end_at, end_id=end_id, step=100)
    assert plan.root["Actual Rows"] == 9
    assert scanned(plan) <= 1_100


def test_the_slices_of_a_batch_that_ended_at_one_moment(explain: Explainer, positions: tuple[str, str]) -> None:
    after, until = positions
    ((at,),) = explain.run("SELECT max(finished_at) FROM {s}.job_archive")
    place = {"queue": "work", "after": after, "until": until, "at": at, "id": UUID(int=0)}
    plan = explain("stream_slices", **place, end_at="infinity", end_id=UUID(int=0), step=20)
    assert plan.root["Actual Rows"] == NEW / 20 - 1
    # Once for how many they are, and once for their ids.
    assert scanned(plan) <= 2 * NEW + DAYS


def test_what_is_removed(explain: Explainer) -> None:
    explain.run(
        "INSERT INTO {s}.staged_attempt (attempt, write_id, staged_at)"
        " SELECT gen_random_uuid(), gen_random_uuid(), now() - make_interval(hours => n / 1000)"
        " FROM generate_series(1, 26000) AS n"
    )
    explain.run(
        "INSERT INTO {s}.spark_write (queue, name, batch, jobs, duplicates, committed_at)"
        " SELECT 'work', CAST(n AS text), 0, 1, 0, now() - make_interval(days => n / 1000)"
        " FROM generate_series(1, 32000) AS n"
    )
    explain.run("ANALYZE {s}.staged_attempt, {s}.spark_write")
    for verb in ("forget_staged", "forget_writes"):
        plan = explain(verb, limit=100)
        assert not [node["Relation Name"] for node in plan.nodes if node["Node Type"] == "Seq Scan"]
