"""The jobs that code under test has enqueued, and what becomes of them."""

import time
from dataclasses import dataclass
from typing import Any, Generic

from dagster_sqlqueue.consumer import Consumer, DrainSummary
from dagster_sqlqueue.consumer.handler import AnyHandler
from dagster_sqlqueue.db.executors import CallerConnection
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.model.numbers import is_seconds, is_whole
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.search import MAX_LIST
from dagster_sqlqueue.queue.selection import EVERYTHING, JobRow, Selection
from dagster_sqlqueue.queue.sql_queue import check_sql_queue
from dagster_sqlqueue.testing.handlers import bare, settings_of

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
    """Return the live jobs of a queue, at most 10,000: by priority, then by when they are due; held ones last.

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
    check_sql_queue(queue)
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
    budget_seconds: float = 300.0,
    **settings: Any,
) -> DrainSummary:
    """Work a queue off with a handler until nothing is due; with `scheduled`, until nothing is queued.

    Jobs that are due and may not run yet, because of a limit or a rate, are waited for.

    Args:
        queue: where the queue is.
        spec: the queue.
        handler: as for `Consumer`; or what `handles` made of one, with its settings.
        scheduled: whether jobs for later, retries and snoozed ones are made due at once, until all have ended or are held.
            They are due at the same moment then: the order of their times is lost. Jobs whose turn a held one stops, and
            those of a paused queue, stay.
        rounds: how many times that is done at most.
        budget_seconds: how long it may take.
        settings: further arguments of the `Consumer`, which does not maintain the schema unless they say so.

    Returns:
        What was done, all rounds together.

    Raises:
        AssertionError: the jobs do not come to an end, in so many rounds or so long.
        UnknownQueue, DatabaseUnavailable, InvalidInput: as for `Consumer` and its `drain`.
    """
    check_sql_queue(queue)
    check_spec(spec)
    if not is_whole(rounds, 1):
        raise InvalidInput(f"rounds is {rounds!r}; it must be a whole number of at least 1")
    if not is_seconds(budget_seconds):
        raise InvalidInput(f"budget_seconds is {budget_seconds!r}; it must be positive, in seconds")
    consumer = Consumer(queue, spec, bare(spec, handler), **{"maintain": False, **settings_of(handler), **settings})
    until = time.monotonic() + budget_seconds
    summary = _drained(consumer, queue, spec, until)
    while scheduled and (waiting := queue.jobs(spec.name, _QUEUED, limit=1)):
        if not rounds:
            raise AssertionError(_no_end(spec, waiting[0], summary))
        rounds -= 1
        queue.reschedule(spec.name, EVERYTHING, 0)
        before = summary.claimed
        # The summary of all drains of a consumer is one.
        if _drained(consumer, queue, spec, until).claimed == before:
            break
    return summary


def _drained(consumer: Consumer[Any], queue: SqlQueue, spec: QueueSpec[Any], until: float) -> DrainSummary:
    summary = consumer.drain(budget_seconds=max(until - time.monotonic(), 0.001))
    if time.monotonic() >= until and (waiting := queue.jobs(spec.name, _QUEUED, limit=1)):
        raise AssertionError(_no_end(spec, waiting[0], summary))
    return summary


def _no_end(spec: QueueSpec[Any], job: JobRow, summary: DrainSummary) -> str:
    return (
        f"the jobs of {spec.label} do not come to an end, such as {job.id}, which is for {job.run_at}: {summary.claimed}"
        f" were claimed, with {summary.retried} retries and {summary.snoozed} snoozes"
    )
