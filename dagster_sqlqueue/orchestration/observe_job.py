"""The job that observes a queue on its asset. It links the queue's sensor with the asset's page."""

import warnings
from dataclasses import replace
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration.assets import asset_key_or_usual
from dagster_sqlqueue.orchestration.page_links import QUEUE_TAG, links_in_run
from dagster_sqlqueue.orchestration.queue_page import current_page_metadata
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.schema import migrations


def build_observe_job(
    spec: QueueSpec[Any],
    *,
    name: str | None = None,
    asset_key: dg.AssetKey | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.JobDefinition:
    """Build the job that observes a queue: a run reports the same numbers and tables on its asset as a tick of the sensor,
    and changes nothing.

    Give it to `build_sqlqueue_sensor` as `observe_job`: the asset's page then names the sensor under *Automation*. Dagster
    finds the sensors of an asset by the jobs that they target, and an asset's jobs are those that execute it: here, as an
    observable asset, while the queue's own asset stays an external one. The UI shows such a job without a launchpad, which
    the job that drains the queue must keep: so it is a job of its own. No tick requests a run of it.

    Args:
        spec: the queue.
        name: the job's; None: `observe_<queue>`, with another resource key `<key>_observe_<queue>`.
        asset_key: of the queue's asset; None: `queues/<name>`.
        resource_key: of the queue's resource.

    Raises:
        InvalidInput: the queue, or a key, is none.
    """
    key = asset_key_or_usual(spec, asset_key)
    usual = f"observe_{spec.name}"
    name = name or (usual if resource_key == RESOURCE_KEY else f"{resource_key}_{usual}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)

        @dg.multi_observable_source_asset(specs=[dg.AssetSpec(key)], name=f"{name}_op")  # type: ignore[untyped-decorator]
        @under_key(resource_key)
        def observe(context: dg.AssetExecutionContext, sqlqueue: SqlQueueResource) -> dg.ObserveResult:
            queue = sqlqueue.queue
            with library_errors_as_failures():
                migrations.check(queue.database)
                # This job is not the one that drains the queue.
                links = replace(links_in_run(context.op_execution_context, spec.name), drain=None)
                return dg.ObserveResult(asset_key=key, metadata=current_page_metadata(queue, spec.name, links))

    # Resolved with a resource that stands in for the user's, which is bound when the definitions are put together.
    stand_in = {resource_key: dg.ResourceDefinition.none_resource()}
    resolved = dg.define_asset_job(name, selection=dg.AssetSelection.assets(key)).resolve(
        asset_graph=AssetGraph.from_assets([observe]), resource_defs=stand_in
    )
    return dg.JobDefinition(
        graph_def=resolved.graph,
        asset_layer=resolved.asset_layer,
        name=name,
        executor_def=dg.in_process_executor,
        description=f"Observes the queue {spec.name!r} on its asset, as its sensor does, and changes nothing. It is here so"
        " that the asset's page names the sensor: no tick requests a run of it.",
        tags={QUEUE_TAG: spec.name},
    )
