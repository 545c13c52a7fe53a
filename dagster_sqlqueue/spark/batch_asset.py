"""An asset made of any queue's jobs: a function from a sealed batch to frames, with any partitions, or none."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.job import Mode, mode_of
from dagster_sqlqueue.model.queue import QueueSpec, check_lease_seconds, check_spec
from dagster_sqlqueue.orchestration.assets import asset_key_among, single_run_backfills
from dagster_sqlqueue.orchestration.descriptions import description_of
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.consume_verbs import Writes, consume
from dagster_sqlqueue.spark.consumption import Consumption
from dagster_sqlqueue.spark.resource import SparkResource
from dagster_sqlqueue.spark.source import register_source
from dagster_sqlqueue.spark.task_errors import task_errors_restored

Results: TypeAlias = Mapping[str, "DataFrame | pa.Table"] | None
"""The rows to add to SQL tables, by the table's name; None: the function has staged everything itself."""

OfBatch = Callable[[Consumption], Results]


def sqlqueue_batch_asset(
    spec: QueueSpec[Any],
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    filter: Callable[[Any], Mapping[str, Any]] | None = None,
    writes: Writes = (),
    name: str | None = None,
    group_name: str = "analytics",
    deps: Sequence[Any] = (),
    mode: Mode | None = None,
    lease_seconds: float = 60.0,
    backoff: Backoff = batches.BACKOFF,
    code_version: str | None = None,
    pool: str | None = "spark",
    resource_key: str = RESOURCE_KEY,
    asset_keys: Mapping[str, dg.AssetKey] | None = None,
) -> Callable[[OfBatch], dg.AssetsDefinition]:
    """Turn a function from a batch to frames into an asset that consumes the due jobs of a queue.

    A run seals a batch for each of its partitions, calls the function with it, and publishes what that returned and staged
    in one transaction, which ends the jobs. The function gets the `Consumption`: it reads `jobs()`, returns the rows to add
    to tables, may stage more with `write_sql` (also to replace rows) and `write_parquet`, and gives single jobs other
    outcomes with `fail`, `retry` and `for_each_job`. A function that raises leaves the jobs of its partition due; partitions
    that the run has published before stay published.

    Args:
        spec: the queue. The fields of its payload are typed columns.
        partitions_def: of any kind; None: a run consumes all due jobs.
        filter: from the key of a partition (of several dimensions: a `MultiPartitionKey`) to what the payloads of its jobs
            contain, such as `{"week": key}`.
        writes: what the function will write to, checked before a batch is sealed, as for `consume`.
        name: the asset's; None: the function's.
        group_name: the asset's group.
        deps: assets it comes from beside the queue.
        mode: as for `consume`.
        lease_seconds: as for `consume`.
        backoff: as for `consume`.
        code_version: of the function.
        pool: the concurrency pool; a second Spark session would only take the first one's memory.
        resource_key: of the `SqlQueueResource`.
        asset_keys: of queues whose assets are not `queues/<name>`, by queue; see `asset_key_of`.

    Raises:
        InvalidInput: the queue, the mode or the lease is none, there are partitions and no filter, or a filter and no
            partitions.
    """
    check_spec(spec)
    check_lease_seconds(lease_seconds)
    if mode is not None:
        mode = mode_of(mode)
    if (partitions_def is None) != (filter is None):
        raise InvalidInput(
            f"the asset of {spec.name!r} needs partitions_def and filter together, or neither: the filter says which jobs"
            " belong to a partition"
        )

    def decorate(compute: OfBatch) -> dg.AssetsDefinition:
        key = dg.AssetKey(name or str(getattr(compute, "__name__", spec.name)))
        own = key.path[-1]

        def consumed(
            context: dg.AssetExecutionContext, sqlqueue: SqlQueueResource, session: SparkSession, part: Any
        ) -> dict[str, Any]:
            """Consume a partition, or all. Returns its metadata."""
            with consume(
                sqlqueue.queue,
                session,
                spec,
                key=own if part is None else f"{own}/{part}",
                filter=None if filter is None else filter(part),
                owner=f"run/{context.run.run_id}",
                mode=mode,
                writes=writes,
                lease_seconds=lease_seconds,
                backoff=backoff,
            ) as work:
                found = compute(work)
                if not isinstance(found, Mapping | None):
                    raise InvalidInput(
                        f"{own} returned a {type(found).__name__}; it must return a mapping from tables to their rows, or"
                        " None"
                    )
                rows = {table: work.write_sql(frame, table) for table, frame in (found or {}).items()}
            # Here everything is published: an error of the function, or of the publication, fails the run.
            return {
                "jobs_consumed": work.job_count,
                **work.settled,
                **{f"rows/{table}": n for table, n in rows.items()},
            }

        with single_run_backfills():

            @dg.asset(
                key=key,
                partitions_def=partitions_def,
                backfill_policy=None if partitions_def is None else dg.BackfillPolicy.single_run(),
                group_name=group_name,
                kinds={"spark"},
                deps=[asset_key_among(asset_keys, spec.name), *deps],
                description=description_of(compute),
                code_version=code_version,
                pool=pool,
            )
            @under_key(resource_key)
            def of_batches(
                context: dg.AssetExecutionContext, sqlqueue: SqlQueueResource, spark: SparkResource
            ) -> dg.MaterializeResult:  # type: ignore[type-arg]
                with library_errors_as_failures(), task_errors_restored(), spark.session(own) as session:
                    register_source(session, sqlqueue.url, sqlqueue.schema_name, payload={spec.name: spec.payload})
                    if partitions_def is None:
                        return dg.MaterializeResult(metadata=consumed(context, sqlqueue, session, None))
                    for part in _parts(context, partitions_def):
                        context.add_asset_metadata(consumed(context, sqlqueue, session, part), partition_key=str(part))
                    return dg.MaterializeResult()

        return of_batches

    return decorate


def _parts(context: dg.AssetExecutionContext, partitions_def: dg.PartitionsDefinition[Any]) -> Sequence[Any]:
    """Return the keys of the run's partitions, those of several dimensions as such."""
    keys = context.partition_keys
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        return [partitions_def.get_partition_key_from_str(str(key)) for key in keys]
    return list(keys)
