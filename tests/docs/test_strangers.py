"""What a stranger builds from the pages alone, worked off by a real daemon: a project of YAML, and a file of Python."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.__about__ import __version__
from dagster_sqlqueue.payload.serialization import AnyObject
from tests.api.programs import PSQL
from tests.gate.patience import PATIENCE, sized
from tests.orchestration.dg_dev import Dev, dg_dev
from tests.orchestration.dg_project import DgProject, installed
from tests.support import until

PROJECT = Path(__file__).resolve().parents[2]
JOBS = sized(2, 2_000)


@dataclass(frozen=True)
class Page:
    """A page of the documentation."""

    name: str

    @property
    def text(self) -> str:
        return (PROJECT / "docs" / self.name).read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """All of its blocks of a language, in order."""
        return re.findall(rf"```{language}\n(.*?)```", self.text, re.DOTALL)

    def block(self, language: str, begins: str = "") -> str:
        """Its first block of a language, or the first that begins so."""
        (found, *_) = re.findall(rf"```{language}\n({re.escape(begins)}.*?)```", self.text, re.DOTALL)
        return str(found)


@pytest.fixture
def project(tmp_path: Path, url: str, schema: str) -> DgProject:
    """An empty one, whose instance is the one that the page names."""
    made = DgProject(tmp_path / "project", installed(tmp_path))
    shutil.copyfile(PROJECT / "definitions" / "dagster.yaml", made.home / "dagster.yaml")
    bin = str(Path(made.program).parent)
    made.environment |= {"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema, "PATH": f"{bin}:{made.environment['PATH']}"}
    return made


def run(command: str, directory: Path, project: DgProject) -> None:
    """A line of a page in a shell."""
    done = subprocess.run(command, shell=True, cwd=directory, env=project.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def worked_off(dev: Dev, queue: SqlQueue, payload: dict[str, Any], result: str) -> None:
    """Put jobs on the queue `reminders` once its sensor has made it, and see them succeed."""
    until(lambda: "reminders" in {found.name for found in queue.queues()}, "the queue", 2 * PATIENCE)
    queue.enqueue_many(QueueSpec("reminders", AnyObject), [payload] * JOBS)
    until(lambda: queue.archived("reminders", since_seconds=3_600).get("succeeded") == JOBS, "their end", 4 * PATIENCE)
    (job,) = queue.jobs("reminders", archived=True, limit=1)
    assert job.result == result
    assert dev.warnings() == []


def sensors(location: Any) -> dict[str, str]:
    (repository,) = location["repositories"]
    return {sensor["name"]: sensor["sensorState"]["status"] for sensor in repository["sensors"]}


@pytest.mark.prove
@pytest.mark.timeout(12 * PATIENCE)
def test_a_file_of_python(project: DgProject, url: str, schema: str, tmp_path: Path) -> None:
    """docs/dagster.md: its first five minutes, with its first block of Python as the file that the commands name."""
    page, here = Page("dagster.md"), tmp_path / "stranger"
    here.mkdir()
    commands = [line.partition("  #")[0].strip() for line in page.block("sh").splitlines()]
    install, _, migrate, dev_command = commands
    assert install.startswith("pip install 'dagster-sqlqueue")
    (here / "my_queue.py").write_text(page.block("python"))
    run(migrate, here, project)
    arguments = dev_command.removeprefix("dg dev ").split()
    with dg_dev(here, project.environment, *arguments) as dev, SqlQueue(url, schema=schema) as queue:
        location = dev.loaded()
        versions = {one["name"]: one["version"] for one in location["dagsterLibraryVersions"]}
        assert versions["dagster-sqlqueue"] == __version__
        assert sensors(location)["reminders_sensor"] == "RUNNING"
        assert "reminders_redrive" in {job["name"] for job in location["repositories"][0]["jobs"]}
        worked_off(dev, queue, {"account": "ada@example.org", "text": "Stand up"}, '{"sent": true}')
        for command in page.blocks("sh")[1].splitlines():
            run(command.replace("sqlqueue.enqueue", f"{schema}.enqueue").replace("psql", str(PSQL), 1), here, project)
        script = here / "enqueue.py"
        script.write_text(f"from my_queue import *\n{page.blocks('python')[1]}")
        run(f"python {script.name}", here, project)
        ended = {"succeeded": JOBS + 2, "failed": 1}
        until(
            lambda: queue.archived("reminders", since_seconds=3_600) == ended,
            "the end of the page's jobs",
            4 * PATIENCE,
        )
        (letter,) = queue.dead_letters("reminders")
        assert (letter.attempt, letter.error) == (3, "bob is no address")


@pytest.mark.prove
@pytest.mark.timeout(12 * PATIENCE)
def test_a_project_of_yaml(project: DgProject, url: str, schema: str) -> None:
    """docs/component.md: its command, and what it says of the sensor and of making the queue."""
    page = Page("component.md")
    run(page.block("sh").strip(), project.root, project)
    file = project.defs / "reminders" / "defs.yaml"
    assert file.read_text() == page.block("yaml", "# src/shop/defs/reminders/defs.yaml\n").partition("\n")[2]
    said = f"  schema_name: {schema}\n  default_status: RUNNING\n"
    assert "default_status: RUNNING" in page.text
    file.write_text(file.read_text().replace("  handler:", f"{said}  handler:"))
    run("sqlqueue migrate", project.root, project)
    run("dg check yaml --validate-requirements", project.root, project)
    with dg_dev(project.root, project.environment) as dev, SqlQueue(url, schema=schema) as queue:
        location = dev.loaded()
        cleanup = {"sqlqueue_reminders_failed_runs": "RUNNING", "sqlqueue_reminders_cancelled_runs": "RUNNING"}
        assert sensors(location) == {"reminders_sensor": "RUNNING", **cleanup}
        (resource,) = location["repositories"][0]["allTopLevelResourceDetails"]
        assert (resource["name"], resource["configuredValues"]) == ("sqlqueue", []), (
            "the URL is nowhere in the definitions"
        )
        worked_off(dev, queue, {"text": "hello"}, '{"characters": 5}')
