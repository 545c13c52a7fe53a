"""The daily asset: a Spark computation over each day's archived events, consuming the day's jobs."""

from collections.abc import Callable, Mapping, Sequence
from datetime import time
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import QueueSpec, check_lease_seconds, check_spec
from dagster_sqlqueue.orchestration.assets import asset_key_among
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.batches import BACKOFF
from dagster_sqlqueue.spark.daily import KEY, ArchiveRead
from dagster_sqlqueue.spark.daily_run import Daily
from dagster_sqlqueue.spark.day_asset import check_days, check_reads, declared
from dagster_sqlqueue.spark.day_metadata import StatisticsOf
from dagster_sqlqueue.spark.day_results import Compute


def sqlqueue_daily_asset(
    spec: QueueSpec[DailyAccount],
    *,
    reads: ArchiveRead,
    partitions_def: dg.DailyPartitionsDefinition,
    table: str | None = None,
    output: Callable[[], Path | str] | None = None,
    name: str | None = None,
    group_name: str = "analytics",
    deps: Sequence[Any] = (),
    statistics: StatisticsOf | None = None,
    counted: str | None = None,
    deadline: time | None = time(8, 0),
    columns: Mapping[str, str] | None = None,
    code_version: str | None = None,
    backoff: Backoff = BACKOFF,
    lease_seconds: float = 60.0,
    pool: str | None = "spark",
    resource_key: str = RESOURCE_KEY,
    asset_keys: Mapping[str, dg.AssetKey] | None = None,
) -> Callable[[Compute], dg.AssetsDefinition]:
    """Turn a function from a day's events to its results into a daily-partitioned asset that consumes the daily jobs.

    A range of days is one run with one Spark session. A day that has no job to take, and whose archived events are those
    that it was computed from, is left as it is: the materialisation shows that, and where that holds for all days no
    Spark is started. Its data version is made of the archive's watermark: how many of its events are archived, and when
    the last one finished.

    Each run checks its days: see `day_checks`.

    Args:
        spec: the queue of the daily jobs.
        reads: the queue of the events, and the columns that the function gets, `day` and `account` among them.
        partitions_def: the days, from midnight to midnight. Hours are shown by its time zone.
        table: the SQL table of the results; None: files only.
        output: asked in the run for the directory of the Parquet files, `day=…` below it, or for its URL (`s3://…`, what
            `fsspec` knows); None: the table only.
        name: the asset's; None: the function's.
        group_name: the asset's group.
        deps: assets it comes from beside the two queues.
        statistics: numbers about one day's rows, shown and plotted for each partition.
        counted: the column of the results that says how many events went into each row, for the check that none is lost.
        deadline: by which a day's jobs must have ended, by the clocks of each account's zone on the day after; None:
            any time.
        columns: what the columns of the results mean, by their names.
        code_version: of the function. With another one every day is computed again.
        backoff: how long the sensor waits before it asks again for a day whose run failed or died.
        lease_seconds: how long a day's batch holds when its run has died, before another run may take it over. It is
            extended four times as often.
        pool: the concurrency pool; a second Spark session would only take the first one's memory.
        resource_key: of the `SqlQueueResource`.
        asset_keys: of the queues whose assets are not `queues/<name>`, by queue; see `asset_key_of`.

    Raises:
        InvalidInput: the queue is none, there is neither table nor output, the partitions are not whole days, `reads` has
            no `day` or no `account`, or the table's name, a column, the deadline or the lease is not usable.
    """
    check_spec(spec)
    sinks.check_given(f"the daily asset of {spec.name!r}", table, output)
    check_days(partitions_def)
    check_reads(reads, needed=KEY)
    if deadline is not None and (not isinstance(deadline, time) or deadline.tzinfo is not None):
        raise InvalidInput(f"deadline is {deadline!r}; give a time of day without a zone: it is each account's own")
    check_lease_seconds(lease_seconds)
    upstream = [asset_key_among(asset_keys, queue) for queue in (reads.queue, spec.name)]

    def decorate(compute: Compute) -> dg.AssetsDefinition:
        work = Daily(
            asset_key=dg.AssetKey(name or str(getattr(compute, "__name__", spec.name))),
            compute=compute,
            daily_queue=spec.name,
            backoff=backoff,
            lease_seconds=lease_seconds,
            reads=reads,
            zone=partitions_def.timezone,
            table=table,
            output=output,
            statistics=statistics,
            counted=counted,
            deadline=deadline,
            columns=columns,
            code_version=code_version,
        )
        return declared(
            work,
            partitions_def=partitions_def,
            group_name=group_name,
            deps=[*upstream, *deps],
            pool=pool,
            resource_key=resource_key,
        )

    return decorate
