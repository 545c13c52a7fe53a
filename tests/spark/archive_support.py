"""An asset of closed days of the archive, its jobs, and its runs."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.resource import SparkResource
from tests.spark.support import Done, archive
from tests.support import rows

ZONE = "America/New_York"
PARTITIONS = dg.DailyPartitionsDefinition(start_date="2013-03-09", end_offset=3, timezone=ZONE)
READS = ArchiveRead(
    "work",
    columns={
        "account": {"path": "payload.account", "type": "string"},
        "size": {"path": "payload.size", "type": "bigint"},
    },
    states=("succeeded", "failed", "cancelled"),
)
DAYS = ("2013-03-09", "2013-03-10", "2013-03-11")


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """A moment of March 2013 by New York's clocks, which were moved on at 2 o'clock of the 10th."""
    return datetime(2013, 3, day, hour, minute, tzinfo=ZoneInfo(ZONE)).astimezone(UTC)


JOBS = [
    (at(8, 23, 59), "ATL", 1, "succeeded"),
    (at(9, 0), "ATL", 2, "succeeded"),
    (at(9, 23, 59), "BOS", 4, "failed"),
    (at(10, 0), "ATL", 8, "succeeded"),
    (at(10, 3), "ATL", 16, "succeeded"),
    (at(10, 23, 59), "O'Hare", 32, "cancelled"),
    (at(11, 0), "BOS", 64, "succeeded"),
]
# In UTC these days begin at 05:00, 05:00 and 04:00: the second one has 23 hours.
SIZES = {
    DAYS[0]: [("ATL", 1, 2), ("BOS", 1, 4)],
    DAYS[1]: [("ATL", 2, 24), ("O'Hare", 1, 32)],
    DAYS[2]: [("BOS", 1, 64)],
}


def compute(jobs: DataFrame) -> DataFrame:
    return jobs.groupBy("day", "account").agg(sf.count("*").alias("jobs"), sf.sum("size").alias("size"))


def fill(queue: SqlQueue) -> None:
    archive(
        queue, [Done({"account": account, "size": size}, at=when, state=state) for when, account, size, state in JOBS]
    )


def expected(*days: str) -> list[tuple[Any, ...]]:
    return [(date.fromisoformat(day), *row) for day in days for row in SIZES[day]]


class Run:
    """Materialise days of an asset."""

    def __init__(self, queue: SqlQueue, url: str, output: Path, instance: dg.DagsterInstance) -> None:
        self.queue, self.output, self.instance = queue, output, instance
        self.table = f"{queue.database.schema}.sizes"
        self.resource = SqlQueueResource(url=url, schema_name=queue.database.schema)

    def asset(self, function: Callable[[DataFrame], DataFrame] = compute, **changes: Any) -> dg.AssetsDefinition:
        settings: dict[str, Any] = {
            "partitions_def": PARTITIONS,
            "table": self.table,
            "output": lambda: self.output,
            "counted": "jobs",
            **changes,
        }
        return sqlqueue_archive_asset(settings.pop("reads", READS), **settings, name="sizes")(function)

    def __call__(
        self,
        first: str,
        last: str | None = None,
        *,
        asset: dg.AssetsDefinition | None = None,
        spark: bool = True,
        **config: Any,
    ) -> dg.ExecuteInProcessResult:
        chosen: dict[str, Any] = {"partition_key": first}
        if last is not None:
            tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            chosen = {"tags": tags}
        return dg.materialize(
            [asset or self.asset()],
            **chosen,
            run_config={"ops": {"sizes": {"config": config}}},
            resources={
                "sqlqueue": self.resource,
                "spark": SparkResource(session_factory=None if spark else "no.such:session"),
            },
            instance=self.instance,
            raise_on_error=False,
        )

    def in_table(self) -> list[tuple[Any, ...]]:
        return rows(self.queue, "SELECT day, account, jobs, size FROM {s}.sizes ORDER BY day, account")

    def in_files(self) -> list[tuple[Any, ...]]:
        found = []
        for file in self.output.glob("day=*/*.parquet"):
            day = date.fromisoformat(file.parent.name.removeprefix("day="))
            found += [
                (day, row["account"], row["jobs"], row["size"]) for row in pq.ParquetFile(file).read().to_pylist()
            ]
        return sorted(found)


def checks(done: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {one.check_name: one.passed for one in done.get_asset_check_evaluations()}


def reason(done: dg.ExecuteInProcessResult) -> str:
    assert not done.success
    (failed,) = done.get_step_failure_events()
    data = failed.step_failure_data.user_failure_data
    assert data is not None, failed.step_failure_data.error
    return data.description or ""
