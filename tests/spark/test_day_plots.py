"""What the plots of a daily asset's page are drawn of, by the queries that the page makes."""

import asyncio
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from tests.orchestration.support import code_location
from tests.spark.asset_support import Run, daily_asset
from tests.spark.daily_support import DAYS, expected, prepare

SHARES_A_SCHEMA = True
CODE = """
from datetime import date
import dagster as dg
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.spark import SparkResource, sqlqueue_daily_asset
from definitions.days import past_days
from tests.spark.daily_support import DAILY, DAYS, READS, compute

first, last = date.fromisoformat(DAYS[0]), date.fromisoformat(DAYS[-1])
days = past_days(first, last, date.today())
sizes = sqlqueue_daily_asset(DAILY, reads=READS, partitions_def=days, table="results", name="sizes")(compute)
resources = {"sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL")), "spark": SparkResource()}
defs = dg.Definitions(assets=[sizes], resources=resources)
"""
LATEST = """{ assetNodeOrError(assetKey: {path: ["sizes"]}) { ... on AssetNode {
    partitionKeyConnection(limit: 120, ascending: false) { results } } } }"""
PLOTTED = """query Q($partitions: [String!]!) { assetNodeOrError(assetKey: {path: ["sizes"]}) { ... on AssetNode {
    latestMaterializationByPartition(partitions: $partitions) { partition metadataEntries { label
        ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } } } } } }"""


def plots(ask: Callable[..., Any]) -> dict[str, dict[str, float]]:
    """The plots by partition, which is how the page of an asset with partitions opens them: the points of each."""
    keys = ask(LATEST)["partitionKeyConnection"]["results"]
    found: dict[str, dict[str, float]] = {}
    for event in ask(PLOTTED, partitions=keys[::-1])["latestMaterializationByPartition"]:
        for entry in event["metadataEntries"] if event else ():
            number = entry.get("intValue", entry.get("floatValue"))
            if number is not None:
                found.setdefault(entry["label"], {})[event["partition"]] = number
    return found


def test_days_of_a_past_year_are_plotted(
    queue: SqlQueue,
    session: SparkSession,
    output: Path,
    resources: dict[str, Any],
    tmp_path: Path,
) -> None:
    prepare(queue)
    file = tmp_path / "code_location.py"
    file.write_text(CODE)
    with dg.instance_for_test() as instance, WorkspaceProcessContext(instance, code_location(file)) as context:
        assert Run(daily_asset(queue, output), resources, instance)(DAYS[0], DAYS[-1]).success

        def ask(query: str, **variables: Any) -> Any:
            request = context.create_request_context()
            answer = asyncio.run(create_schema().execute_async(query, context_value=request, variables=variables))
            assert not answer.errors, answer.errors
            assert answer.data is not None
            return answer.data["assetNodeOrError"]

        found = plots(ask)
    assert date.today().year > date.fromisoformat(DAYS[-1]).year
    due = {day: expected([day]) for day in DAYS}
    assert found["dagster/partition_row_count"] == {day: len(rows) for day, rows in due.items()}
    assert found["events"] == {day: sum(events for _, _, events, _ in rows) for day, rows in due.items()}
    assert found["jobs_read"].keys() == found["run_p95_seconds"].keys() == set(DAYS)
