"""A project of YAML and one handler, through the commands of `dg`, up to a job that a real daemon's run works off."""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.payload.serialization import AnyObject
from tests.gate.patience import PATIENCE
from tests.orchestration.dg_project import DgProject, installed
from tests.support import until
from tests.support.ports import free_port

TYPE = "dagster_sqlqueue.SqlQueueComponent"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def project(tmp_path: Path, site: Path | None) -> DgProject:
    return DgProject(tmp_path / "project", site)


@pytest.fixture(scope="module")
def scaffolded(site: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `dg scaffold` writes."""
    made = DgProject(tmp_path_factory.mktemp("scaffolded") / "project", site)
    code, output = made.dg("scaffold", "defs", TYPE, "reminders")
    assert code == 0, output
    return made.defs / "reminders"


@pytest.fixture
def reminders(project: DgProject, scaffolded: Path) -> DgProject:
    """A project with one scaffolded component."""
    shutil.copytree(scaffolded, project.defs / "reminders")
    return project


def test_the_component_is_listed_with_what_it_is(project: DgProject) -> None:
    code, output = project.dg("list", "components", "--package", "dagster_sqlqueue", "--json")
    assert code == 0, output
    (listed,) = json.loads(output)["items"]
    assert listed["key"] == TYPE
    assert listed["summary"].startswith("A SQL job queue: an asset, a job that works it off, and a sensor")


def test_what_is_scaffolded_passes_every_check(reminders: DgProject) -> None:
    written = yaml.safe_load((reminders.defs / "reminders" / "defs.yaml").read_text())
    assert written == {
        "type": TYPE,
        "attributes": {"queue": "reminders", "handler": ".handler:handle"},
        "requirements": {"env": ["SQLQUEUE_URL"]},
    }
    assert reminders.dg("check", "yaml", "--validate-requirements") == (
        0,
        "All component YAML validated successfully.\n",
    )
    code, output = reminders.dg("check", "defs")
    assert (code, "All definitions loaded successfully." in output) == (0, True), output
    code, output = reminders.dg("list", "defs", "--json")
    assert code == 0, output
    listed = json.loads(output)
    assert [asset["asset_key"] for asset in listed["assets"]] == ["queues/reminders"]
    checks = {"oldest_ready", "dead_letters", "lease_expiry", "stalled_bucket"}
    assert {check["name"] for check in listed["asset_checks"]} == checks
    assert {job["name"] for job in listed["jobs"]} == {"create_reminders", "drain_reminders"}
    assert [sensor["name"] for sensor in listed["sensors"]] == ["reminders_sensor"]
    assert [resource["name"] for resource in listed["resources"]] == ["sqlqueue"]
    code, output = reminders.dg("list", "env")
    assert (code, "SQLQUEUE_URL" in output) == (0, True), output


@pytest.mark.prove
def test_other_forms_are_scaffolded(project: DgProject) -> None:
    code, output = project.dg("scaffold", "defs", TYPE, "mail", "--queue", "letters", "--handler", "shop.jobs:send")
    assert code == 0, output
    assert sorted(file.name for file in (project.defs / "mail").iterdir()) == ["defs.yaml"]
    written = yaml.safe_load((project.defs / "mail" / "defs.yaml").read_text())
    assert written["attributes"] == {"queue": "letters", "handler": "shop.jobs:send"}
    shutil.rmtree(project.defs / "mail")
    code, output = project.dg("scaffold", "defs", TYPE, "mail/Due-Letters", "--format", "python")
    assert code == 0, output
    code, output = project.dg("list", "defs", "--json")
    assert code == 0, output
    assert [asset["asset_key"] for asset in json.loads(output)["assets"]] == ["queues/due_letters"]
    code, output = project.dg("scaffold", "defs", TYPE, "7days")
    assert code != 0
    assert "queue name '7days' is not usable" in output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("  handlr: .handler:handle", ["defs.yaml:5", "attributes.handlr", "'handlr' was unexpected"]),
        ("  max_runs: [4]", ["defs.yaml:5", "attributes.max_runs [4] is not valid"]),
        ("  backoff: {secs: 5}", ["defs.yaml:5", "attributes.backoff"]),
    ],
)
def test_a_wrong_key_or_type_is_shown_in_its_line(reminders: DgProject, line: str, said: list[str]) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    lines = file.read_text().splitlines()
    assert lines[3:5] == ["  queue: reminders", "  handler: .handler:handle"]
    file.write_text("\n".join([*lines[:4], line, *([] if "handlr" in line else lines[4:5]), *lines[5:]]))
    code, output = reminders.dg("check", "yaml")
    assert code == 1
    for part in said:
        assert part in output


def test_a_wrong_value_is_named_when_the_definitions_are_checked(reminders: DgProject) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    file.write_text(file.read_text().replace("  handler:", "  buckets: 5000\n  handler:"))
    code, output = reminders.dg("check", "defs")
    assert code == 1
    assert "bucket_count of queue 'reminders' is 5000; it must be 1 to 1024" in output


@pytest.mark.prove
def test_a_variable_that_is_used_and_not_required_is_found(reminders: DgProject) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    file.write_text(file.read_text().replace("  handler:", "  schema_name: '{{ env.OUR_SCHEMA }}'\n  handler:"))
    code, output = reminders.dg("check", "yaml", "--validate-requirements")
    assert code == 1
    assert "not specified in the component file: OUR_SCHEMA" in output


class Dev:
    """`dg dev`, on a port of its own."""

    def __init__(self, project: DgProject) -> None:
        self.port = free_port()
        self.log = project.root / "dev.log"
        self._project = project
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [project.program, "dev", "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=project.root,
                env=project.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def asked(self, query: str) -> Any:
        """The data of a GraphQL query; None while nobody answers."""
        assert self.process.poll() is None, self.log.read_text()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return json.load(response)["data"]
        except OSError:
            return None

    def left_over(self) -> list[psutil.Process]:
        """The processes that still work in the project's directory."""
        found = []
        for process in psutil.process_iter(["pid", "environ"]):
            home = (process.info["environ"] or {}).get("DAGSTER_HOME")
            if home == str(self._project.home) and process.info["pid"] != os.getpid():
                found.append(process)
        return found

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE)
            until(lambda: not self.left_over(), "the end of every process")
        finally:
            for process in self.left_over():
                process.kill()


