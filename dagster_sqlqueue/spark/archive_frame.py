"""Some days of the archive as a DataFrame, read without claiming anything."""

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue.spark import finish_window, local_days
from dagster_sqlqueue.spark.closed_days import begins, ends
from dagster_sqlqueue.spark.contents import Days
from dagster_sqlqueue.spark.daily import ArchiveRead, types_of
from dagster_sqlqueue.spark.options import FORMAT, capped
from dagster_sqlqueue.spark.source import ddl

EVERY_JOB = {
    "state": "string",
    "attempt": "int",
    "run_at": "timestamp",
    "started_at": "timestamp",
    "finished_at": "timestamp",
}
"""The columns that every job has, beside those of the payload and the result that are asked for."""


def archived(spark: SparkSession, reads: ArchiveRead, about: Days, days: Sequence[str]) -> DataFrame:
    """Return the jobs of some days, with the column `day`.

    Args:
        spark: a session with the data source `sqlqueue` registered.
        reads: whose jobs, and which columns.
        about: which of them belong to which day.
        days: ISO dates.
    """
    reader = spark.read.format(FORMAT).option("queue", reads.queue).option("state", "archive")
    reader = reader.option("states", ",".join(reads.states))
    reader = reader.option("columns", json.dumps({name: dict(column) for name, column in reads.columns.items()}))
    reader = reader.option("on_bad_value", reads.on_bad_value).options(**capped(reads.max_connections))
    types = EVERY_JOB | types_of(reads.columns)
    if about.day is not None:
        reader = reader.option("where", local_days.condition(days))
        return finish_window.loaded(reader, types, days, reads.finished_within)
    reader = reader.option("finished_from", begins(min(days), about.zone).isoformat())
    reader = reader.option("finished_until", ends(max(days), about.zone).isoformat())
    jobs = reader.schema(ddl(types)).load()
    # In seconds of the zone's clocks: by the session's own, one hour of a year comes twice.
    seconds = sf.unix_seconds(sf.from_utc_timestamp("finished_at", about.zone))
    day = sf.date_from_unix_date(sf.floor(seconds / 86_400).cast("int"))
    return jobs.withColumn("day", day).where(sf.col("day").cast("string").isin(list(days)))
