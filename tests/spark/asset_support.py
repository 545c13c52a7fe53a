"""A daily asset, and its runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark.assets import sqlqueue_daily_asset
from dagster_sqlqueue.spark.resource import SparkResource
from tests.spark.daily_support import DAILY, DAYS, READS, compute, table

PARTITIONS = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_date="2013-01-10")


def statistics(result: pa.Table) -> dict[str, int | float]:
    return {"events": pc.sum(result["events"]).as_py()}


def daily_asset(
    queue: SqlQueue, output: Path, /, before: Callable[[], object] = lambda: None, **changes: Any
) -> dg.AssetsDefinition:
    """The asset `sizes`, with the settings of these tests.

    It calls `before` when its jobs are sealed and nothing is read yet.
    """
    settings: dict[str, Any] = {
        "reads": READS,
        "partitions_def": PARTITIONS,
        "table": table(queue),
        "output": lambda: output,
        "statistics": statistics,
        "counted": "events",
        "columns": {"size": "In bytes."},
        **changes,
    }

    @sqlqueue_daily_asset(DAILY, **settings)
    def sizes(events: DataFrame) -> DataFrame:
        """Each account's day."""
        before()
        return compute(events)

    return sizes


class Run:
    """Materialise days, and look at what is shown of them."""

    def __init__(self, asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance) -> None:
        self.asset, self.resources, self.instance = asset, resources, instance

    def without_spark(self) -> "Run":
        """The same, in runs that end when they ask for a session."""
        return Run(
            self.asset, {**self.resources, "spark": SparkResource(session_factory="no.such:session")}, self.instance
        )

    def __call__(self, first: str, last: str | None = None, **config: Any) -> dg.ExecuteInProcessResult:
        ops = {"sizes": {"config": config}} if config else {}
        chosen: dict[str, Any] = {"partition_key": first}
        if last is not None:
            tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            chosen = {"tags": tags}
        return dg.materialize(
            [self.asset],
            **chosen,
            run_config={"ops": ops},
            resources=self.resources,
            instance=self.instance,
            raise_on_error=False,
        )


def shown(done: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each partition."""
    events = done.asset_materializations_for_node("sizes")
    return {str(one.partition): {name: value.value for name, value in one.metadata.items()} for one in events}


def versions(done: dg.ExecuteInProcessResult) -> list[str]:
    return [(one.tags or {})["dagster/data_version"] for one in done.asset_materializations_for_node("sizes")]


def data_versions(instance: dg.DagsterInstance, days: Sequence[str] = DAYS) -> dict[str, str]:
    """The data version of each day, as Dagster has it."""
    found = {}
    for day in days:
        record = instance.get_latest_data_version_record(dg.AssetKey("sizes"), partition_key=day)
        assert record is not None
        assert record.asset_materialization is not None
        tags = record.asset_materialization.tags or {}
        # With what tells Dagster whether the day is out of date.
        assert {"dagster/code_version", "dagster/data_version_is_user_provided"} <= tags.keys()
        found[day] = tags["dagster/data_version"]
    return found


def not_passed(done: dg.ExecuteInProcessResult) -> dict[str, str]:
    """The severity of each check that did not pass."""
    return {one.check_name: one.severity.value for one in done.get_asset_check_evaluations() if not one.passed}


NOBODYS = {"no_account_missing": "WARN"}
"""What does not pass of a day of `daily_support`, whose account `nobody's` has no daily job."""


def checks(done: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, str]]:
    return {one.check_name: (one.passed, one.description or "") for one in done.get_asset_check_evaluations()}
