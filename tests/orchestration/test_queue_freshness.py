"""What the overview of a queue's page shows, and its freshness, both as Dagster itself finds them."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.test_utils import freeze_time
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.freshness import FreshnessDaemon
from dagster_graphql.schema import create_schema

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, build_sqlqueue_sensor, queue_asset_key
from tests.orchestration.support import Deployment, code_location
from tests.orchestration.test_checks import ago
from tests.support import rows

CODE = """
from datetime import timedelta
import dagster as dg
from dagster_sqlqueue.orchestration import build_sqlqueue_definitions, queue_consumer
from tests.orchestration.support import WORK, of_environment

@queue_consumer(WORK)
def handle(job): ...

defs = build_sqlqueue_definitions(
    handle,
    resource=of_environment(),
    freshness_policy=dg.FreshnessPolicy.time_window(timedelta(hours=3), warn_window=timedelta(hours=2)),
)
"""
OVERVIEW = """{ assetOrError(assetKey: {path: ["queues", "work"]}) { ... on Asset {
    assetMaterializations(limit: 1) { timestamp metadataEntries { ...Entry } }
    assetObservations(limit: 1) { timestamp metadataEntries { ...Entry } } } } }
  fragment Entry on MetadataEntry { label
    ... on IntMetadataEntry { intValue } ... on TimestampMetadataEntry { timestamp }
    ... on MarkdownMetadataEntry { mdStr } }
"""


class Page:
    """The page of the queue in a Dagster that has its code location."""

    def __init__(self, context: WorkspaceProcessContext) -> None:
        self._context = context

    def table(self) -> dict[str, Any]:
        """The overview's table, by its own query and its own choice of the event."""
        request = self._context.create_request_context()
        answer = asyncio.run(create_schema().execute_async(OVERVIEW, context_value=request))
        assert not answer.errors
        assert answer.data is not None
        found = answer.data["assetOrError"]
        (event,) = found["assetMaterializations"] or found["assetObservations"]
        values = [(dict(entry), entry["label"]) for entry in event["metadataEntries"]]
        return {label: next((v for k, v in entry.items() if k != "label"), None) for entry, label in values}

    def freshness(self, hours: float = 0) -> FreshnessState:
        """What Dagster's daemon finds so many hours from now."""
        request = self._context.create_request_context()
        node = request.asset_graph.get(queue_asset_key("work"))
        with freeze_time(datetime.now(UTC) + timedelta(hours=hours)):
            return asyncio.run(FreshnessDaemon()._compute_asset_freshness_state(request, node))


def later(deployment: Deployment, sensor: dg.SensorDefinition, cursor: str | None) -> Any:
    """A tick, whose events are reported as the daemon does."""
    result = deployment.tick(sensor, cursor=cursor)
    for event in result.asset_events:
        deployment.instance.report_runless_asset_event(event)
    return result


@pytest.mark.usefixtures("environment")
def test_a_stuck_queue_is_stale_and_its_overview_has_since_when(
    queue: SqlQueue,
    deployment: Deployment,
    consumer: QueueConsumer[Any],
    persistent: dg.DagsterInstance,
    tmp_path: Path,
) -> None:
    deployment = replace(deployment, instance=persistent)
    sensor = build_sqlqueue_sensor(consumer)
    file = tmp_path / "code_location.py"
    file.write_text(CODE)
    with WorkspaceProcessContext(persistent, code_location(file)) as context:
        page = Page(context)
        assert page.freshness() is FreshnessState.UNKNOWN
        idle = later(deployment, sensor, None)
        assert page.freshness() is FreshnessState.PASS, "nothing was due"
        assert page.table()["ready"] == 0
        deployment.enqueue_many(3)
        arrived = later(deployment, sensor, idle.cursor)
        ((since,),) = rows(queue, "SELECT min(available_at) FROM {s}.job")
        for _ in range(3):
            shown = page.table()
            assert shown["ready"] == 3
            assert shown["oldest_ready_since"] == pytest.approx(since.timestamp(), abs=0.01)
            assert shown["now"] == "[newer observations](/assets/queues/work?view=events)"
            # Nothing ends the jobs.
            arrived = later(deployment, sensor, ago(arrived.cursor, 60))
            assert [type(event) for event in arrived.asset_events][:1] == [dg.AssetObservation]
        assert [page.freshness(hours) for hours in (1, 2.5, 4)] == [
            FreshnessState.PASS,
            FreshnessState.WARN,
            FreshnessState.FAIL,
        ]
        # A job that is leased and due in turn is no progress either.
        claimed = queue.claim("work", limit=3, worker="w")
        leased = later(deployment, sensor, ago(arrived.cursor, 60))
        queue.release(claimed)
        due = later(deployment, sensor, ago(leased.cursor, 60))
        assert not [
            one for one in (*leased.asset_events, *due.asset_events) if isinstance(one, dg.AssetMaterialization)
        ]
        assert deployment.drain(consumer).success
        assert page.table()["ready"] == 0
        assert "oldest_ready_since" not in page.table()
        assert page.freshness() is FreshnessState.PASS
        hour = later(deployment, sensor, ago(due.cursor, 3_700))
        assert page.freshness() is FreshnessState.PASS, hour


def test_a_trickle_of_jobs_is_reported_once_a_minute(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Any]
) -> None:
    """Jobs come and end between the ticks; only once in ten minutes is that a reason to report before the minute is over."""
    sensor = build_sqlqueue_sensor(consumer)
    cursor = deployment.tick(sensor).cursor
    reported = []
    for n in range(6):
        if n % 2:
            queue.complete(queue.claim("work", limit=1, worker="w"))
        else:
            deployment.enqueue_many(1)
        result = deployment.tick(sensor, cursor=cursor)
        cursor = result.cursor
        reported.append(bool(result.asset_events))
    assert reported == [True, False, False, False, False, False]
    queue.pause("work")
    paused = deployment.tick(sensor, cursor=cursor).asset_events[0]
    assert "Paused" in paused.metadata["summary"].value
