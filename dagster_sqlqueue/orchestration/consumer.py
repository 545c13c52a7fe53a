"""Runs as capacity: an op that drains buckets of a queue, and the job around it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic
from uuid import UUID

import dagster as dg
from pydantic import Field

from dagster_sqlqueue import slots
from dagster_sqlqueue.consumer import Consumer
from dagster_sqlqueue.handling import Handler
from dagster_sqlqueue.orchestration.assets import queue_asset_key
from dagster_sqlqueue.orchestration.resource import SqlQueueResource
from dagster_sqlqueue.settings import Payload, QueueSpec
from dagster_sqlqueue.settling import DrainSummary

RESOURCE_KEY = "sqlqueue"


class DrainConfig(dg.Config):
    """What one drain run does; the sensor fills it in, and a person may in the launchpad."""

    buckets: list[int] = Field(default=[], description="The buckets to work off; none named: all of them.")
    batch_size: int = Field(default=100, ge=1, le=10_000, description="Jobs for each claim.")
    budget_seconds: float = Field(default=300.0, gt=0, description="Take no new batch after that long.")
    linger_seconds: float = Field(default=5.0, ge=0, description="Wait that long for more when nothing is due.")
    slot: int | None = Field(default=None, description="The consumer slot that the sensor reserved for this run.")
    token: str | None = Field(default=None, description="The proof that the slot is this run's.")


@dataclass(frozen=True, slots=True)
class QueueConsumer(Generic[Payload]):
    """A handler bound to its queue: what a sensor starts and what a code location holds."""

    spec: QueueSpec[Payload]
    handler: Handler[Payload]
    job: dg.JobDefinition
    lease_seconds: float | None = None
    job_timeout_seconds: float | None = None

    def __call__(self, job: Any) -> Any:
        """Call the handler itself, as a test would."""
        return self.handler(job)


def queue_consumer(
    spec: QueueSpec[Payload],
    *,
    name: str | None = None,
    lease_seconds: float | None = None,
    job_timeout_seconds: float | None = None,
    tags: dict[str, str] | None = None,
) -> Callable[[Handler[Payload]], QueueConsumer[Payload]]:
    """Turn a function of one job into a Dagster job that works the queue off.

    The job runs in the in-process executor: a run is capacity for many jobs, and a process for each step would double
    what it costs.

    Args:
        spec: the queue.
        name: the Dagster job's; None: `drain_<queue>`.
        lease_seconds: instead of the queue's.
        job_timeout_seconds: see `Consumer`.
        tags: for each run.

    Example:
        ```python
        @queue_consumer(emails)
        def send(job: Job[Email]) -> Done: ...
        ```
    """

    def decorate(handler: Handler[Payload]) -> QueueConsumer[Payload]:
        job_name = name or f"drain_{spec.name}"
        drain = build_drain_op(
            spec,
            handler,
            name=f"{job_name}_op" if name else f"work_off_{spec.name}",
            lease_seconds=lease_seconds,
            job_timeout_seconds=job_timeout_seconds,
        )

        @dg.job(
            name=job_name,
            executor_def=dg.in_process_executor,
            description=f"Claims, handles and completes jobs of the queue {spec.name!r} until its buckets are empty.",
            tags={"sqlqueue/queue": spec.name, **(tags or {})},
        )
        def drain_job() -> None:
            drain()

        return QueueConsumer(spec, handler, drain_job, lease_seconds, job_timeout_seconds)

    return decorate


def build_drain_op(
    spec: QueueSpec[Payload],
    handler: Handler[Payload],
    *,
    name: str,
    lease_seconds: float | None = None,
    job_timeout_seconds: float | None = None,
) -> dg.OpDefinition:
    """The op that drains the queue, for graphs of one's own. It needs the resource `sqlqueue`.

    Cancelling the run gives the leases that are left back at once.
    """

    @dg.op(
        name=name,
        description=handler.__doc__ or f"Works off the queue {spec.name!r}.",
        out=dg.Out(dict, description="How many jobs were claimed, succeeded, retried, failed, …"),
        tags={"kind": "sqlqueue"},
    )
    def drain(
        context: dg.OpExecutionContext, config: DrainConfig, sqlqueue: SqlQueueResource
    ) -> dg.Output[dict[str, Any]]:
        queue = sqlqueue.queue
        queue.check_schema()
        lease = lease_seconds or spec.lease_seconds
        slot = _slot(spec.name, config)
        hold = max(60.0, 2 * lease)
        if slot is not None and not slots.extend(queue, slot, seconds=hold):
            context.log.info("slot %d is not this run's any more; another run has its buckets", slot.number)
            return _output(DrainSummary())
        consumer = Consumer(
            queue,
            spec,
            handler,
            buckets=config.buckets or None,
            batch_size=config.batch_size,
            lease_seconds=lease,
            job_timeout_seconds=job_timeout_seconds,
            worker=f"run/{context.run_id}",
            beat=None if slot is None else lambda: _keep(queue, slot, hold),
        )
        try:
            summary = consumer.drain(budget_seconds=config.budget_seconds, linger_seconds=config.linger_seconds)
        finally:
            if slot is not None:
                slots.release(queue, slot)
        context.log.info("%s: %s", spec.name, summary)
        if summary.succeeded or summary.failed:
            context.log_event(dg.AssetMaterialization(queue_asset_key(spec.name), metadata=_metadata(summary)))
        return _output(summary)

    return drain


def _slot(queue: str, config: DrainConfig) -> slots.Slot | None:
    if config.slot is None or config.token is None:
        return None
    return slots.Slot(queue, config.slot, tuple(config.buckets), UUID(config.token))


def _keep(queue: Any, slot: slots.Slot, seconds: float) -> None:
    slots.extend(queue, slot, seconds=seconds)


def _metadata(summary: DrainSummary) -> dict[str, int | float]:
    return {
        "jobs_succeeded": summary.succeeded,
        "jobs_retried": summary.retried,
        "jobs_dead_lettered": summary.failed,
        "stale_writes": summary.stale,
        "jobs_per_second": round(summary.jobs_per_second, 1),
    }


def _output(summary: DrainSummary) -> dg.Output[dict[str, Any]]:
    value = {
        "claimed": summary.claimed,
        "succeeded": summary.succeeded,
        "retried": summary.retried,
        "snoozed": summary.snoozed,
        "failed": summary.failed,
        "stale": summary.stale,
        "released": summary.released,
        "batches": summary.batches,
        "seconds": round(summary.seconds, 3),
    }
    return dg.Output(value, metadata={**value, "jobs_per_second": round(summary.jobs_per_second, 1)})
