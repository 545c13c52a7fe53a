"""The job that observes a queue on its asset. It links the queue's sensor with the asset's page."""

from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration.assets import queue_asset_key
from dagster_sqlqueue.orchestration.page_links import QUEUE_TAG, links_in_run
from dagster_sqlqueue.orchestration.queue_page import figures_now
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_errors import told_plainly
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
    finds the sensors of an asset by the jobs that they target, and a job belongs to an external asset only if it declares
    the asset itself. The UI takes such a job for one that materialises assets, without a launchpad, which the job that
    drains the queue must keep: so it is a job of its own. No tick requests a run of it.

    Dagster has no public function for the declaration; where a version lacks the internal one, the job is an ordinary one,
    and the link is missing.

    Args:
        spec: the queue.
        name: the job's; None: `observe_<queue>`, with another resource key `<key>_observe_<queue>`.
        asset_key: of the queue's asset; None: `queues/<name>`.
        resource_key: of the queue's resource.
    """
    key = asset_key or queue_asset_key(spec.name)
    usual = f"observe_{spec.name}"
    name = name or (usual if resource_key == RESOURCE_KEY else f"{resource_key}_{usual}")

    @dg.op(
        name=f"{name}_op",
        description=f"Observes the queue {spec.name!r} on its asset.",
        out=dg.Out(dg.Nothing),
        tags={"kind": "sqlqueue"},
    )
    @under_key(resource_key)
    def observe(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> None:
        queue = sqlqueue.queue
        with told_plainly():
            migrations.check(queue.database)
            # This job is not the one that drains the queue.
            links = replace(links_in_run(context, spec.name), drain=None)
            context.log_event(dg.AssetObservation(key, metadata=figures_now(queue, spec.name, links)))

    @dg.graph(name=name)
    def observing() -> None:
        observe()

    return dg.JobDefinition(
        graph_def=observing,
        name=name,
        executor_def=dg.in_process_executor,
        description=f"Observes the queue {spec.name!r} on its asset, as its sensor does, and changes nothing. It is here so"
        " that the asset's page names the sensor: no tick requests a run of it.",
        tags={QUEUE_TAG: spec.name},
        **_declared(key),
    )


def _declared(key: dg.AssetKey) -> dict[str, Any]:
    """The argument with which a job declares an external asset as its own; empty, if this version of Dagster has none."""
    try:
        from dagster._core.definitions.assets.job.asset_layer import AssetLayer

        return {"asset_layer": AssetLayer.for_external_job([key])}
    except (ImportError, AttributeError):
        return {}
