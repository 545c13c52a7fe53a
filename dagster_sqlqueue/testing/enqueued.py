"""The jobs that code under test has enqueued, and what becomes of them."""

from dataclasses import dataclass
from typing import Any, Generic

from dagster_sqlqueue.consumer import Consumer, DrainSummary
from dagster_sqlqueue.consumer.handler import AnyHandler
from dagster_sqlqueue.db.executors import CallerConnection
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.search import MAX_LIST
from dagster_sqlqueue.queue.selection import EVERYTHING, JobRow, Selection

_QUEUED = Selection(state=LiveState.QUEUED)


@dataclass(frozen=True, slots=True)
class EnqueuedJob(Generic[Payload]):
    """A live job.

    Attributes:
        payload: as the queue's model.
        row: everything else: `id`, `state`, `run_at`, `priority`, `tags`, `unique_key`, `ordering_key`, …
    """

    payload: Payload
    row: JobRow


def enqueued_jobs(
    queue: SqlQueue,
    spec: QueueSpec[Payload],
    selection: Selection | None = None,
    *,
    connection: CallerConnection | None = None,
) -> list[EnqueuedJob[Payload]]:
    """Return the live jobs of a queue, at most 10,000, in the order in which they are due.

    Args:
        queue: where the queue is.
        spec: the queue.
        selection: which; None for all.
        connection: the one on whose transaction they were enqueued, if it is not committed.

    Raises:
        InvalidInput: the selection or the connection is not usable.
        InvalidPayload, UnknownVersion, UnreadablePayload: a payload cannot be read as the model.
        UnknownQueue: there is no such queue.
    """
    check_spec(spec)
    rows = queue.jobs(spec.name, selection, limit=MAX_LIST, connection=connection)
    return [EnqueuedJob(serialization.parse(spec, row.payload), row) for row in rows]


def drain(
    queue: SqlQueue,
    spec: QueueSpec[Payload],
    handler: AnyHandler[Payload],
    *,
    scheduled: bool = False,
    rounds: int = 100,
    **settings: Any,
) -> DrainSummary:
    """Work a queue off with a handler until nothing is due; with `scheduled`, until nothing is queued.

    Args:
        queue: where the queue is.
        spec: the queue.
        handler: as for `Consumer`; or what `handles` made of one.
        scheduled: whether jobs for later, retries and snoozed ones are made due at once, until all have ended or are held.
            Jobs whose turn a held one stops, and those of a paused queue, stay.
        rounds: how many times that is done at most.
        settings: further arguments of the `Consumer`, which does not maintain the schema unless they say so.

    Returns:
        What was done, all rounds together.

    Raises:
        AssertionError: after so many rounds there still are jobs for later.
        UnknownQueue, DatabaseUnavailable, InvalidInput: as for `Consumer` and its `drain`.
    """
    if not is_whole(rounds, 1):
        raise InvalidInput(f"rounds is {rounds!r}; it must be a whole number of at least 1")
    consumer = Consumer(queue, spec, getattr(handler, "handler", handler), **{"maintain": False, **settings})
    summary = consumer.drain()
    while scheduled and (waiting := queue.jobs(spec.name, _QUEUED, limit=1)):
        if not rounds:
            raise AssertionError(
                f"the jobs of {spec.label} do not come to an end: {waiting[0].id} is for {waiting[0].run_at}, attempt"
                f" {waiting[0].attempt}, after {summary.retried} retries and {summary.snoozed} snoozes"
            )
        rounds -= 1
        queue.reschedule(spec.name, EVERYTHING, 0)
        before = summary.claimed
        # The summary of all drains of a consumer is one.
        if consumer.drain().claimed == before:
            break
    return summary
