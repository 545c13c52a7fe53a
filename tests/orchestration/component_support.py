"""What the tests of the component share: a project with handlers, and its sensors and runs in Dagster."""

import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing.utils import DefsFolderSandbox
from pydantic import BaseModel

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import shared_resource
from tests.gate.patience import PATIENCE

WARNINGS = [
    # Dagster 1.13 reads YAML by a function that pydantic calls deprecated, links to it by classes of its own that it calls
    # beta, and copies the sensors that it finds there with an argument that it calls beta.
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore:Class `.*CodeReference.*` is currently in beta"),
    pytest.mark.filterwarnings("ignore:Parameter `owners` of initializer `SensorDefinition"),
]

HANDLER = f"""
import threading
from pydantic import BaseModel
from dagster import OpExecutionContext

from dagster_sqlqueue import Done, Job, QueueSpec, handles
from dagster_sqlqueue.orchestration import queue_consumer


class Reminder(BaseModel):
    text: str


def remind(job: Job[Reminder]) -> Done:
    return Done({{"sent": job.payload.text}})


def anything(job):
    return Done()


def with_context(context: OpExecutionContext, job: Job[Reminder]) -> Done:
    return Done()


@queue_consumer(QueueSpec("made", Reminder, max_attempts=2), mode="linger", tags={{"team": "mail"}})
def made(job: Job[Reminder]) -> Done:
    return Done()


def all_at_once(jobs: list[Job[Reminder]]) -> list[Done]:
    return [Done() for job in jobs]


together = threading.Barrier(2)


def both(job: Job[Reminder]) -> None:
    together.wait({PATIENCE})


@handles(QueueSpec("bound", Reminder, bucket_count=3, max_attempts=2), job_timeout_seconds=7)
def bound(job: Job[Reminder]) -> Done:
    return Done()
"""


class Reminder(BaseModel):
    text: str


class Loader:
    """Writes components into a project and loads it, as a code location does."""

    def __init__(self, sandbox: DefsFolderSandbox) -> None:
        self._sandbox = sandbox
        self.defs = sandbox.defs_folder_path

    def write(self, name: str = "reminders", handler: str = ".handler:remind", /, **attributes: Any) -> None:
        directory = self.defs / name
        directory.mkdir(parents=True)
        (directory / "handler.py").write_text(HANDLER)
        text = yaml.safe_dump(
            {
                "type": "dagster_sqlqueue.SqlQueueComponent",
                "attributes": {"queue": name.rpartition("/")[2], "handler": handler, **attributes},
            }
        )
        (directory / "defs.yaml").write_text(text)

    @contextmanager
    def loaded(self) -> Iterator[dg.Definitions]:
        with self._sandbox.build_all_defs() as defs:
            yield defs

    def failure(self) -> str:
        """What loading fails with, and its causes."""
        with pytest.raises(ComponentTreeException) as caught, self.loaded():
            pass
        return "".join(traceback.format_exception(caught.value))


def sensor_of(defs: dg.Definitions) -> dg.SensorDefinition:
    """The sensor of the only queue, without those that clean up after killed runs."""
    (found,) = (sensor for sensor in defs.sensors or () if not sensor.name.endswith("_runs"))
    assert isinstance(found, dg.SensorDefinition)
    return found


class Location:
    """A project's sensor and runs, on a schema that is not there yet."""

    def __init__(self, project: Loader, queue: SqlQueue, instance: dg.DagsterInstance) -> None:
        self.project, self.queue, self.instance = project, queue, instance
        self.schema = queue.database.schema

    def write(self, name: str = "reminders", handler: str = ".handler:remind", /, **attributes: Any) -> None:
        """A component whose queue is of this schema."""
        self.project.write(name, handler, schema_name=self.schema, **attributes)

    def loaded(self) -> AbstractContextManager[dg.Definitions]:
        return self.project.loaded()

    def tick(self, defs: dg.Definitions) -> Any:
        resources = {"sqlqueue": shared_resource("SQLQUEUE_URL", self.schema)}
        with dg.build_sensor_context(instance=self.instance, resources=resources) as context:
            return sensor_of(defs)(context)

    def run(self, defs: dg.Definitions, job: str, **settings: Any) -> dg.ExecuteInProcessResult:
        return defs.resolve_job_def(job).execute_in_process(instance=self.instance, **settings)