@pytest.fixture
def dev(reminders: DgProject, url: str, schema: str) -> Iterator[Dev]:
    """A project with a sensor that runs and makes its queue."""
    reminders.environment["SQLQUEUE_URL"] = url
    file = reminders.defs / "reminders" / "defs.yaml"
    more = f"  schema_name: {schema}\n  create: true\n  default_status: RUNNING\n  buckets: 2\n"
    file.write_text(file.read_text().replace("  handler:", f"{more}  handler:"))
    running = Dev(reminders)
    try:
        yield running
    finally:
        running.end()


LOCATIONS = """{workspaceOrError {... on Workspace {locationEntries {
    loadStatus
    locationOrLoadError {... on RepositoryLocation {repositories {
        sensors {name sensorState {status}} jobs {name}
        allTopLevelResourceDetails {name configuredValues {key value type}}
    }}}
}}}}"""


@pytest.mark.timeout(10 * PATIENCE)
def test_dg_dev_works_a_job_off(dev: Dev, url: str, schema: str) -> None:
    with SqlQueue(url, schema=schema) as queue:
        queue.migrate()

        def loaded() -> Any:
            entries = ((dev.asked(LOCATIONS) or {}).get("workspaceOrError") or {}).get("locationEntries")
            return entries if entries and entries[0]["loadStatus"] == "LOADED" else None

        (location,) = until(loaded, "the code location", 2 * PATIENCE)
        (repository,) = location["locationOrLoadError"]["repositories"]
        assert repository["sensors"] == [{"name": "reminders_sensor", "sensorState": {"status": "RUNNING"}}]
        assert {"create_reminders", "drain_reminders"} <= {job["name"] for job in repository["jobs"]}
        (resource,) = repository["allTopLevelResourceDetails"]
        # The URL is no part of what a launch may configure.
        assert resource["name"] == "sqlqueue"
        assert "url" not in {value["key"] for value in resource["configuredValues"]}
        made = until(lambda: [found.bucket_count for found in queue.queues()], "the queue", 2 * PATIENCE)
        assert made == [2]
        queue.enqueue(QueueSpec("reminders", AnyObject), {"text": "hello"})
        until(lambda: queue.archived("reminders", since_seconds=3_600), "the job's end", 2 * PATIENCE)
        (job,) = queue.jobs("reminders", archived=True)
        assert (job.state, job.result) == ("succeeded", '{"characters": 5}')
