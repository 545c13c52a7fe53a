"""Sessions whose time zone is not UTC: days and rows are the same ones."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark import kinds
from dagster_sqlqueue.spark.archive_frame import archived
from dagster_sqlqueue.spark.contents import Days
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.spark.asset_support import NOBODYS, Run, daily_asset, not_passed
from tests.spark.daily_support import DAYS, endings, expected, in_files, in_table, once, prepare
from tests.spark.support import NOON, Done, archive

SHARES_A_SCHEMA = True

ZONE = "spark.sql.session.timeZone"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(
    params=[*(pytest.param(zone, marks=pytest.mark.prove) for zone in ("UTC", "Asia/Kolkata")), "America/New_York"]
)
def spark(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session, in each of some time zones."""
    before = {name: spark.conf.get(name) for name in (ZONE, PUSHDOWN)}
    spark.conf.set(ZONE, request.param)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, str(value))


def test_a_day_by_the_clocks_of_another_zone_has_all_its_jobs(queue: SqlQueue, spark: SparkSession) -> None:
    # New York's clocks show half past one at both moments; Denver's half an hour before midnight and half an hour after.
    moments = [datetime(2013, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    archive(queue, [Done({"n": n}, at=when) for n, when in enumerate(moments)])
    reads = ArchiveRead("work", {"n": {"path": "payload.n", "type": "int"}})
    about = Days("work", reads.states, "America/Denver")

    def found(*days: str) -> list[tuple[date, int]]:
        return sorted((row.day, row.n) for row in archived(spark, reads, about, days).collect())

    assert found("2013-11-02") == [(date(2013, 11, 2), 0)]
    assert found("2013-11-03") == [(date(2013, 11, 3), 1)]
    assert found("2013-11-02", "2013-11-03") == [(date(2013, 11, 2), 0), (date(2013, 11, 3), 1)]


@pytest.mark.prove
def test_the_daily_asset_has_the_same_rows(
    queue: SqlQueue, spark: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    prepare(queue)
    done = Run(daily_asset(queue, output), resources, instance)(DAYS[0], DAYS[-1])
    assert done.success
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert not_passed(done) == NOBODYS


CONDITIONS = (
    "finished_at >= timestamp'2013-01-01 18:00:00Z' AND finished_at < timestamp'2013-01-02 06:00:00Z'",
    "due = timestamp'2013-01-01 20:00:00+02:00'",
    "day = date'2013-01-02'",
    "day IN (date'2013-01-01', date'2013-01-03')",
    "to_date(finished_at) = date'2013-01-02'",
    "finished_at >= timestamp'2013-01-01 18:00:00' AND due <= timestamp'2013-01-02 18:00:00'",
)


def test_timestamps_are_read_where_spark_takes_them_to_be_without_a_zone(queue: SqlQueue, spark: SparkSession) -> None:
    archive(queue, [Done({"n": 1, "seen": [{"at": NOON.isoformat()}]}, at=NOON)])
    kind = "array<struct<at: timestamp>>"
    reader = spark.read.format(FORMAT).option("queue", "work")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        asked = kinds.ddl({"finished_at": "timestamp", "seen": kind})
        for read in (reader.load(), reader.option("payload", f"seen {kind}").schema(asked).load()):
            assert read.schema["finished_at"].dataType == TimestampType()
            (row,) = read.select("finished_at", sf.unix_seconds("finished_at").alias("seconds")).collect()
            assert row["seconds"] == NOON.timestamp()
        (row,) = read.select(sf.unix_seconds(sf.expr("seen[0].at")).alias("seconds")).collect()
        assert row["seconds"] == NOON.timestamp()
        with pytest.raises(Exception, match="'finished_at' is timestamp, not timestamp_ntz; write timestamp_ltz"):
            reader.schema("finished_at timestamp").load().collect()
    finally:
        spark.conf.unset("spark.sql.timestampType")


@pytest.mark.prove
def test_conditions_that_the_database_applies_find_the_rows_that_spark_finds(
    queue: SqlQueue, spark: SparkSession, url: str
) -> None:
    hours = [NOON + timedelta(hours=n) for n in range(48)]
    archive(
        queue,
        [Done({"n": n, "due": at.isoformat(), "day": at.date().isoformat()}, at=at) for n, at in enumerate(hours)],
    )

    def found(condition: str) -> list[int]:
        reader = spark.read.format(FORMAT).option("queue", "work").option("payload", "n int, due timestamp, day date")
        return sorted(row.n for row in reader.load().where(condition).collect())

    # One query for all of them: none is pushed down.
    read = spark.read.format(FORMAT).option("queue", "work").option("payload", "n int, due timestamp, day date").load()
    held = read.selectExpr("n", *(f"{condition} AS c{place}" for place, condition in enumerate(CONDITIONS))).collect()
    by_spark = [sorted(row.n for row in held if row[f"c{place}"]) for place in range(len(CONDITIONS))]
    register_source(spark, url, queue.database.schema, push_filters=True)
    assert [found(condition) for condition in CONDITIONS] == by_spark
    # Those that name a moment or a stored day mean the same in every zone.
    assert by_spark[:4] == [list(range(6, 18)), [6], list(range(12, 36)), [*range(12), *range(36, 48)]]
    assert all(by_spark)
