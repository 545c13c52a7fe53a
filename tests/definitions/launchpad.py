"""Launches jobs of the code locations by GraphQL, as the launchpad of the UI does, and prints what became of them as JSON.

`python -m tests.definitions.launchpad DAY [--hurry] JOB…`; without the name of a job it launches every one.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget, WorkspaceFileTarget, WorkspaceLoadTarget
from dagster_graphql.schema import create_schema

from tests.gate.patience import FULL

PROJECT = Path(__file__).resolve().parents[2]
LOCATIONS = ("events", "reminders", "daily_analytics")
ASSETS = "__ASSET_JOB"
"""The job of assets that are materialised from their pages."""

REPOSITORIES = """{ repositoriesOrError { ... on RepositoryConnection { nodes {
    name location { name }
    jobs { name partitionKeysOrError { partitionKeys } }
    assetNodes { assetKey { path } isMaterializable isPartitioned } } } } }"""
DEFAULT = """query Q($selector: PipelineSelector!) { runConfigSchemaOrError(selector: $selector) {
    __typename ... on RunConfigSchema { rootDefaultYaml } } }"""
VALID = """query Q($selector: PipelineSelector!, $config: RunConfigData!) {
    isPipelineConfigValid(pipeline: $selector, runConfigData: $config, mode: "default") {
    __typename ... on RunConfigValidationInvalid { errors { message } } } }"""
LAUNCH = """mutation M($selector: JobOrPipelineSelector!, $config: RunConfigData!, $tags: [ExecutionTag!]!) {
    launchPipelineExecution(executionParams: {
        selector: $selector, runConfigData: $config, executionMetadata: {tags: $tags} }) {
    __typename ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } } ... on PythonError { message stack } } }"""


@dataclass(frozen=True)
class Launchable:
    """A job, or an asset by itself."""

    name: str
    selector: dict[str, Any]
    partitioned: bool


class Webserver:
    """What the webserver answers for the three locations: each in this process, or, in `make prove`, in one of its own."""

    def __init__(self, instance: dg.DagsterInstance, process: WorkspaceProcessContext) -> None:
        self._instance = instance
        self._process = process
        self._schema = create_schema()

    def launchables(self) -> Iterator[Launchable]:
        for node in self._ask(REPOSITORIES)["nodes"]:
            place = {"repositoryLocationName": node["location"]["name"], "repositoryName": node["name"]}
            for job in node["jobs"]:
                if not job["name"].startswith(ASSETS):
                    keys = job["partitionKeysOrError"]["partitionKeys"]
                    yield Launchable(job["name"], {**place, "pipelineName": job["name"]}, bool(keys))
            for asset in node["assetNodes"]:
                if asset["isMaterializable"]:
                    key = asset["assetKey"]
                    selector = {**place, "pipelineName": ASSETS, "assetSelection": [key]}
                    yield Launchable("/".join(key["path"]), selector, asset["isPartitioned"])

    def filled_in(self, one: Launchable) -> str:
        """The configuration that the launchpad opens with."""
        return str(self._ask(DEFAULT, selector=one.selector)["rootDefaultYaml"])

    def errors(self, one: Launchable, config: Any) -> list[str]:
        """What the launchpad says is wrong with a configuration."""
        return [error["message"] for error in self._ask(VALID, selector=one.selector, config=config).get("errors", [])]

    def launch(self, one: Launchable, config: Any, day: str) -> dict[str, Any]:
        """Launch a run, and wait for its end."""
        tags = [{"key": "dagster/partition", "value": day}] if one.partitioned else []
        launched = self._ask(LAUNCH, selector=one.selector, config=config, tags=tags)
        if launched["__typename"] != "LaunchRunSuccess":
            return {"status": launched["__typename"], "report": json.dumps(launched)}
        run = self._instance.get_run_by_id(launched["run"]["runId"])
        assert run is not None
        return {"status": run.status.value, "report": "\n".join(self._failures(run.run_id))}

    def _failures(self, run_id: str) -> Iterator[str]:
        for log in self._instance.all_logs(run_id):
            event = log.dagster_event
            if event is not None and event.is_step_failure:
                error = event.step_failure_data.error
                while error is not None:
                    yield error.message
                    error = error.cause
            elif event is not None and event.event_type is dg.DagsterEventType.RUN_FAILURE:
                yield log.message

    def _ask(self, query: str, **variables: Any) -> Any:
        context = self._process.create_request_context()
        answer = asyncio.run(self._schema.execute_async(query, context_value=context, variable_values=variables))
        assert not answer.errors, answer.errors
        (found,) = answer.data.values()
        return found


def locations() -> WorkspaceLoadTarget:
    """The three code locations: in this process, and in `make prove` as the webserver loads `workspace.yaml`."""
    if FULL:
        return WorkspaceFileTarget([str(PROJECT / "workspace.yaml")])
    return InProcessWorkspaceLoadTarget(
        [
            InProcessCodeLocationOrigin(
                LoadableTargetOrigin(module_name=f"definitions.{name}", working_directory=str(PROJECT)),
                location_name=name,
            )
            for name in LOCATIONS
        ]
    )


def main(day: str, arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    hurry, wanted = "--hurry" in arguments, [name for name in arguments if name != "--hurry"]
    launcher = {"module": "dagster._core.launcher.sync_in_memory_run_launcher", "class": "SyncInMemoryRunLauncher"}
    coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    found = {}
    with (
        dg.instance_for_test(overrides={"run_launcher": launcher, "run_coordinator": coordinator}) as instance,
        WorkspaceProcessContext(instance, locations()) as process,
    ):
        webserver = Webserver(instance, process)
        for one in sorted(webserver.launchables(), key=place):
            text = webserver.filled_in(one)
            config = yaml.safe_load(text) or {}
            found[one.name] = {"config": text, "errors": webserver.errors(one, config)}
            if one.name in wanted or not wanted:
                if hurry:
                    for op in config.get("ops", {}).values():
                        if "linger_seconds" in op["config"]:
                            op["config"]["linger_seconds"] = 0
                found[one.name] |= webserver.launch(one, config, day)
    return found


def place(one: Launchable) -> tuple[bool, int, bool]:
    """What works a queue off comes first, then each location, and in it the assets that enqueue the jobs of others."""
    drains = one.name.startswith("drain_")
    return not drains, LOCATIONS.index(one.selector["repositoryLocationName"]), not one.name.startswith("queues/")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2:])))
