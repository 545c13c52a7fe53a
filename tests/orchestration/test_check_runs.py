"""Checks that users execute from the queue's page, by what the page sends to GraphQL (`ExecuteChecksButton.tsx`)."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema

from dagster_sqlqueue.orchestration import queue_asset_key
from tests.orchestration.support import Deployment, NewInstance, code_location

NAMES = ["dead_letters", "oldest_ready", "stale_writes", "stalled_bucket"]
CODE = """
import dagster as dg
from dagster_sqlqueue.orchestration import build_sqlqueue_definitions, queue_consumer
from tests.orchestration.support import WORK, of_environment

@queue_consumer(WORK)
def handle(job): ...

defs = dg.Definitions.merge(
    build_sqlqueue_definitions(handle, resource=of_environment()),
    dg.Definitions(
        executor=dg.in_process_executor,
        jobs=[dg.define_asset_job("every_check", dg.AssetSelection.all_asset_checks())],
    ),
)
"""
PAGE = """{ assetNodeOrError(assetKey: {path: ["queues", "work"]}) { ... on AssetNode {
    jobNames
    isPartitioned
    repository { name location { name } }
    assetChecksOrError { ... on AssetChecks { checks { name canExecuteIndividually jobNames } } } } } }"""
LAUNCH = """mutation ($executionParams: ExecutionParams!) {
  launchPipelineExecution(executionParams: $executionParams) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on InvalidSubsetError { message }
    ... on PythonError { message } } }"""

Ask = Callable[..., Any]


class InThread(SyncInMemoryRunLauncher):
    """Executes a run in a thread without an event loop: GraphQL has one in its own."""

    def launch_run(self, context: LaunchRunContext) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(super().launch_run, context).result()


@pytest.fixture
def instance(new_instance: NewInstance) -> Iterator[dg.DagsterInstance]:
    """Its runs are over when they have been launched."""
    launcher = {"module": __name__, "class": "InThread"}
    coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    with new_instance(run_launcher=launcher, run_coordinator=coordinator) as made:
        yield made


@pytest.fixture
def ask(environment: None, instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Ask]:
    file = tmp_path / "code_location.py"
    file.write_text(CODE)
    schema = create_schema()
    with WorkspaceProcessContext(instance, code_location(file)) as process:

        def asked(query: str, **variables: Any) -> Any:
            request = process.create_request_context()
            answer = asyncio.run(schema.execute_async(query, variables=variables, context_value=request))
            assert not answer.errors
            assert answer.data is not None
            (found,) = answer.data.values()
            return found

        yield asked


def params(node: dict[str, Any], checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the page sends to execute these checks: by their first common job, else by the asset's."""
    common = [name for name in checks[0]["jobNames"] if all(name in check["jobNames"] for check in checks)]
    return {
        "mode": "default",
        "executionMetadata": {},
        "runConfigData": "{}",
        "selector": {
            "jobName": (common or node["jobNames"])[0],
            "repositoryLocationName": node["repository"]["location"]["name"],
            "repositoryName": node["repository"]["name"],
            "assetSelection": [],
            "assetCheckSelection": [
                {"assetKey": {"path": ["queues", "work"]}, "name": check["name"]} for check in checks
            ],
        },
    }


def test_the_page_executes_each_check_and_all(ask: Ask, instance: dg.DagsterInstance, deployment: Deployment) -> None:
    node = ask(PAGE)
    assert not node["isPartitioned"]
    checks = sorted(node["assetChecksOrError"]["checks"], key=lambda check: check["name"])
    assert [check["name"] for check in checks] == NAMES
    assert {check["canExecuteIndividually"] for check in checks} == {"CAN_EXECUTE"}
    for chosen in (checks, *([check] for check in checks)):
        launched = ask(LAUNCH, executionParams=params(node, chosen))
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run = instance.get_run_by_id(launched["run"]["runId"])
        assert run is not None
        assert run.status is dg.DagsterRunStatus.SUCCESS
        assert evaluated(instance, run.run_id) == {check["name"]: True for check in chosen}


def test_jobs_of_checks_have_the_asset_job_and_those_that_users_define(ask: Ask, deployment: Deployment) -> None:
    """The job that observes the queue has no checks: Dagster answers InvalidSubsetError to a launch of checks by it."""
    node = ask(PAGE)
    checks = node["assetChecksOrError"]["checks"]
    assert {tuple(sorted(check["jobNames"])) for check in checks} == {("__ASSET_JOB", "every_check")}
    assert node["jobNames"] == ["observe_work"]
    sent = params(node, checks)
    sent["selector"]["jobName"] = "observe_work"
    assert ask(LAUNCH, executionParams=sent)["__typename"] == "InvalidSubsetError"
    sent["selector"]["jobName"] = "every_check"
    assert ask(LAUNCH, executionParams=sent)["__typename"] == "LaunchRunSuccess"


def evaluated(instance: dg.DagsterInstance, run_id: str) -> dict[str, bool]:
    """The answers of a run's checks."""
    logs = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    found = [log.get_dagster_event().asset_check_evaluation_data for log in logs]
    assert {check.asset_key for check in found} == {queue_asset_key("work")}
    return {check.check_name: check.passed for check in found}
