"""Plans of what reads and keeps, on 200,000 live jobs and 120,000 archived ones: every read goes by index and is bounded.

A count reads as many entries as its cap, and a row for each where the entry does not say enough: 10,000 in the views. A
probe of an index descends at most four pages and reads a row; a read of a queue's archive probes every partition.
"""

import re
import timeit
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from tests.gate.plugin import note_figures
from tests.plans.conftest import JOBS
from tests.plans.explaining import LANES, SLACK, Explainer, Plan
from tests.plans.undoing import without_autovacuum
from tests.support import rows, value

ARCHIVED = 120_000
CAP = 10_000
PARTITIONS = 12
PROBE = 5
STATS_BUFFERS = 7 * CAP + 7 * PROBE * LANES + 2 * PROBE * PARTITIONS

QUEUES = ["work", "keyed", "limited", "other"]


@pytest.fixture(scope="module")
def archive(backlog: SqlQueue) -> Iterator[SqlQueue]:
    """Three days of `work`, a tenth of it dead letters, 60,000 within the last hour; some of `other` on the same days."""
    rows(backlog, "SELECT {s}.make_archive_partition(CAST(timezone('UTC', now()) AS date) - 2)")
    rows(
        backlog,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), CASE WHEN n %% 50 = 1 THEN 'other' ELSE 'work' END, n %% 16, 0,"
        "  CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 1, 5, finished - interval '3 seconds',"
        "  finished - interval '3 seconds', finished - interval '1 second', finished, 'local', ARRAY[]::text[],"
        "  jsonb_build_object('n', n, 'note', repeat('x', 100))"
        " FROM (SELECT n, statement_timestamp() - n * interval '50 ms' - n / 40000 * day.apart AS finished"
        "  FROM generate_series(0, %s) AS n, (SELECT CASE WHEN EXTRACT(hour FROM timezone('UTC', now())) < 12"
        # Whatever the hour, they reach into the day before yesterday, and no further.
        "   THEN interval '23 hours' ELSE interval '24 hours' END AS apart) AS day) AS job",
        ARCHIVED - 1,
    )
    without_autovacuum(backlog)
    rows(backlog, "VACUUM ANALYZE {s}.job_archive")
    yield backlog
    rows(backlog, "TRUNCATE {s}.job_archive")


@pytest.fixture
def explained(archive: SqlQueue) -> SqlQueue:
    return archive


def plan_of(archive: SqlQueue, query: str) -> Plan:
    with archive.database.connection() as connection, connection.transaction(force_rollback=True):
        text = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.replace('{s}', archive.database.schema)}"
        ((found,),) = psycopg.ClientCursor(connection).execute(text.encode()).fetchall()
        return Plan(found)


