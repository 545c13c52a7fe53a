"""Assets of days with a limit to how long after its day a job finishes: what is read of the archive, and what is not."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import contents, finish_window
from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset
from dagster_sqlqueue.spark.contents import Days
from dagster_sqlqueue.spark.daily import ArchiveRead
from tests.spark.asset_support import PARTITIONS, Run, checks, daily_asset, shown
from tests.spark.daily_support import DAILY, DAYS, READS, add, compute, in_files, in_table, table
from tests.spark.support import Done, archive
from tests.support import rows, until, value
from tests.support.few import few

SHARES_A_SCHEMA = True

WITHIN = timedelta(hours=6)
BOUNDED = replace(READS, finished_within=WITHIN)
MICROSECOND = timedelta(microseconds=1)
MIDNIGHT = datetime(2013, 1, 2, tzinfo=UTC)
FIRST = MIDNIGHT - timedelta(hours=14)
"""When DAYS[1] begins in Kiritimati, and the last one to read it has until six hours after it has ended on Howland."""
UNTIL = MIDNIGHT + timedelta(hours=36) + WITHIN
SECOND = date(2013, 1, 2)


def fill(queue: SqlQueue) -> None:
    """Events of the second day around its bounds, and one at noon of each day beside it."""
    moments = [FIRST - MICROSECOND, FIRST, UNTIL - MICROSECOND, UNTIL, UNTIL + timedelta(days=30)]
    # No read of the last one would take its size.
    of_second = zip(moments, [100, 1, 2, 100, "too late"], strict=True)
    archive(queue, [Done({"day": DAYS[1], "account": "ATL", "size": size}, at=at) for at, size in of_second])
    for day, at in ((DAYS[0], MIDNIGHT - timedelta(hours=12)), (DAYS[2], MIDNIGHT + timedelta(hours=36))):
        archive(queue, [Done({"day": day, "account": "ATL", "size": 10}, at=at)])


def consuming(queue: SqlQueue, output: Path, reads: ArchiveRead) -> dg.AssetsDefinition:
    """The daily asset. Its jobs end today: years after their days, and yet they are done."""
    queue.create_queue(DAILY)
    add(queue, DAYS, ["ATL"])
    return daily_asset(queue, output, reads=reads)


def reading(queue: SqlQueue, output: Path, reads: ArchiveRead) -> dg.AssetsDefinition:
    """The archive asset."""
    return sqlqueue_archive_asset(
        reads, partitions_def=PARTITIONS, table=table(queue), output=lambda: output, counted="events", name="sizes"
    )(compute)


@pytest.mark.parametrize("kind", few([consuming, reading], 1))
def test_a_day_has_the_jobs_that_finished_in_its_time_whichever_days_it_is_read_with(
    queue: SqlQueue,
    session: SparkSession,
    output: Path,
    resources: dict[str, Any],
    instance: dg.DagsterInstance,
    kind: Callable[[SqlQueue, Path, ArchiveRead], dg.AssetsDefinition],
) -> None:
    fill(queue)
    run = Run(kind(queue, output, BOUNDED), resources, instance)
    alone = run(DAYS[1])
    assert alone.success
    assert in_table(queue) == in_files(output) == [(SECOND, "ATL", 2, 3)]
    assert shown(alone)[DAYS[1]]["jobs_read"] == 2
    assert all(passed for passed, _ in checks(alone).values())
    together = run(DAYS[0], DAYS[-1], recompute=True)
    assert together.success
    around = [(date(2013, 1, 1), "ATL", 1, 10), (SECOND, "ATL", 2, 3), (date(2013, 1, 3), "ATL", 1, 10)]
    assert in_table(queue) == in_files(output) == around
    assert shown(together)[DAYS[1]]["sqlqueue/contents"] == shown(alone)[DAYS[1]]["sqlqueue/contents"]
    assert all(passed for passed, _ in checks(together).values())
    # What comes too late does not change a day; what comes in time does.
    archive(queue, [Done({"day": DAYS[1], "account": "ATL", "size": 4}, at=UNTIL)])
    assert shown(run.without_spark()(DAYS[1]))[DAYS[1]]["unchanged"]
    archive(queue, [Done({"day": DAYS[1], "account": "ATL", "size": 4}, at=MIDNIGHT)])
    assert run(DAYS[1]).success
    assert in_table(queue)[1] == (SECOND, "ATL", 3, 7)


MANY = [(date(2013, 1, 1) + timedelta(days=n)).isoformat() for n in range(36)]
EACH = 50


def read_rows(queue: SqlQueue) -> int:
    """How many rows of the archive were read since it was made; connections say so when they end."""

    schema = queue.database.schema

    def others() -> list[tuple[Any, ...]]:
        here = "datname = current_database() AND pid <> pg_backend_pid() AND strpos(query, %s) > 0"
        return rows(queue, f"SELECT pid FROM pg_stat_activity WHERE {here}", schema)

    until(lambda: not others(), "the end of the run's connections")
    rows(queue, "SELECT pg_stat_force_next_flush()")
    read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_all_tables"
    return int(value(queue, f"{read} WHERE schemaname = %s AND relname ~ '^job_archive'", schema))


@pytest.mark.own_schema
def test_a_day_of_many_reads_only_its_own_part_of_the_archive(
    queue: SqlQueue, session: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    """Without the bound, which is the default where the day is a field, each of the statements reads all of it."""
    for day in MANY:
        rows(queue, "SELECT {s}.make_archive_partition(%s)", day)
        noon = datetime.fromisoformat(f"{day}T12:00:00Z")
        archive(queue, [Done({"day": day, "account": "ATL", "size": n}, at=noon) for n in range(EACH)])
    rows(queue, "ANALYZE {s}.job_archive")
    day = MANY[18]
    partitions = dg.DailyPartitionsDefinition(start_date=MANY[0], end_date="2013-03-01")
    queue.create_queue(DAILY)
    add(queue, [day], ["ATL"])
    found = []
    for reads in (READS, replace(READS, finished_within=timedelta(days=1))):
        before = read_rows(queue)
        asset = daily_asset(queue, output, reads=reads, partitions_def=partitions)
        assert Run(asset, resources, instance)(day, recompute=True).success
        assert in_table(queue) == [(date.fromisoformat(day), "ATL", EACH, sum(range(EACH)))]
        found.append(read_rows(queue) - before)
    whole, bounded = found
    assert whole >= len(MANY) * EACH
    # Of five days at most, as the day is one of any time zone: a seventh of 36, by each of the statements.
    assert bounded * 7 <= whole


def test_what_is_no_day_is_passed_over_by_the_watermark(queue: SqlQueue) -> None:
    archive(queue, [Done({"day": day}, at=MIDNIGHT) for day in (DAYS[1], "someday", None, "2013-13-01")])
    first, until = finish_window.window(DAYS[1:2], WITHIN)
    about = Days("work", READS.states, "UTC", day="payload.day", since=first, until=until, within=WITHIN)
    assert contents.held(queue, about, DAYS[1:2])[DAYS[1]].total() == 1
    assert contents.stats(queue, about, DAYS[1:2])[DAYS[1]].jobs == 1


@pytest.mark.prove
def test_without_a_bound_a_day_has_its_jobs_whenever_they_finished(
    queue: SqlQueue, session: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    moments = [MIDNIGHT - timedelta(days=30), MIDNIGHT, MIDNIGHT + timedelta(days=300)]
    archive(queue, [Done({"day": DAYS[1], "account": "ATL", "size": 1}, at=at) for at in moments])
    assert Run(consuming(queue, output, READS), resources, instance)(DAYS[1]).success
    assert in_table(queue) == in_files(output) == [(SECOND, "ATL", 3, 3)]


@pytest.mark.parametrize(
    ("within", "columns", "said"),
    [
        (
            timedelta(seconds=-1),
            READS.columns,
            "finished_within is datetime.timedelta.*; give a timedelta from 0 to 36,500",
        ),
        (timedelta.max, READS.columns, "give a timedelta from 0 to 36,500 days"),
        (7, READS.columns, "finished_within is 7; give a timedelta"),
        (WITHIN, {"size": READS.columns["size"]}, r"of the columns \['size'\] none is 'day' with the type date"),
        (WITHIN, {"day": {"path": "payload.day", "type": "string"}}, "none is 'day' with the type date"),
        (WITHIN, {**READS.columns, "Finished_At": READS.columns["day"]}, "column 'Finished_At' has the name"),
    ],
)
def test_a_bound_that_is_not_usable(within: Any, columns: dict[str, dict[str, str]], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ArchiveRead("work", columns, finished_within=within)
