"""A client of Spark Connect, in a process of its own: a process has sessions of one kind only."""

import os
import sys
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.assets import sqlqueue_daily_asset
from dagster_sqlqueue.spark.resource import SparkResource
from tests.spark.cluster import JVM_PATIENCE
from tests.spark.cluster_driver import with_a_gate
from tests.spark.daily_support import DAILY, DAYS, READS, compute
from tests.support import until

PARTITIONS = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_date="2013-01-10")
NEXT = "next"
"""The file that names the server to go on with, in the directory of the gates."""


def materialize(remote: str, url: str, schema: str, output: str, kind: str, gates: str, away: str) -> bool:
    """Materialize all days, and say what came of it."""
    if kind == "by_tasks":
        sinks.MAX_ROWS = 3

    def computed(events: DataFrame) -> DataFrame:
        return compute(with_a_gate(events, gates) if gates else events)

    asset = sqlqueue_daily_asset(
        DAILY,
        reads=READS,
        partitions_def=PARTITIONS,
        table=None if kind == "by_tasks" else f"{schema}.results",
        output=lambda: Path(output),
        name="sizes",
    )(computed)
    tags = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": DAYS[-1]}
    resources = {
        "sqlqueue": SqlQueueResource(url=url, schema_name=schema),
        "spark": SparkResource(remote=remote, shuffle_partitions=2, away_seconds=float(away)),
    }
    if kind == "given":
        given = SparkSession.builder.remote(remote).config("spark.sql.shuffle.partitions", "2").getOrCreate()
        resources["spark"] = SparkResource(session=given)
    done = dg.materialize([asset], tags=tags, resources=resources, raise_on_error=not gates)
    for event in done.get_step_failure_events():
        failure = event.step_failure_data.user_failure_data
        sys.stdout.write(f"failed {failure and failure.description}\n")
    if done.success:
        events = done.asset_materializations_for_node("sizes")
        counts = {event.partition: event.metadata["dagster/partition_row_count"].value for event in events}
        sys.stdout.write(f"rows {[counts[day] for day in DAYS]}\n")
    if kind == "given":
        sys.stdout.write(f"left running {given.range(3).count() == 3}\n")
        given.stop()
    return done.success


def main(
    remote: str, url: str, schema: str, output: str, kind: str = "both", gates: str = "", away: str = "60"
) -> None:
    if not materialize(remote, url, schema, output, kind, gates, away):
        file = until(lambda: next(iter(Path(gates).glob(NEXT)), None), "another server", JVM_PATIENCE)
        materialize(file.read_text(), url, schema, output, kind, gates, away)
    left = "SPARK_CONNECT_MODE_ENABLED" in os.environ
    sys.stdout.write(f"connect mode left {left}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
