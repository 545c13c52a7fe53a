"""A driver's process on a cluster: materialises an archive asset of the tests' days, or the daily one, with a gate in the
tasks.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame

from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset
from dagster_sqlqueue.spark.assets import sqlqueue_daily_asset
from dagster_sqlqueue.spark.outputs import STAGING
from dagster_sqlqueue.spark.resource import SparkResource
from tests.faults.gates import Gates
from tests.spark.cluster import driver_conf
from tests.spark.daily_support import DAILY, DAYS, READS, compute

PARTITIONS = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_date="2013-01-10")


def with_a_gate(frame: DataFrame, gates: str, staging: Path | None) -> DataFrame:
    """The rows, which pass by the gate `task`: in any task, or in those alone that write below `staging`."""

    def pass_by(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if staging is None or any(staging.glob("*")):
            Gates(Path(gates)).pass_by("task")
        yield from batches

    return frame.repartition(4).mapInArrow(pass_by, frame.schema)


def main(master: str, url: str, schema: str, output: str, gates: str, conf: str) -> None:
    further = json.loads(conf)
    by_tasks, daily = further.pop("by_tasks", False), further.pop("daily", False)
    if by_tasks:
        sinks.MAX_ROWS = 3
    staging = Path(output) / STAGING if by_tasks else None
    settings = {
        "partitions_def": PARTITIONS,
        "table": None if by_tasks else f"{schema}.results",
        "output": lambda: Path(output),
        "name": "sizes",
        "counted": "events",
    }
    kind = (
        partial(sqlqueue_daily_asset, DAILY, reads=READS, lease_seconds=600.0)
        if daily
        else partial(sqlqueue_archive_asset, READS)
    )
    asset = kind(**settings)(lambda jobs: with_a_gate(compute(jobs), gates, staging))
    resources = {
        "sqlqueue": SqlQueueResource(url=url, schema_name=schema),
        "spark": SparkResource(
            fast_start=True,
            master=master,
            driver_memory="512m",
            shuffle_partitions=2,
            conf={**driver_conf(), **further},
        ),
    }
    tags = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": DAYS[-1]}
    with dg.DagsterInstance.ephemeral() as instance:
        for unchanged in (False, True):
            done = dg.materialize([asset], tags=tags, resources=resources, instance=instance)
            events = done.asset_materializations_for_node("sizes")
            assert {one.partition: one.metadata["unchanged"].value for one in events} == dict.fromkeys(DAYS, unchanged)
            failed = {check.check_name for check in done.get_asset_check_evaluations() if not check.passed}
            # One of the accounts has events, and no daily job.
            assert failed == ({"no_account_missing"} if daily else set())


if __name__ == "__main__":
    main(*sys.argv[1:])
