"""What the plots of a queue's page are drawn of, by the query that the page makes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import freeze_time
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, build_sqlqueue_sensor
from tests.orchestration.support import Deployment, changed, code_location, remembered
from tests.orchestration.test_queue_freshness import CODE
from tests.support import rows

PLOTS = """{ assetOrError(assetKey: {path: ["queues", "work"]}) { ... on Asset {
    assetEventHistory(limit: 100, eventTypeSelectors: [MATERIALIZATION, OBSERVATION]) { results {
        ... on MaterializationEvent { timestamp metadataEntries { ...Entry } }
        ... on ObservationEvent { timestamp metadataEntries { ...Entry } } } } } } }
  fragment Entry on MetadataEntry { label
    ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } }
"""
MINUTE = timedelta(minutes=1)


def drawn(context: WorkspaceProcessContext) -> dict[str, list[tuple[float, float]]]:
    """Each plot of the page: its points, by their times."""
    answer = create_schema().execute(PLOTS, context_value=context.create_request_context())
    assert not answer.errors
    assert answer.data is not None
    found = defaultdict(list)
    for event in answer.data["assetOrError"]["assetEventHistory"]["results"]:
        for entry in event["metadataEntries"]:
            number = entry.get("intValue", entry.get("floatValue"))
            if number is not None:
                found[entry["label"]].append((int(event["timestamp"]) / 1000, number))
    return {label: sorted(points) for label, points in found.items()}


def a_minute_later(queue: SqlQueue, cursor: str) -> str:
    """Let a minute pass for all that the database has; gives the cursor as it is then."""
    past = "{0} = {0} - interval '1 minute'"
    for table, columns in (("job", ["run_at", "available_at"]), ("job_archive", ["run_at", "finished_at"])):
        rows(queue, f"UPDATE {{s}}.{table} SET {', '.join(past.format(column) for column in columns)}")
    then = {
        name: (datetime.fromisoformat(at) - MINUTE).isoformat()
        for name, at in remembered(cursor).items()
        if name in {"observed_at", "checked_at", "early_at"} and at is not None
    }
    return changed(cursor, **then)


def values(points: Sequence[tuple[float, float]]) -> list[float]:
    return [value for _, value in points]


@pytest.mark.usefixtures("environment")
def test_the_plots_have_a_point_for_each_minute_from_the_first_hour_on(
    queue: SqlQueue,
    deployment: Deployment,
    consumer: QueueConsumer[object],
    persistent: dg.DagsterInstance,
    tmp_path: Path,
) -> None:
    """Forty jobs come at once, and from half an hour on one is done in each minute; ticks in between report nothing."""
    deployment = replace(deployment, instance=persistent)
    sensor = build_sqlqueue_sensor(consumer)
    file = tmp_path / "code_location.py"
    file.write_text(CODE)
    began = datetime.now(UTC) - timedelta(hours=1)
    deployment.enqueue_many(40)
    cursor = None
    for minute in range(60):
        if minute >= 30:
            queue.complete(queue.claim("work", limit=1, worker="w"))
        with freeze_time(began + minute * MINUTE):
            for _ in range(2):
                result = deployment.tick(sensor, cursor=cursor)
                cursor = result.cursor
                for event in result.asset_events:
                    persistent.report_runless_asset_event(event)
        cursor = a_minute_later(queue, cursor)
    with WorkspaceProcessContext(persistent, code_location(file)) as context:
        plots = drawn(context)
    assert plots.keys() == {
        *("ready", "most_leased", "scheduled", "dead_letters", "oldest_ready_seconds"),
        *("in_per_minute", "done_per_minute", "wait_seconds_p95"),
    }
    for label, points in plots.items():
        assert len(points) == 60, label
        gaps = {round(later - earlier) for (earlier, _), (later, _) in pairwise(points)}
        assert gaps == {60}, label
    assert values(plots["ready"]) == [40] * 30 + [40 - done for done in range(1, 31)]
    assert values(plots["in_per_minute"]) == [40] + [0] * 59
    assert values(plots["done_per_minute"]) == [0] * 30 + [1] * 30
    assert [value // 60 for value in values(plots["oldest_ready_seconds"])] == list(range(60))
