"""Plans of progress, outcomes and what is removed, beside 100,000 rows of each kind: what is asked for is read, no more."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.results.model import earliest_end
from tests.gate.patience import PATIENCE, sized
from tests.plans.explaining import SLACK, Explainer, Plan
from tests.plans.filling import put
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows, value
from tests.support.cleared import own_schema
from tests.support.few import few

ROWS = sized(40_000, 100_000)
DAYS = 30
RUNNING = 5_000


@pytest.fixture(scope="module")
def busy(url: str) -> Iterator[SqlQueue]:
    """100,000 live jobs, 5,000 of them running and followed, with a progress each; as many notes of progress and followers
    of others; an archive of 100,000 jobs in 30 days; as many events; and as many reply queues that have not expired.
    """
    with own_schema(url, "results_plans", connect_timeout=round(PATIENCE)) as queue:
        queue.create_queue(QueueSpec("work", Work))
        queue.create_queue(QueueSpec("reply_x", Work, bucket_count=1))
        put(queue, "work", ROWS)
        queue.claim("work", limit=RUNNING, lease_seconds=3_600, worker="w")
        for day in range(DAYS):
            rows(
                queue,
                "SELECT {s}.make_archive_partition(CAST(timezone('UTC', now()) AS date) - CAST(%s AS integer))",
                day,
            )
        # Ids as they are made: they begin with the time of the enqueue, an hour before the end.
        rows(
            queue,
            """
            INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,
                created_at, finished_at, region, tags, payload, result)
            SELECT
                {s}.uuid_at(at - interval '1 hour', CAST(n AS text)), 'work', 0, 0, 'succeeded', 1, 1, 3, at, at, at,
                'local', '{{}}', '{{}}', '{{"n": 1}}'
            FROM (
                SELECT n, now() - make_interval(secs => n * 86400.0 * %s / %s) AS at FROM generate_series(1, %s) AS n
            ) AS made
            """,
            DAYS - 1,
            ROWS,
            ROWS,
        )
        rows(queue, "UPDATE {s}.job SET followed = true WHERE state = 'running'")
        rows(
            queue,
            """
            INSERT INTO {s}.job_progress (job_id, lease_no, percent, updated_at)
            SELECT id, lease_no, 50, now() FROM {s}.job WHERE state = 'running'
            UNION ALL
            SELECT gen_random_uuid(), 1, 50, now() FROM generate_series(1, %s)
            """,
            ROWS,
        )
        rows(
            queue,
            """
            INSERT INTO {s}.follower (id, job_id, states, notify, created_at)
            SELECT gen_random_uuid(), gen_random_uuid(), '{{failed}}', true,
                now() - CASE WHEN n <= 2000 THEN interval '2 days' ELSE interval '1 hour' END
            FROM generate_series(1, %s) AS n
            """,
            ROWS,
        )
        rows(
            queue,
            "INSERT INTO {s}.job_event (job_id, no, queue, actor, action)"
            " SELECT gen_random_uuid(), 1, 'work', 'boss', 'take' FROM generate_series(1, %s)",
            ROWS,
        )
        rows(
            queue,
            "INSERT INTO {s}.reply_queue (queue, ttl_seconds, expires_at)"
            " SELECT 'reply_' || n, 60, now() + interval '1 hour' - CASE WHEN n <= 300 THEN interval '2 hours'"
            " ELSE interval '0' END FROM generate_series(1, %s) AS n",
            ROWS,
        )
        without_autovacuum(queue)
        for table in ("job", "job_archive", "job_progress", "follower", "job_event", "reply_queue"):
            rows(queue, f"VACUUM ANALYZE {{s}}.{table}")
        yield queue


@pytest.fixture
def explained(busy: SqlQueue) -> SqlQueue:
    return busy


def by_index(plan: Plan) -> set[str]:
    """The indexes that were used, and nothing but indexes where there is more than a few pages: the first and the last day
    of the archive hold little late in the day and early.
    """
    assert not plan.read_whole("", more_than=ROWS // DAYS // 10)
    return {str(node["Index Name"]) for node in plan.nodes if "Index Name" in node}


def partitions(plan: Plan) -> set[str]:
    """Those of the archive that were looked into."""
    return {
        str(node["Relation Name"])
        for node in plan.nodes
        if str(node.get("Relation Name", "")).startswith("job_archive") and node["Actual Loops"]
    }


def read(plan: Plan, table: str) -> int:
    """Rows of a table that scans looked at, with those that a filter threw away."""
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in plan.nodes
        if node.get("Relation Name") == table and "Scan" in node["Node Type"]
    )


def one_running(busy: SqlQueue) -> tuple[UUID, int]:
    ((id, lease_no),) = rows(
        busy, "SELECT id, lease_no FROM {s}.job WHERE state = 'running' ORDER BY md5(id::text) LIMIT 1"
    )
    return id, lease_no


@pytest.mark.parametrize("first", [True, False], ids=["the first note", "a later one"])
def test_a_note_of_progress(explain: Explainer, busy: SqlQueue, first: bool) -> None:
    id, lease_no = one_running(busy)
    if first:
        explain.run("DELETE FROM {s}.job_progress WHERE job_id = %s", id)
        explain.run("UPDATE {s}.job SET followed = false WHERE id = %s", id)
    plan = explain("progress", id=id, lease_no=lease_no, percent=70.0, message="x")
    assert plan.root["Actual Rows"] == 1
    assert by_index(plan) == {"job_pkey"}
    assert read(plan, "job") <= 2
    assert plan.buffers <= SLACK


def test_a_note_that_is_refused(explain: Explainer, busy: SqlQueue) -> None:
    id, lease_no = one_running(busy)
    plan = explain("progress", id=id, lease_no=lease_no - 1, percent=70.0, message="x")
    assert plan.root["Actual Rows"] == 0
    assert plan.buffers <= SLACK


def ended(busy: SqlQueue, day: int, count: int) -> list[UUID]:
    """Jobs that ended on a day, counted back from today."""
    query = (
        "SELECT id FROM {s}.job_archive WHERE finished_at >= now() - make_interval(days => %s, hours => 2)"
        " AND finished_at < now() - make_interval(days => %s) ORDER BY md5(id::text) LIMIT %s"
    )
    return [row[0] for row in rows(busy, query, day, day, count)]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(("day", "most"), [(0, 3), (1, 4), (10, 13), (28, 31)])
def test_outcomes_of_ended_jobs_look_only_at_the_days_since_they_were_made(
    explain: Explainer, busy: SqlQueue, count: int, day: int, most: int
) -> None:
    ids = ended(busy, day, count)
    assert len(ids) == count
    plan = explain("outcomes", ids=ids, since=earliest_end(ids))
    assert plan.root["Actual Rows"] == count
    by_index(plan)
    # The default partition is always among them.
    assert len(partitions(plan)) <= most + 1
    assert plan.buffers <= 5 * count * (most + 3) + SLACK


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_outcomes_of_live_jobs(explain: Explainer, busy: SqlQueue, count: int) -> None:
    query = "SELECT id FROM {s}.job WHERE state = 'running' ORDER BY md5(id::text) LIMIT %s"
    ids = [row[0] for row in rows(busy, query, count)]
    plan = explain("outcomes", ids=ids, since=earliest_end(ids))
    assert plan.root["Actual Rows"] == count
    by_index(plan)
    assert len(partitions(plan)) <= 4
    assert read(plan, "job") <= count
    assert read(plan, "job_progress") <= count
    assert plan.buffers <= 24 * count + SLACK


def test_an_outcome_whatever_its_id_was_made_of(explain: Explainer, busy: SqlQueue) -> None:
    """Every day is probed, each by its primary key."""
    plan = explain("outcomes", ids=ended(busy, 5, 1), since="-infinity")
    assert plan.root["Actual Rows"] == 1
    by_index(plan)
    assert DAYS < len(partitions(plan)) <= DAYS + 4
    assert plan.buffers <= 5 * (DAYS + 6) + SLACK


def test_following_to_wait(explain: Explainer, busy: SqlQueue) -> None:
    query = "SELECT id FROM {s}.job WHERE state = 'queued' ORDER BY md5(id::text) LIMIT 100"
    jobs = [row[0] for row in rows(busy, query)]
    ids = [row[0] for row in rows(busy, "SELECT gen_random_uuid() FROM generate_series(1, 100)")]
    parameters: dict[str, Any] = dict.fromkeys(("queues", "ordering_keys", "contexts", "group_ids"))
    parameters |= {"priorities": [0] * 100, "states": ["{failed}"] * 100, "notifies": [True] * 100}
    plan = explain("follow", ids=ids, job_ids=jobs, **parameters)
    assert plan.root["Actual Rows"] == 100
    assert read(plan, "job") <= 200
    by_index(plan)


@pytest.mark.parametrize("limit", [1, 1_000])
def test_forgetting_progress(explain: Explainer, limit: int) -> None:
    plan = explain("forget_progress", after=UUID(int=0), limit=limit)
    by_index(plan)
    assert read(plan, "job_progress") <= 2 * limit
    assert read(plan, "job") <= limit
    assert plan.buffers <= 25 * limit + SLACK


@pytest.mark.parametrize("limit", [1, 1_000])
def test_forgetting_waits(explain: Explainer, limit: int) -> None:
    plan = explain("forget_waits", limit=limit)
    assert {"follower_notify", "follower_pkey"} <= by_index(plan)
    assert read(plan, "follower") <= 2 * limit
    assert plan.buffers <= 40 * limit + SLACK


def test_reply_queues_whose_time_is_up(explain: Explainer) -> None:
    plan = explain("reply_queues_over", after_at="-infinity", after_queue="", limit=100)
    assert plan.root["Actual Rows"] == 100
    assert by_index(plan) == {"reply_queue_expiry"}
    assert read(plan, "reply_queue") <= 100
    assert plan.buffers <= SLACK


def rows_read(explain: Explainer) -> tuple[int, int]:
    """How many rows this connection has read so far: looking through tables, and by their indexes."""
    ((through, by_entry),) = explain.run(
        "SELECT sum(seq_tup_read), sum(COALESCE(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE schemaname = %s",
        explain.schema,
    )
    return int(through), int(by_entry)


def test_removing_a_reply_queue(explain: Explainer) -> None:
    """Beside all the other rows, which refer to other queues: each of the checks goes by an index."""
    explain.run("UPDATE {s}.reply_queue SET queue = 'reply_x' WHERE queue = 'reply_1'")
    explain.run("DELETE FROM {s}.reply_queue WHERE queue = 'reply_2'")
    before = rows_read(explain)
    for removed in ("reply_x", "reply_2"):
        plan = explain("reply_queue_remove", queue=removed, expired=True)
        # Some 15 for each of the seventeen tables.
        assert plan.buffers <= 17 * 40 + SLACK
    through, by_entry = (after - earlier for after, earlier in zip(rows_read(explain), before, strict=True))
    assert through <= 20
    assert by_entry <= 100
    assert explain.run("SELECT FROM {s}.queue WHERE name = 'reply_x'") == []


def test_deleting_a_queue(explain: Explainer) -> None:
    """Likewise: what is in its way, and what goes with it."""
    before = rows_read(explain)
    for dry_run in (True, False):
        plan = explain("delete_queue", queue="reply_x", dry_run=dry_run)
        assert plan.root["Actual Rows"] == 0
        assert plan.buffers <= 17 * 40 + SLACK
    through, by_entry = (after - earlier for after, earlier in zip(rows_read(explain), before, strict=True))
    assert through <= 20
    assert by_entry <= 100
    assert explain.run("SELECT FROM {s}.queue WHERE name = 'reply_x'") == []


def test_asking_is_quick(busy: SqlQueue) -> None:
    id: UUID = value(busy, "SELECT id FROM {s}.job WHERE state = 'running' LIMIT 1")
    assert datetime.fromisoformat(earliest_end([id])) < datetime.now(UTC) - timedelta(hours=23)
