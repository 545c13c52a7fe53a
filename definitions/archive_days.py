"""Each account's day in the archive: how its events ended, and whether its reminders were delivered on time."""

from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dagster_sqlqueue.embedded import home
from dagster_sqlqueue.spark import ArchiveRead, sqlqueue_archive_asset
from definitions.days import days

EVENT_TABLE = "public.event_daily"
REMINDER_TABLE = "public.reminder_daily"

ON_TIME_SECONDS = 60
"""How many seconds after its moment a reminder still counts as on time."""

_ENDED = ("succeeded", "failed", "cancelled")


def event_directory() -> Path:
    """The directory of the events' Parquet files."""
    return home() / "output" / "event_daily"


@sqlqueue_archive_asset(
    ArchiveRead(
        "events",
        columns={
            "day": {"path": "payload.day", "type": "date"},
            "account": {"path": "payload.dest", "type": "string"},
        },
        states=_ENDED,
    ),
    partitions_def=days,
    table=EVENT_TABLE,
    output=event_directory,
    counted="events",
    columns={"handled": "Events that succeeded.", "attempts": "Attempts in all.", "p95_seconds": "Of a last attempt."},
)
def event_daily(jobs: DataFrame) -> DataFrame:
    """Count each account's events of a day, by outcome, with their attempts and run times."""
    seconds = F.col("finished_at").cast("double") - F.col("started_at").cast("double")
    return jobs.groupBy("day", "account").agg(
        F.count("*").alias("events"),
        _of_state("succeeded").alias("handled"),
        _of_state("failed").alias("failed"),
        F.sum("attempt").alias("attempts"),
        F.percentile(seconds, F.lit(0.95)).alias("p95_seconds"),
    )


@sqlqueue_archive_asset(
    ArchiveRead(
        "reminders",
        columns={
            "day": {"path": "payload.day", "type": "date"},
            "account": {"path": "payload.account", "type": "string"},
            "late_until": {"path": "payload.late_until", "type": "timestamp"},
        },
        states=_ENDED,
    ),
    partitions_def=days,
    table=REMINDER_TABLE,
    counted="reminders",
    columns={
        "sent": "Reminders that were delivered.",
        "on_time": f"Those of them that were within {ON_TIME_SECONDS} seconds of their moment.",
        "called_off": "Their flight was cancelled.",
        "undeliverable": "There is no address.",
        "p95_seconds": "From their moment to their delivery.",
    },
)
def reminder_daily(jobs: DataFrame) -> DataFrame:
    """Count each account's reminders of a day: delivered, and delivered on time.

    The moment of a reminder is its scheduled time, or, if its flight was late, that of the departure.
    """
    moment = F.greatest("run_at", "late_until")
    waited = F.col("finished_at").cast("double") - moment.cast("double")
    sent = F.col("state") == "succeeded"
    return jobs.groupBy("day", "account").agg(
        F.count("*").alias("reminders"),
        _of_state("succeeded").alias("sent"),
        F.sum((sent & (waited <= ON_TIME_SECONDS)).cast("bigint")).alias("on_time"),
        _of_state("cancelled").alias("called_off"),
        _of_state("failed").alias("undeliverable"),
        F.percentile(F.when(sent, waited), F.lit(0.95)).alias("p95_seconds"),
    )


def _of_state(state: str) -> Column:
    return F.sum((F.col("state") == state).cast("bigint"))
