"""Every job of the code locations can be launched with the configuration that the launchpad opens with."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.payload.serialization import AnyObject
from tests.gate.patience import PATIENCE

PROJECT = Path(__file__).resolve().parents[2]
ASKING = ("show", "rebucket", "delay", "assign")
LAUNCHED = ("drain_events", "drain_reminders")

LOCATION = """
import dagster as dg
from definitions import daily_analytics, events, reminders

defs = dg.Definitions.merge(events.defs, reminders.defs, daily_analytics.defs)
"""
PROGRAM = """
import asyncio, json, sys
from pathlib import Path

import dagster as dg
import yaml
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema

from tests.orchestration.support import code_location

JOBS = '''{ repositoriesOrError { ... on RepositoryConnection { nodes {
    name jobs { name } assetNodes { assetKey { path } jobNames } } } } }'''
DEFAULT = '''query Q($selector: PipelineSelector!) { runConfigSchemaOrError(selector: $selector) {
    __typename ... on RunConfigSchema { rootDefaultYaml } } }'''
VALID = '''query Q($selector: PipelineSelector!, $config: RunConfigData!) {
    isPipelineConfigValid(pipeline: $selector, runConfigData: $config, mode: "default") {
    __typename ... on RunConfigValidationInvalid { errors { message } } } }'''
LAUNCH = '''mutation M($selector: JobOrPipelineSelector!, $config: RunConfigData!) {
    launchPipelineExecution(executionParams: {selector: $selector, runConfigData: $config}) {
    __typename ... on LaunchRunSuccess { run { runId } } } }'''

launcher = {"module": "dagster._core.launcher.sync_in_memory_run_launcher", "class": "SyncInMemoryRunLauncher"}
coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
with dg.instance_for_test(overrides={"run_launcher": launcher, "run_coordinator": coordinator}) as instance:
    with WorkspaceProcessContext(instance, code_location(Path(sys.argv[1]))) as process:
        schema = create_schema()

        def ask(query, **variables):
            context = process.create_request_context()
            answer = asyncio.run(schema.execute_async(query, context_value=context, variable_values=variables))
            assert not answer.errors, answer.errors
            (found,) = answer.data.values()
            return found

        (node,) = ask(JOBS)["nodes"]
        found = {}
        for name in [job["name"] for job in node["jobs"]]:
            selector = {
                "repositoryLocationName": "code", "repositoryName": node["name"], "pipelineName": name,
            }
            opened = ask(DEFAULT, selector=selector)
            text = opened["rootDefaultYaml"]
            config = yaml.safe_load(text) or {}
            errors = ask(VALID, selector=selector, config=config).get("errors", [])
            found[name] = {"config": text, "errors": [error["message"] for error in errors]}
            if name in sys.argv[2:]:
                for op in config.get("ops", {}).values():
                    op["config"]["linger_seconds"] = 0
                launched = ask(LAUNCH, selector=selector, config=config)
                assert launched["__typename"] == "LaunchRunSuccess", launched
                run = instance.get_run_by_id(launched["run"]["runId"])
                found[name]["status"] = run.status.value
                found[name]["log"] = [log.message for log in instance.all_logs(run.run_id)][-5:]
print(json.dumps(found))
"""


def test_every_job_is_launched_with_what_the_launchpad_fills_in(url: str, schema: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SQLQUEUE_URL": url,
        "SQLQUEUE_SCHEMA": schema,
        "SQLQUEUE_HOME": str(tmp_path),
        "PYTHONPATH": str(PROJECT),
    }
    file = tmp_path / "location.py"
    file.write_text(LOCATION)
    with SqlQueue(url, schema=schema) as queue:
        queue.migrate()
        for name in ("events", "reminders"):
            queue.create_queue(QueueSpec(name, AnyObject))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, file, *LAUNCHED],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert any(name.startswith("__ASSET_JOB") for name in found), "the job of the daily assets"
    for name, told in found.items():
        # What only a person can say is asked for, such as which job to show.
        assert all(re.match(r"Missing required config entry .* at path root:ops", one) for one in told["errors"]), told
        assert not told["errors"] or name.rpartition("_")[2] in ASKING, (name, told)
        assert "url" not in told["config"], name
        assert "****" not in told["config"], name
    assert {name: found[name]["status"] for name in LAUNCHED} == dict.fromkeys(LAUNCHED, "SUCCESS")
