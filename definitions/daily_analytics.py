"""Daily analytics: one job for each airport and day, consumed by Spark from the archived events."""

import os
from datetime import date, time
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.embedded import home
from dagster_sqlqueue.orchestration import (
    Account,
    DailyAccount,
    build_deadline_check,
    build_fanout_asset,
    build_fanout_schedule,
    build_sqlqueue_checks,
    build_sqlqueue_launchpad_jobs,
)
from dagster_sqlqueue.spark import ArchiveRead, SparkResource, build_daily_sensor, sqlqueue_daily_asset
from definitions.archive_days import event_daily, reminder_daily
from definitions.days import days, first_day, last_day
from definitions.flights import airport_zone, destinations
from definitions.resources import executor, resources

TABLE = "public.airport_daily"
DEADLINE = time(8, 0)
"""By when an account's day is to be done, on the day after, by the clocks of its zone."""

daily_analytics = QueueSpec("daily_analytics", DailyAccount, bucket_count=16, lease_seconds=120, max_attempts=5)


def accounts() -> list[Account]:
    """Every airport that flights of the source go to."""
    return [Account(code, str(airport_zone(code))) for code in destinations()]


def output_directory() -> Path:
    """The directory of the Parquet files."""
    return home() / "output" / "airport_daily"


fan_out = build_fanout_asset(daily_analytics, accounts, days)

reads = ArchiveRead(
    "events",
    columns={
        "day": {"path": "payload.day", "type": "date"},
        "account": {"path": "payload.dest", "type": "string"},
        "carrier": {"path": "payload.carrier", "type": "string"},
        "hour": {"path": "payload.hour", "type": "bigint"},
        "dep_time": {"path": "payload.dep_time", "type": "bigint"},
        "arr_delay": {"path": "payload.arr_delay", "type": "double"},
    },
)


def statistics(rows: pa.Table) -> dict[str, int | float]:
    """The numbers that the asset's page plots for each day."""
    flights = pc.sum(rows["flights"]).as_py()
    delays = pc.sum(pc.multiply(rows["mean_arr_delay"], rows["arrived"])).as_py() or 0.0
    return {
        "flights": flights,
        "cancelled": pc.sum(rows["cancelled"]).as_py(),
        "mean_arrival_delay_minutes": round(delays / max(pc.sum(rows["arrived"]).as_py(), 1), 2),
    }


@sqlqueue_daily_asset(
    daily_analytics,
    reads=reads,
    partitions_def=days,
    table=TABLE,
    output=output_directory,
    statistics=statistics,
    counted="flights",
    deadline=DEADLINE,
    columns={
        "day": "On which the flights were to leave New York.",
        "account": "The airport that the flights go to.",
        "flights": "All of that day, also those that were cancelled.",
        "cancelled": "Flights that never departed.",
        "arrived": "Flights with an arrival delay: neither cancelled nor diverted.",
        "mean_arr_delay": "Minutes, of those that arrived.",
        "p95_arr_delay": "Minutes, interpolated.",
        "busiest_hour": "In which most flights were to leave; the first of equals.",
        "top_carrier": "With the most flights; the first of equals by the alphabet.",
    },
)
def airport_daily(events: DataFrame) -> DataFrame:
    """Each airport's day: flights, cancellations, arrival delays, busiest hour and top carrier."""
    key = ["day", "account"]
    totals = events.groupBy(*key).agg(
        F.count("*").alias("flights"),
        F.sum(F.col("dep_time").isNull().cast("bigint")).alias("cancelled"),
        F.count("arr_delay").alias("arrived"),
        F.avg("arr_delay").alias("mean_arr_delay"),
        F.percentile("arr_delay", F.lit(0.95)).alias("p95_arr_delay"),
    )
    return totals.join(_most_frequent(events, "hour", "busiest_hour"), key).join(
        _most_frequent(events, "carrier", "top_carrier"), key
    )


def _most_frequent(events: DataFrame, column: str, name: str) -> DataFrame:
    counts = events.groupBy("day", "account", column).count()
    rank = Window.partitionBy("day", "account").orderBy(F.desc("count"), F.asc(column))
    return (
        counts.withColumn("rank", F.row_number().over(rank))
        .where("rank = 1")
        .select("day", "account", F.col(column).alias(name))
    )


schedule = build_fanout_schedule(
    fan_out,
    cron_schedule=os.environ.get("SQLQUEUE_FANOUT_CRON", "1 * * * *"),
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
sensor = build_daily_sensor(
    airport_daily,
    daily_analytics,
    # Due whenever Dagster's daemon evaluates sensors, which is every five seconds.
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
)


def is_partition(_account: Account, day: date) -> bool:
    """Whether a day belongs to the demo."""
    return first_day <= day <= last_day


checks = [
    build_sqlqueue_checks(daily_analytics),
    build_deadline_check(daily_analytics, accounts, deadline=DEADLINE, expected=is_partition),
]
checking = dg.ScheduleDefinition(
    job=dg.define_asset_job(
        "daily_analytics_checks",
        dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description="Checks the queue's health, and that every account's day was done by 08:00 of its own zone.",
    ),
    # The airports' zones are whole hours from UTC: within minutes of each account's deadline.
    cron_schedule="2 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)

defs = dg.Definitions(
    assets=[fan_out, airport_daily, event_daily, reminder_daily],
    jobs=build_sqlqueue_launchpad_jobs(daily_analytics, name_prefix="daily_analytics", verbs=("show", "redrive")),
    asset_checks=checks,
    schedules=[schedule, checking],
    sensors=[sensor],
    resources={**resources, "spark": SparkResource()},
    executor=executor,
)