@pytest.mark.parametrize("queue", QUEUES)
def test_queue_stats(explain: Explainer, queue: str) -> None:
    ((body,),) = explain.run("SELECT prosrc FROM pg_proc WHERE oid = CAST('{s}.stats_of_queue' AS regproc)")
    body = re.sub(r"\bwanted\b", "$1", body)
    explain.run(f"PREPARE stats (text) AS {body}")
    ((found,),) = explain.run(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE stats ('{queue}')")
    explain.run("DEALLOCATE stats")
    plan = Plan(found)
    assert plan.root["Actual Rows"] == 1
    assert not plan.read_whole("job", more_than=10)
    # Three counts of due jobs, two of later ones, one of those that wait for no time; and two probes of every lane, of
    # which the one for what is due next steps over the leases.
    assert plan.rows_read <= 6 * CAP + 2 * LANES + 2_000
    assert plan.rows_of("job_archive") <= 2 * CAP + PARTITIONS
    assert plan.buffers <= STATS_BUFFERS + SLACK


@pytest.mark.parametrize("queue", QUEUES)
def test_queue_stats_of_one_queue_looks_at_no_other(explain: Explainer, queue: str) -> None:
    plan = explain("queue_stats", queue=queue)
    assert plan.root["Actual Rows"] == 1
    assert plan.buffers <= STATS_BUFFERS + SLACK
    assert plan.root["Total Cost"] < 1_000, "with such costs PostgreSQL compiles the plan, which takes seconds"


def test_queue_stats_of_all_queues(archive: SqlQueue) -> None:
    plan = plan_of(archive, "SELECT * FROM {s}.queue_stats")
    assert plan.root["Actual Rows"] == len(QUEUES)
    assert plan.buffers <= len(QUEUES) * STATS_BUFFERS + SLACK
    took = {queue: min(timeit.repeat(lambda: archive.stats(queue), number=1, repeat=10)) for queue in QUEUES}  # noqa: B023
    note_figures(**{f"milliseconds of {queue}": round(1_000 * seconds) for queue, seconds in took.items()})
    assert plan.root["Total Cost"] < 10_000


def test_a_scrape_of_all_queues(explain: Explainer) -> None:
    plan = explain("queue_stats_all")
    assert plan.root["Actual Rows"] == len(QUEUES)
    assert plan.buffers <= len(QUEUES) * STATS_BUFFERS + SLACK
    assert plan.rows_of("job_archive") <= len(QUEUES) * (2 * CAP + PARTITIONS)
    assert plan.root["Total Cost"] < 10_000


def test_what_is_left_of_a_queue_is_read_from_its_hint_on(explain: Explainer) -> None:
    gone = explain.run(
        "DELETE FROM {s}.job WHERE queue = 'work' AND bucket < 4 AND available_at <= now() AND state = 'queued'"
        " RETURNING 1"
    )
    counting = {"queue": "work", "cap": 100, "others": 100}
    before, counted_before = explain("heads", queue="work"), explain("depth", **counting)
    swept = explain("note_sweep", queue="work")
    after, counted_after = explain("heads", queue="work"), explain("depth", **counting)
    assert len(gone) > JOBS / 8
    assert after.root["Actual Rows"] == before.root["Actual Rows"]
    assert before.buffers > 1.5 * after.buffers, "the dead rows were not in the way, so nothing was shown"
    assert after.buffers <= 8 * LANES + SLACK
    assert counted_before.buffers > 1.5 * counted_after.buffers, "the dead rows were not in the way"
    assert {index for _, index in counted_after.scans()} - {None} <= {"job_claim", "bucket_pkey"}
    assert {index for _, index in swept.scans()} <= {"job_claim", "bucket_pkey"}


def test_note_sweep(explain: Explainer) -> None:
    plan = explain("note_sweep", queue="work")
    assert plan.root["Actual Rows"] == 16
    assert plan.rows_read <= LANES
    assert not plan.read_whole("job", more_than=10)
    assert plan.buffers <= PROBE * LANES + 16 * 20 + SLACK
    again = explain("note_sweep", queue="work")
    assert again.root["Actual Rows"] == 0
    assert again.rows_read == 0
    assert again.buffers <= SLACK


@pytest.mark.parametrize("limit", [20, 1_000])
def test_dead_letters(explain: Explainer, limit: int) -> None:
    plan = explain("dead_letters", queue="work", limit=limit)
    assert plan.root["Actual Rows"] == limit
    assert not plan.read_whole("job", more_than=10)
    assert plan.rows_of("job_archive") <= limit + PARTITIONS
    assert plan.buffers <= 2 * limit + PROBE * PARTITIONS + SLACK


@pytest.mark.parametrize("cap", [100, CAP])
def test_archive_counts(explain: Explainer, cap: int) -> None:
    plan = explain("archive_counts", queue="work", since_seconds=86_400.0 * 5, cap=cap)
    assert not plan.read_whole("job", more_than=10)
    assert plan.rows_of("job_archive") <= cap + PARTITIONS
    assert plan.buffers <= 2 * cap + PROBE * PARTITIONS + SLACK


def test_archive_counts_of_the_last_minute(explain: Explainer) -> None:
    plan = explain("archive_counts", queue="work", since_seconds=60.0, cap=CAP)
    assert plan.rows_of("job_archive") <= 60 / 0.05 + PARTITIONS
    assert plan.buffers <= 2 * 60 / 0.05 + PROBE * PARTITIONS + SLACK


@pytest.mark.parametrize(("seconds", "limit"), [(86_400.0 * 5, CAP), (60.0, 10 * CAP)])
def test_run_endings(explain: Explainer, seconds: float, limit: int) -> None:
    plan = explain("run_endings", queue="work", worker="run/1", seconds=seconds, limit=limit)
    scanned = min(limit, int(seconds / 0.05))
    assert not plan.read_whole("job_archive", more_than=10)
    assert plan.rows_of("job_archive") <= scanned + PARTITIONS
    assert plan.buffers <= 2 * scanned + PROBE * PARTITIONS + SLACK


@pytest.mark.parametrize("limit", [1_000, 2 * CAP + 1])
def test_run_rate(explain: Explainer, limit: int) -> None:
    plan = explain("run_rate", queue="work", runs="run/", seconds=3_600.0, limit=limit)
    assert not plan.read_whole("job_archive", more_than=10)
    assert plan.rows_of("job_archive") <= limit + PARTITIONS
    assert plan.buffers <= 2 * limit + PROBE * PARTITIONS + SLACK


@pytest.mark.parametrize("table", ["job", "job_archive"])
def test_a_job_by_its_id(archive: SqlQueue, table: str) -> None:
    job: UUID = value(archive, f"SELECT id FROM {{s}}.{table} WHERE queue = 'work' LIMIT 1")
    plan = plan_of(archive, f"SELECT * FROM {{s}}.job_all WHERE id = '{job}'")
    assert plan.root["Actual Rows"] == 1
    assert not plan.read_whole("job", more_than=10)
    assert plan.buffers <= PROBE * (PARTITIONS + 1) + SLACK


def test_jobs_of_a_queue_in_both_tables(archive: SqlQueue) -> None:
    plan = plan_of(archive, "SELECT * FROM {s}.job_all WHERE queue = 'other'")
    assert plan.root["Actual Rows"] == 5_000 + ARCHIVED / 50
    assert not plan.read_whole("job", more_than=10)


@pytest.mark.parametrize("limit", [100, CAP])
def test_trimming_a_batch(explain: Explainer, limit: int) -> None:
    explain.run("UPDATE {s}.queue SET retention_days = 1 WHERE name = 'work'")
    there = explain.run("SELECT count(*) FROM {s}.job_archive")[0][0]
    read = "SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables WHERE schemaname = %s AND relname ~ '^job_archive'"
    before = explain.run(read, explain.schema)
    plan: Any = explain("archive_trim", queue="work", limit=limit)
    assert explain.run(read, explain.schema) == before
    assert explain.run("SELECT count(*) FROM {s}.job_archive") == [(there - limit,)]
    # Looked at in the search, and once more for its deletion.
    assert plan.buffers <= 12 * limit + 2 * PROBE * PARTITIONS + SLACK


def test_trimming_rows_of_no_queue(explain: Explainer) -> None:
    """Of the days that are over an entry for each name of a queue, and then the rows."""
    explain.run("UPDATE {s}.queue SET retention_days = 1")
    read = "SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables WHERE schemaname = %s AND relname ~ '^job_archive'"
    before = explain.run(read, explain.schema)
    plan: Any = explain("archive_trim_no_queue", limit=CAP)
    assert plan.root["Actual Rows"] == 0
    assert plan.buffers <= 4 * PROBE * PARTITIONS + SLACK
    over = "finished_at < date_trunc('day', now(), 'UTC') - interval '1 day'"
    explain.run(
        "UPDATE {s}.job_archive SET queue = 'gone' WHERE id IN"
        f" (SELECT a.id FROM {{s}}.job_archive AS a WHERE a.{over} LIMIT 200)"
    )
    before = explain.run(read, explain.schema)
    plan = explain("archive_trim_no_queue", limit=100)
    assert explain.run(read, explain.schema) == before
    assert explain.run("SELECT count(*) FROM {s}.job_archive WHERE queue = 'gone'") == [(100,)]
    assert plan.buffers <= 12 * 100 + 6 * PROBE * PARTITIONS + SLACK


def test_days_that_are_over(explain: Explainer) -> None:
    plan = explain("archive_days_over", only_queue=None)
    assert plan.root["Actual Rows"] == 0
    assert plan.buffers <= SLACK
