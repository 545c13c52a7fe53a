"""Helpers for users' tests with Dagster: the resource of a queue, and a drain run in the test's own process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.drain import DrainJob
from dagster_sqlqueue.orchestration.given import check_consumer
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, check_queues
from dagster_sqlqueue.orchestration.summary import counts_of
from dagster_sqlqueue.queue import SqlQueue


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain run.

    Attributes:
        run: Dagster's result, with its events.
        counts: how many jobs were `claimed`, `succeeded`, `retried`, `snoozed`, `failed`, `held`, `cancelled`, …; empty
            if the run failed.
    """

    run: dg.ExecuteInProcessResult
    counts: Mapping[str, Any]

    @property
    def success(self) -> bool:
        """Whether the run succeeded; jobs of it may have failed."""
        return self.run.success


def resource_of(queue: SqlQueue) -> SqlQueueResource:
    """Return the resource of the queues of a test, for graphs, sensors and assets.

    It has the database's URL and the schema, and is otherwise as by default.

    Args:
        queue: what `queue_for_test` provides.

    Raises:
        InvalidInput: it is no `SqlQueue`.
    """
    check_queues(queue)
    return SqlQueueResource(url=queue.database.url, schema_name=queue.database.schema)


def drain_in_process(
    consumer: DrainJob[Any] | dg.JobDefinition,
    queue: SqlQueue | SqlQueueResource,
    *,
    config: Mapping[str, Any] | None = None,
    instance: dg.DagsterInstance | None = None,
    resources: Mapping[str, Any] | None = None,
    resource_key: str | None = None,
    raise_on_error: bool = True,
) -> Drained:
    """Run the drain job of a queue in this process, until nothing of the queue is due.

    The run does not wait for later retries: give the queue of the test `backoff=Backoff(0, jitter=0)` for all attempts.

    Args:
        consumer: what `queue_consumer` made, or its job.
        queue: where the queue is.
        config: further fields of the `DrainConfig`.
        instance: Dagster's, for the run; None: an ephemeral one.
        resources: further resources of the job.
        resource_key: of the queue's resource; None: the consumer's, and `sqlqueue` for a job.
        raise_on_error: whether to raise an error of the run, not of a job's handler; else see `Drained.success`.

    Raises:
        InvalidInput: the consumer is none, or the job has more ops than the one that drains.
    """
    check_consumer("drain_in_process", consumer, (DrainJob, dg.JobDefinition))
    job = consumer if isinstance(consumer, dg.JobDefinition) else consumer.job
    key = resource_key or (consumer.resource_key if isinstance(consumer, DrainJob) else RESOURCE_KEY)
    names = sorted(node.name for node in job.nodes)
    if len(names) != 1:
        raise InvalidInput(
            f"the job {job.name!r} has the ops {', '.join(names)}; drain_in_process runs the job of a queue_consumer, which"
            " has one. Run others with job.execute_in_process"
        )
    run = job.execute_in_process(
        run_config={"ops": {names[0]: {"config": {"linger_seconds": 0.0, **(config or {})}}}},
        resources={**(resources or {}), key: _resource(queue)},
        instance=instance,
        raise_on_error=raise_on_error,
    )
    return Drained(run, counts_of(run, names[0]))


def _resource(queue: SqlQueue | SqlQueueResource) -> SqlQueueResource:
    return queue if isinstance(queue, SqlQueueResource) else resource_of(queue)
