"""What the tests of sensors and of runs share."""

import json
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget, PythonFileTarget, WorkspaceLoadTarget

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource
from tests.gate.patience import FULL
from tests.support import Work, rows

WORK = QueueSpec("work", Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0))
"""What the fixture `spec` returns, for the ops at the top of a module."""
SENSOR = "work_sensor"
"""The name of the sensor of `WORK` where nothing else is said."""

NewInstance = Callable[..., AbstractContextManager[dg.DagsterInstance]]
"""What the fixture `new_instance` returns: a Dagster instance for a block, with these overrides of its settings."""


@dataclass(frozen=True)
class Deployment:
    """Dagster's instance, and the tests' queue as the sensors and the runs of a code location have it."""

    queue: SqlQueue
    spec: QueueSpec[Work]
    resource: SqlQueueResource
    instance: dg.DagsterInstance

    def enqueue(self, job: Work | NewJob[Work]) -> None:
        self.queue.enqueue(self.spec, job)

    def enqueue_many(self, count: int) -> None:
        """Jobs whose numbers are 0 to `count - 1`."""
        self.queue.enqueue_many(self.spec, [Work(n=n) for n in range(count)])

    def tick(self, sensor: dg.SensorDefinition, cursor: str | None = None) -> Any:
        """One tick, as the daemon has it evaluated."""
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources={"sqlqueue": self.resource}
        ) as context:
            return sensor(context)

    def execute(self, job: dg.JobDefinition, **ops: dict[str, Any]) -> dg.ExecuteInProcessResult:
        """A run of the job, whether it fails or not; `ops` are the configurations of its ops, by their names."""
        return self._run(job, ops, raise_on_error=False)

    def drain(self, consumer: QueueConsumer[Any], **config: Any) -> dg.ExecuteInProcessResult:
        """A run that works the queue off. Its failure is the test's."""
        return self._run(consumer.job, {consumer.op.name: {"linger_seconds": 0, **config}}, raise_on_error=True)

    def _run(
        self, job: dg.JobDefinition, ops: dict[str, dict[str, Any]], *, raise_on_error: bool
    ) -> dg.ExecuteInProcessResult:
        return job.execute_in_process(
            run_config={"ops": {name: {"config": config} for name, config in ops.items()}},
            resources={"sqlqueue": self.resource},
            instance=self.instance,
            raise_on_error=raise_on_error,
        )


class TablesOnly(dg.IOManager):
    """An IO manager as projects have them, for data frames."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        raise TypeError(f"{type(obj).__name__} is no table")

    def load_input(self, context: dg.InputContext) -> Any:
        raise TypeError("there is no table")


def of_environment() -> SqlQueueResource:
    """The resource that a job has which other processes load; it needs the fixture `environment`."""
    return SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ["SQLQUEUE_TEST_SCHEMA"])


def code_location(file: Path) -> WorkspaceLoadTarget:
    """The code location `code`, for GraphQL: in this process, and in `make prove` in a process as the webserver has it."""
    if FULL:
        return PythonFileTarget(str(file), attribute=None, working_directory=str(file.parent), location_name="code")
    origin = LoadableTargetOrigin(python_file=str(file), working_directory=str(file.parent))
    return InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin, location_name="code"))


def configs(result: Any) -> list[dict[str, Any]]:
    """The op's configuration in each run that was asked for."""
    return [next(iter(request.run_config["ops"].values()))["config"] for request in result.run_requests or []]


def remembered(cursor: str) -> dict[str, Any]:
    """What a sensor's cursor holds for the next tick."""
    found: dict[str, Any] = json.loads(cursor.split("\n")[1])
    return found


def changed(cursor: str, **kept: Any) -> str:
    """The cursor with something else in it."""
    status, _, *last = cursor.split("\n")
    return "\n".join([status, json.dumps(remembered(cursor) | kept), *last])


def observations(result: Any) -> list[dg.AssetObservation]:
    """What the tick observed."""
    return [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]


def evaluations(result: Any) -> list[dg.AssetCheckEvaluation]:
    """What the tick says of the checks."""
    return [event for event in result.asset_events if isinstance(event, dg.AssetCheckEvaluation)]


def done_by(result: dg.ExecuteInProcessResult, op: str = "work_off_work") -> dict[str, Any]:
    """What a drain run says that it did: the metadata of its op. What it does not name is 0."""
    (output,) = (event for event in result.events_for_node(op) if event.is_successful_output)
    return defaultdict(int, {name: one.value for name, one in output.step_output_data.metadata.items()})


def error_of(result: dg.ExecuteInProcessResult, op: str) -> str:
    """What the op failed with."""
    failure = result.failure_data_for_node(op)
    assert failure is not None
    return str(failure.error)


def failure_of(result: dg.ExecuteInProcessResult, op: str) -> tuple[str, dict[str, Any]]:
    """What the op reported of its failure: the text, and the metadata's values."""
    failure = result.failure_data_for_node(op)
    assert failure is not None
    assert failure.user_failure_data is not None
    shown = failure.user_failure_data
    return str(shown.description), {name: found.value for name, found in shown.metadata.items()}


def expire(queue: SqlQueue) -> None:
    """Let the time pass for which slots are taken."""
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now() - interval '1 second'")
