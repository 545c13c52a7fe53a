"""What the tests of launchpad jobs share: running one as the launchpad does, and reading what it reported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_launchpad_jobs
from tests.support import rows


@dataclass(frozen=True)
class Reported:
    """What a run reported: all but its texts, all, and what it observed of the queue."""

    value: dict[str, Any]
    metadata: Mapping[str, Any]
    observed: Mapping[str, Any] | None

    @property
    def said(self) -> str:
        return str(self.metadata["result"])


class Launchpad:
    """Starts launchpad jobs in process, with a config as a person would write it."""

    def __init__(self, resource: SqlQueueResource, instance: dg.DagsterInstance, *queues: Any) -> None:
        self.instance = instance
        jobs = build_sqlqueue_launchpad_jobs(*queues)
        self.definitions = dg.Definitions(jobs=jobs, resources={"sqlqueue": resource})

    def run(self, verb: str, **config: Any) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_job_def(f"sqlqueue_{verb}")
        run_config = {"ops": {f"sqlqueue_{verb}_op": {"config": config}}}
        return job.execute_in_process(instance=self.instance, run_config=run_config, raise_on_error=False)

    def __call__(self, verb: str, **config: Any) -> Reported:
        """Run it and have it succeed."""
        done = self.run(verb, **config)
        assert done.success, _errors(done)
        (output,) = done.filter_events(lambda event: event.is_successful_output)
        metadata = _values(output.step_output_data.metadata)
        texts = {
            name for name, one in output.step_output_data.metadata.items() if one.__class__ is dg.MarkdownMetadataValue
        }
        value = {name: found for name, found in metadata.items() if name not in {"result", "queue_name", *texts}}
        seen = done.filter_events(lambda event: event.event_type is dg.DagsterEventType.ASSET_OBSERVATION)
        observed = None
        if seen:
            (only,) = seen
            observation = only.asset_observation_data.asset_observation
            assert observation.asset_key == dg.AssetKey(["queues", metadata["queue_name"]])
            observed = _values(observation.metadata)
            numbers = [name for name, value in observed.items() if isinstance(value, int | float)]
            assert numbers == [], "they would plot on the queue's page"
        return Reported({"queue": metadata.get("queue_name"), **value}, metadata, observed)

    def refused(self, verb: str, **config: Any) -> str:
        """Run it and have it fail as its page is to say; returns the message."""
        done = self.run(verb, **config)
        assert not done.success
        (failure,) = done.filter_events(lambda event: event.is_step_failure)
        said = failure.step_failure_data.user_failure_data
        assert said is not None, _errors(done)
        assert "error" in said.metadata
        assert not done.filter_events(lambda event: event.event_type is dg.DagsterEventType.ASSET_OBSERVATION)
        assert said.description is not None
        return str(said.description)


def _values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found.value for name, found in metadata.items()}


def _errors(done: dg.ExecuteInProcessResult) -> str:
    failures = done.filter_events(lambda event: event.is_step_failure)
    return "\n".join(failure.step_failure_data.error_display_string for failure in failures)


def everything(queue: SqlQueue) -> list[Any]:
    """Every row that a launchpad job could change."""
    tables = ("job", "job_archive", "queue", "human_task", "job_event")
    return [rows(queue, f"SELECT t::text FROM {{s}}.{table} AS t ORDER BY 1") for table in tables]
