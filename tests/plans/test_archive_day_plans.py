"""Plans of what reads days of the archive, beside 100,000 live jobs and 100,000 archived ones in ten days.

What asks for a range of time reads that range of that queue; what asks for a queue reads no other one's rows. A probe of
an index goes to every day, of which there are 13.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.spark.slices import shares
from tests.gate.patience import PATIENCE
from tests.plans.archived_days import DAILY, DAYS, PARTITIONS, ROWS
from tests.plans.archived_days import explained as explained
from tests.plans.archived_days import kept as kept
from tests.plans.explaining import SLACK, Explainer, Plan
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows
from tests.support.cleared import own_schema

A_DAY = ROWS // (DAYS - 1)
READS = 16
"""For the last bucket of a queue, once for each of them at most."""


def whole_days(explain: Explainer, count: int) -> tuple[datetime, datetime]:
    """The last whole days that have jobs, in UTC: midnight may have passed since these were made."""
    ((last,),) = explain.run("SELECT max(finished_at) FROM {s}.job_archive WHERE queue = 'events'")
    until = last.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return until - timedelta(days=count), until


def names(first: datetime, until: datetime) -> list[str]:
    return [(first + timedelta(days=n)).date().isoformat() for n in range((until - first).days)]


@pytest.mark.parametrize("days", [1, 7])
def test_the_bounds_of_a_read_of_some_days(explain: Explainer, days: int) -> None:
    first, until = whole_days(explain, days)
    plan = explain("spark_bounds", queue="events", from_time=first, until_time=until)
    assert not plan.read_whole("job_archive")
    # From the two ends.
    assert plan.rows_of("job_archive") <= 2 * (days + 1)
    assert plan.buffers <= 2 * 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("days", [1, 7])
def test_the_partitions_of_a_read_of_some_days(explain: Explainer, days: int) -> None:
    first, until = whole_days(explain, days)
    plan = explain("spark_days", queue="events", first=first, last=until - timedelta(microseconds=1))
    assert plan.root["Actual Rows"] == days
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= days + 1


@pytest.mark.parametrize("days", [1, 7])
@pytest.mark.parametrize("percent", [100.0, 10.0])
def test_the_slices_of_a_read_of_some_days(explain: Explainer, days: int, percent: float) -> None:
    first, until = whole_days(explain, days)
    plan = explain("spark_slices", queue="events", first=first, last=until, step=1_000, percent=percent)
    found, meant = plan.root["Actual Rows"], days * A_DAY / 1_000
    assert meant - 1 <= found <= meant + 2 if percent == 100 else meant / 3 - 2 <= found <= meant * 2 + 2
    # A row of 80 characters of notes, and what every row has: 20 to 50 on a page.
    assert plan.buffers <= (days + 1) * A_DAY / 20 * min(100, 2 * percent) / 100 + 5 * PARTITIONS + SLACK


@pytest.fixture(scope="module")
def published(url: str) -> Iterator[SqlQueue]:
    """A day on which a batch of 100,000 jobs was published, and as many jobs of another queue ended one by one."""
    insert = """
        INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at,
            finished_at, region, tags, payload)
        SELECT gen_random_uuid(), %s, 0, 0, 'succeeded', 1, 1, 3, now(), now(),
            CAST('2013-01-01T12:00Z' AS timestamptz) + n * CAST(%s AS interval), 'local', '{{}}',
            jsonb_build_object('n', n, 'note', repeat('x', 80))
        FROM generate_series(1, %s) AS n
    """
    with own_schema(url, "moment_plans", connect_timeout=round(PATIENCE)) as queue:
        queue.create_queue(QueueSpec("work", Work))
        rows(queue, "SELECT {s}.make_archive_partition('2013-01-01')")
        for name, step in (("other", "0.1 s"), ("work", "0 s")):
            rows(queue, insert, name, step, ROWS)
        without_autovacuum(queue)
        rows(queue, "VACUUM ANALYZE {s}.job_archive")
        yield queue


@pytest.mark.parametrize("target", [5_000, 500])
def test_a_slice_of_one_moment_reads_its_own_rows(published: SqlQueue, url: str, target: int) -> None:
    options = {"queue": "work", "target_rows": str(target)}
    parts = [one for share in shares(published, url, options, []) for one in share.slices]
    # Cut by a sample of the pages: a slice has a little more rows or less.
    assert 0.8 * ROWS / target <= len(parts) <= 1.2 * ROWS / target + 2
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT id, payload FROM {s}.job_archive WHERE queue = 'work' AND "
    for part in parts[:: len(parts) // 10]:
        ((found,),) = rows(published, query + part.condition)
        plan = Plan(found)
        assert not plan.read_whole("job_archive")
        assert plan.rows_of("job_archive") <= 2 * target
        # A page for each row at most, and the entries of as many rows of the other queue.
        assert plan.buffers <= 2 * target + 3 * target / 50 + 5 * PARTITIONS + SLACK


def test_the_bounds_and_slices_of_a_small_queue(explain: Explainer) -> None:
    """Of the whole archive: the entries of the one queue alone, and the pages of the sample."""
    ends = {"first": datetime(2020, 1, 1, tzinfo=UTC), "last": datetime.now(UTC)}
    for plan in (
        explain("spark_bounds", queue="daily", from_time=None, until_time=None),
        explain("spark_days", queue="daily", **ends),
    ):
        assert not plan.read_whole("job_archive")
        assert plan.rows_of("job_archive") <= DAILY
    plan = explain("spark_slices", queue="daily", **ends, step=100, percent=1.0)
    # Of a queue with few pages the sample has any number of them.
    assert plan.root["Actual Rows"] <= DAILY
    assert plan.buffers <= 3 * ROWS / 20 / 100 + 5 * PARTITIONS + SLACK


PLAIN: dict[str, Any] = {"zoned": False, "day_zone": None, "zone_path": None}
ZONED: dict[str, Any] = {"zoned": True, "day_zone": None, "zone_path": ["zone"], "day_path": ["at"]}


def about(**more: Any) -> dict[str, Any]:
    return {
        "states": ["succeeded", "failed"],
        "in_result": False,
        "day_path": None,
        **PLAIN,
        "zone": "UTC",
        "account_in_result": False,
        "account_path": ["account"],
        "lead_seconds": 0.0,
        "lag_seconds": None,
        **more,
    }


@pytest.mark.parametrize("verb", ["archive_by_day", "archive_day_stats"])
@pytest.mark.parametrize("days", [1, 7])
def test_days_by_when_their_jobs_finished(explain: Explainer, verb: str, days: int) -> None:
    first, until = whole_days(explain, days)
    plan = explain(verb, **about(queue="events", days=names(first, until), from_time=first, until_time=until))
    assert plan.root["Actual Rows"] == (50 * days if verb == "archive_by_day" else 25 * days)
    # Of a day that nearly all is asked of, the whole is read.
    assert plan.rows_of("job_archive") <= (days + 1) * (A_DAY + DAILY / DAYS)
    assert plan.buffers <= 2 * (days + 1) * A_DAY + 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("verb", ["archive_by_day", "archive_day_stats"])
def test_days_by_a_field_that_are_bounded_read_those_days_of_the_archive(explain: Explainer, verb: str) -> None:
    first, until = whole_days(explain, 1)
    window = {"from_time": first - timedelta(hours=14), "until_time": until + timedelta(hours=12)}
    bounds = {"lead_seconds": 14 * 3600.0, "lag_seconds": 36 * 3600.0}
    plan = explain(verb, **about(queue="daily", days=names(first, until), day_path=["day"], **window, **bounds))
    assert plan.root["Actual Rows"]
    # Parts of three days.
    assert plan.rows_of("job_archive") <= 3 * (A_DAY + DAILY / DAYS)
    assert plan.buffers <= 2 * 3 * A_DAY + 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("verb", ["archive_by_day", "archive_day_stats"])
def test_days_by_a_field_read_the_rows_of_the_queue_alone(explain: Explainer, verb: str) -> None:
    first, until = whole_days(explain, 1)
    asked = about(queue="daily", days=names(first, until), day_path=["day"], from_time=None, until_time=None)
    plan = explain(verb, **asked)
    assert plan.root["Actual Rows"]
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= DAILY
    assert plan.buffers <= 2 * DAILY + 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("days", [1, 3])
def test_the_accounts_of_some_days(explain: Explainer, days: int) -> None:
    """The jobs that were done since the first of them began, however many were before, and the dead ones: a tenth."""
    first, until = whole_days(explain, days)
    begin = first - timedelta(hours=14)
    plan = explain("daily_accounts", queue="daily", days=names(first, until), from_time=begin)
    assert plan.root["Actual Rows"]
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= (days + 1) * DAILY / (DAYS - 1) + DAILY / 10
    assert not plan.read_whole("job")
    assert plan.rows_read <= DAILY + READS
    assert plan.buffers <= 4 * DAILY + 5 * PARTITIONS + SLACK


DUE: dict[str, Any] = {
    "earliest": "2000-01-01",
    "latest": "2999-12-31",
    "prefix": "sizes/",
    "day_path": ["day"],
    "account_path": ["account"],
    "late": [],
    **PLAIN,
}

LIVE_DAYS: dict[str, dict[str, Any]] = {
    "live_by_day": {"day_path": ["day"], **PLAIN},
    "open_accounts": {"day_path": ["day"], "account_path": ["account"], **PLAIN},
    "due_days": {"events": None, **DUE, "cap": ROWS},
    "spark_live_buckets": {},
}


@pytest.mark.parametrize("verb", list(LIVE_DAYS))
def test_days_of_live_jobs_read_the_rows_of_the_queue_alone(explain: Explainer, verb: str) -> None:
    # Midnight may have passed since they were made.
    days = names(datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1))
    plan = explain(verb, queue="daily", days=days, **LIVE_DAYS[verb])
    assert plan.root["Actual Rows"]
    assert not plan.read_whole("job")
    assert plan.rows_read <= DAILY + READS
    assert plan.buffers <= 2 * DAILY + SLACK


def test_days_of_instants_read_the_zones_once_beside_the_rows(explain: Explainer) -> None:
    """And the function that finds the day is part of the statement, whatever is given to it."""
    first, until = whole_days(explain, 1)
    explained = {
        "archive_by_day": about(from_time=None, until_time=None),
        "archive_day_stats": about(from_time=None, until_time=None),
        **{verb: LIVE_DAYS[verb] for verb in ("live_by_day", "open_accounts")},
    }
    for verb, asked in explained.items():
        plan = explain(verb, **{**asked, **ZONED, "queue": "daily", "days": names(first, until)})
        assert not plan.read_whole("job_archive")
        assert not plan.read_whole("job")
        zones = [node for node in plan.nodes if node.get("Function Name") == "pg_timezone_names"]
        assert sum(node["Actual Loops"] for node in zones) <= 1
        assert plan.buffers <= 2 * DAILY + 5 * PARTITIONS + SLACK
    call = (
        "EXPLAIN (VERBOSE) SELECT {s}.local_day(CASE WHEN id IS NULL THEN result ELSE payload END #>> CAST(%s AS text[]),"
        " (SELECT jsonb_object_agg(name, name) FROM pg_timezone_names) ->> (payload #>> CAST(%s AS text[])))"
        " FROM {s}.job_archive"
    )
    assert not any("local_day" in line for (line,) in explain.run(call, ["at"], ["zone"]))
    call = "EXPLAIN (VERBOSE) SELECT {s}.day_of(payload #>> CAST(%s AS text[])) FROM {s}.job_archive"
    assert not any("day_of" in line for (line,) in explain.run(call, ["day"]))


def test_a_sensor_stops_looking_at_its_cap(explain: Explainer) -> None:
    plan = explain("due_days", queue="events", events="events", **{**DUE, "cap": 1_000})
    assert plan.rows_read <= 2 * 1_000 + READS
    assert plan.buffers <= 2 * 2 * 1_000 + SLACK


@pytest.mark.parametrize("published", [False, True])
def test_late_events_are_looked_for_among_those_that_ended_since(explain: Explainer, published: bool) -> None:
    ((after,),) = explain.run("SELECT CAST(pg_current_snapshot() AS text)")
    if published:
        explain.run(
            "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, published_at) SELECT gen_random_uuid(),"
            " 'sizes/' || (payload ->> 'day'), 'daily', 'published', now(), 'w', now()"
            " FROM (SELECT DISTINCT payload FROM {s}.job_archive WHERE queue = 'daily') AS known"
        )
    explain.run(
        "UPDATE {s}.job_archive SET ended_in = pg_current_xact_id() WHERE queue = 'events' AND payload ->> 'account' = 'a7'"
    )
    ((until, fresh),) = explain.run(
        "SELECT CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) || ':' ||"
        " CAST(CAST(CAST(pg_current_xact_id() AS text) AS bigint) + 1 AS text) || ':',"
        " (SELECT count(*) FROM {s}.job_archive WHERE ended_in = pg_current_xact_id())"
    )
    plan = explain("late_days", queue="daily", events="events", states=["succeeded"], after=after, until=until, **DUE)
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= fresh + (DAILY if published else 0)
