"""The sensor that looks at the bucket heads and starts drain runs."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_sqlqueue import slots
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model import Depth, Head
from dagster_sqlqueue.orchestration.assets import queue_asset_key
from dagster_sqlqueue.orchestration.consumer import QueueConsumer
from dagster_sqlqueue.orchestration.resource import SqlQueueResource
from dagster_sqlqueue.queue import SqlQueue

_OBSERVE_SECONDS = 10.0
"""While a backlog is worked off its depth changes at every tick; it is observed this often at most."""


@dataclass(frozen=True, slots=True)
class SensorSettings:
    """How a sensor turns a backlog into runs.

    Args:
        max_runs: the most drain runs of the queue at a time.
        jobs_per_run: a backlog below it gets one run, twice of it two, and so on.
        start_seconds: how long a run may take from request to start before its buckets are given to another one.
        budget_seconds, linger_seconds, batch_size: passed on to the runs, see `DrainConfig`.
    """

    max_runs: int = 4
    jobs_per_run: int = 5_000
    start_seconds: float = 120.0
    budget_seconds: float = 300.0
    linger_seconds: float = 5.0
    batch_size: int = 100

    def __post_init__(self) -> None:
        if self.max_runs < 1 or self.jobs_per_run < 1 or self.start_seconds <= 0:
            raise InvalidInput(f"{self} is not usable: max_runs and jobs_per_run must be at least 1, seconds positive")


def build_sqlqueue_sensor(
    consumer: QueueConsumer[Any],
    *,
    name: str | None = None,
    settings: SensorSettings | None = None,
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that starts runs of the consumer's job for the buckets that have work.

    A tick reads one index entry for each bucket and priority. Buckets that a live run covers are left to it; a run that
    died without a word frees its buckets when its slot expires. No run key is derived from jobs: Dagster remembers run
    keys for ever, and a run that died before claiming would block that job for good. A paused queue starts nothing, and
    the tick says so.

    An error of the database makes the tick fail, so that it is seen.
    """
    chosen = settings or SensorSettings()
    queue_name = consumer.spec.name

    @dg.sensor(
        name=name or f"{queue_name}_sensor",
        target=consumer.job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Looks at the bucket heads of the queue {queue_name!r} and starts drain runs for those with work.",
    )
    def bucket_heads(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.SensorResult:
        queue = sqlqueue.queue
        queue.check_schema()
        heads = queue.peek_heads(queue_name)
        depth = queue.depth(queue_name, cap=chosen.max_runs * chosen.jobs_per_run)
        paused_at = queue.settings(queue_name).paused_at
        reserved = [] if paused_at else reserve(queue, queue_name, heads, depth, chosen)
        requests = [_request(consumer, slot, heads, chosen) for slot in reserved]
        events, cursor = _observed(context.cursor, queue_name, heads, depth)
        status = status_line(queue_name, heads, depth)
        if paused_at:
            status += f"; paused since {paused_at:%Y-%m-%d %H:%M} UTC, resume it with: sqlqueue resume {queue_name}"
        context.log.info("%s; %d runs requested", status, len(requests))
        if requests:
            return dg.SensorResult(run_requests=requests, asset_events=events, cursor=cursor)
        return dg.SensorResult(skip_reason=status, asset_events=events, cursor=cursor)

    return bucket_heads


def reserve(
    queue: SqlQueue, name: str, heads: Sequence[Head], depth: Depth, settings: SensorSettings
) -> list[slots.Slot]:
    """Reserve slots for the due buckets that no live run covers, as many as the backlog is worth."""
    taken = slots.taken(queue, name)
    covered = {bucket for buckets in taken.values() for bucket in buckets}
    due = list(dict.fromkeys(head.bucket for head in sorted(heads, key=_urgency) if head.due_seconds >= 0))
    due = [bucket for bucket in due if bucket not in covered]
    free = [number for number in range(settings.max_runs) if number not in taken]
    count = min(len(free), len(due), math.ceil(depth.ready / settings.jobs_per_run))
    reserved = [
        slots.acquire(queue, name, free[i], due[i::count], seconds=settings.start_seconds) for i in range(count)
    ]
    return [slot for slot in reserved if slot is not None]


def status_line(name: str, heads: Sequence[Head], depth: Depth) -> str:
    """What a person wants to read in the list of ticks."""
    waits = [-head.due_seconds for head in heads if head.due_seconds < 0]
    later = f", next due in {min(waits):.0f} s" if waits and not depth.ready else ""
    more = "+" if depth.ready >= depth.cap else ""
    return f"{name}: {depth.ready}{more} ready, {depth.running} leased, {depth.scheduled} scheduled{later}"


def _urgency(head: Head) -> tuple[int, float]:
    return (-head.priority, -head.due_seconds)


def _request(
    consumer: QueueConsumer[Any], slot: slots.Slot, heads: Sequence[Head], settings: SensorSettings
) -> dg.RunRequest:
    priority = max((h.priority for h in heads if h.bucket in slot.buckets and h.due_seconds >= 0), default=0)
    config = {
        "buckets": list(slot.buckets),
        "slot": slot.number,
        "token": str(slot.token),
        "budget_seconds": settings.budget_seconds,
        "linger_seconds": settings.linger_seconds,
        "batch_size": settings.batch_size,
    }
    op = next(iter(consumer.job.nodes)).name
    return dg.RunRequest(
        run_config={"ops": {op: {"config": config}}},
        tags={
            "sqlqueue/queue": slot.queue,
            "sqlqueue/slot": str(slot.number),
            "dagster/priority": str(priority),
        },
    )


def _observed(
    cursor: str | None, name: str, heads: Sequence[Head], depth: Depth
) -> tuple[list[dg.AssetObservation], str | None]:
    figures: dict[str, int | float] = {
        "ready": depth.ready,
        "leased": depth.running,
        "scheduled": depth.scheduled,
        "held": depth.held,
        "oldest_ready_seconds": round(max((h.due_seconds for h in heads), default=0.0), 1) if depth.ready else 0.0,
        "buckets_with_work": len({h.bucket for h in heads if h.due_seconds >= 0}),
    }
    before = json.loads(cursor) if cursor else {}
    still = [depth.ready, depth.running, depth.scheduled, depth.held]
    now = time.time()
    if before.get("figures") == still or (still[0] and now - before.get("at", 0.0) < _OBSERVE_SECONDS):
        return [], cursor
    events = [dg.AssetObservation(queue_asset_key(name), metadata=figures)]
    return events, json.dumps({"at": round(now), "figures": still})
