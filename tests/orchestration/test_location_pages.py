"""Code locations, as the UI's server shows them."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema

from dagster_sqlqueue.__about__ import __version__
from tests.orchestration.support import code_location

LOCATION = """
import dagster as dg
from dagster_sqlqueue import Job
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_definitions, queue_consumer
from dagster_sqlqueue.payload.serialization import AnyObject

@queue_consumer(queue="emails", payload=AnyObject)
def send(job: Job[AnyObject]) -> None: ...

defs = build_sqlqueue_definitions(send, resource=SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL")))
"""
DAILY_LOCATION = """
import dagster as dg
from dagster_sqlqueue import Job, QueueSpec
from dagster_sqlqueue.orchestration import (
    DailyAccount, SqlQueueResource, build_fanout_asset, build_fanout_schedule, build_observe_job, queue_consumer
)

spec = QueueSpec("daily", DailyAccount)
fan_out = build_fanout_asset(spec, list, dg.DailyPartitionsDefinition(start_date="2026-01-01"))

@queue_consumer(spec, sensor={"observe_job": build_observe_job(spec)})
def analyse(job: Job[DailyAccount]) -> None: ...

defs = dg.Definitions(
    assets=[fan_out],
    jobs=[analyse.job],
    schedules=[build_fanout_schedule(fan_out)],
    sensors=[analyse.sensor],
    resources={"sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))},
)
"""
LIBRARIES = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
    ... on RepositoryLocation { dagsterLibraryVersions { name version } } } } } } }"""

AUTOMATION = """{
  assetNodes { assetKey { path } isExecutable type { __typename } configField { name } computeKind isObservable jobNames
    targetingInstigators { ... on Sensor { name } ... on Schedule { name } } }
  repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name isAssetJob } } } }
}"""


def test_graphql_lists_the_library_with_its_version(persistent: dg.DagsterInstance, tmp_path: Path) -> None:
    """Among those of a code location, as Dagster's own integrations are; in `make prove` it has a process of its own."""
    file = tmp_path / "code_location.py"
    file.write_text(LOCATION)
    (entry,) = answered(LIBRARIES, persistent, file)["workspaceOrError"]["locationEntries"]
    found = {one["name"]: one["version"] for one in entry["locationOrLoadError"]["dagsterLibraryVersions"]}
    assert found.keys() >= {"dagster", "dagster-sqlqueue"}
    assert found["dagster-sqlqueue"] == __version__


def answered(query: str, instance: dg.DagsterInstance, file: Path) -> dict[str, Any]:
    """What the UI's server answers about a code location."""
    with WorkspaceProcessContext(instance, code_location(file)) as context:
        answer = create_schema().execute(query, context_value=context.create_request_context())
    assert not answer.errors
    assert answer.data is not None
    return answer.data


def test_the_page_of_the_queue_names_its_sensor(persistent: dg.DagsterInstance, tmp_path: Path) -> None:
    """By the query that the asset's page makes. The asset stays external, and the drain job keeps its launchpad."""
    file = tmp_path / "code_location.py"
    file.write_text(LOCATION)
    found = answered(AUTOMATION, persistent, file)
    assert found["assetNodes"] == [
        {
            "assetKey": {"path": ["queues", "emails"]},
            "isExecutable": False,
            "type": {"__typename": "RegularDagsterType"},
            "configField": {"name": "config"},
            "computeKind": None,
            "isObservable": False,
            "jobNames": ["observe_emails"],
            "targetingInstigators": [{"name": "emails_sensor"}],
        }
    ]
    (repository,) = found["repositoriesOrError"]["nodes"]
    its = {job["name"]: job["isAssetJob"] for job in repository["jobs"]}
    assert {name for name, is_asset_job in its.items() if is_asset_job} == {"observe_emails", "__ASSET_JOB"}
    assert its.keys() >= {"drain_emails", "create_emails", "emails_show"}


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`:DeprecationWarning")
def test_the_page_of_a_daily_queue_names_its_schedule_and_its_sensor(
    persistent: dg.DagsterInstance, tmp_path: Path
) -> None:
    file = tmp_path / "code_location.py"
    file.write_text(DAILY_LOCATION)
    found = answered(AUTOMATION, persistent, file)
    (node,) = found["assetNodes"]
    assert node["assetKey"] == {"path": ["queues", "daily"]}
    assert {one["name"] for one in node["targetingInstigators"]} == {"daily_fanout", "daily_sensor"}
