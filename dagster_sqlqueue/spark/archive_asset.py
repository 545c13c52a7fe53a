"""An asset made of closed days of the archive: nothing is claimed, and a day's partition is replaced as a whole."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.assets import asset_key_among
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.archive_run import ArchiveDays
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.day_asset import check_days, declared
from dagster_sqlqueue.spark.day_metadata import StatisticsOf
from dagster_sqlqueue.spark.day_results import Compute


def sqlqueue_archive_asset(
    reads: ArchiveRead,
    *,
    partitions_def: dg.DailyPartitionsDefinition,
    table: str | None = None,
    output: Callable[[], Path | str] | None = None,
    key: Sequence[str] | None = None,
    name: str | None = None,
    group_name: str = "analytics",
    deps: Sequence[Any] = (),
    statistics: StatisticsOf | None = None,
    counted: str | None = None,
    columns: Mapping[str, str] | None = None,
    code_version: str | None = None,
    pool: str | None = "spark",
    resource_key: str = RESOURCE_KEY,
    asset_keys: Mapping[str, dg.AssetKey] | None = None,
) -> Callable[[Compute], dg.AssetsDefinition]:
    """Turn a function from a day's archived jobs to its results into a daily-partitioned asset.

    Nothing is claimed: the archive's rows do not change, so a day that is over gives the same results however often it is
    computed, and its partition is replaced. The function gets the columns of `reads`, those that every job has (`state`,
    `attempt`, `run_at`, `started_at`, `finished_at`), and `day`; its results have `day` and the other columns of `key`.

    Where `reads` has a column `day`, that field says to which day a job belongs. Else it is the day on which the job
    finished, by the time zone of the partitions.

    A day that is not over is refused, as is one with jobs on the queue where the day is a field. A day whose archived jobs
    are those that it was computed from is left as it is, and where that holds for all of a run no Spark is started.

    Args:
        reads: the queue, and the columns that the function gets.
        partitions_def: the days, from midnight to midnight by its time zone.
        table: the SQL table of the results, replaced day by day in one transaction; None: files only.
        output: asked in the run for the directory of the Parquet files, `day=…` below it, or for its URL (`s3://…`, what
            `fsspec` knows); None: the table only.
        key: the columns that identify a row, `day` first; None: `day`, and `account` where `reads` has it.
        name: the asset's; None: the function's.
        group_name: the asset's group.
        deps: assets it comes from beside the queue.
        statistics: numbers about one day's rows, shown and plotted for each partition.
        counted: the column of the results that says how many jobs went into each row, for the check that none is lost.
        columns: what the columns of the results mean, by their names.
        code_version: of the function. With another one every day is computed again.
        pool: the concurrency pool.
        resource_key: of the `SqlQueueResource`.
        asset_keys: of queues whose assets are not `queues/<name>`, by queue; see `asset_key_of`.

    Raises:
        InvalidInput: there is neither table nor output, the key does not begin with `day`, the partitions are not whole
            days, or the table's name, the partitions' time zone or a column of `reads` is not usable.
    """
    sinks.check_given(f"the archive of {reads.queue!r}", table, output)
    check_days(partitions_def)
    by_account = "account" in reads.columns
    columns_of_key = tuple(key) if key is not None else ("day", "account") if by_account else ("day",)
    if columns_of_key[:1] != ("day",):
        raise InvalidInput(f"key is {list(columns_of_key)}; its first column must be 'day'")

    def decorate(compute: Compute) -> dg.AssetsDefinition:
        work = ArchiveDays(
            asset_key=dg.AssetKey(name or str(getattr(compute, "__name__", reads.queue))),
            compute=compute,
            reads=reads,
            zone=partitions_def.timezone,
            key=columns_of_key,
            table=table,
            output=output,
            statistics=statistics,
            counted=counted,
            columns=columns,
            code_version=code_version,
        )
        upstream = asset_key_among(asset_keys, reads.queue)
        return declared(
            work,
            partitions_def=partitions_def,
            group_name=group_name,
            deps=[upstream, *deps],
            pool=pool,
            resource_key=resource_key,
        )

    return decorate
