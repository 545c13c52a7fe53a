"""One call of a handler, without a database: the job that it is given, and the outcome that a consumer would write."""

import asyncio
import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from dagster_sqlqueue.consumer.handler import (
    brief,
    check_awaited,
    check_batch,
    check_called_with_one,
    outcome_of,
    outcomes_of,
    said,
)
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob, Job, NewJob
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import MAX_ATTEMPTS, Payload, QueueSpec, check_spec
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.queue.intake import new_row


@dataclass(slots=True)
class _Hand:
    """The `InHand` of one job of a test."""

    spec: QueueSpec[Any]
    given: Any
    event: threading.Event = field(default_factory=threading.Event)
    reports: list[tuple[float, str | None]] = field(default_factory=list)

    def cancellation(self, job: ClaimedJob) -> threading.Event:
        return self.event

    def connection(self) -> Any:
        return self.given

    def report(self, job: ClaimedJob, payload: Any, percent: float, message: str | None) -> None:
        self.reports.append((percent, said(self.spec, job, payload, message)))


class JobForTest(Job[Payload]):
    """A job as a handler is given it, made by `job_for_test`."""

    __slots__ = ("_hand",)

    _hand: _Hand

    @property
    def reports(self) -> list[tuple[float, str | None]]:
        """The progress that was reported: each percentage with its message, as it would be stored."""
        return self._hand.reports

    def request_cancellation(self) -> None:
        """Request that the job be cancelled, as an operator does while it runs."""
        self._hand.event.set()


def job_for_test(
    spec: QueueSpec[Payload],
    job: "Payload | NewJob[Payload] | Mapping[str, Any]",
    *,
    attempt: int = 1,
    error: str | None = None,
    connection: Any = None,
) -> JobForTest[Payload]:
    """Return a job as a handler is given it: checked as by an enqueue, and its payload read back from JSON.

    Args:
        spec: the queue.
        job: its payload, or a `NewJob` with more to say.
        attempt: which attempt it is, from 1 on; the lease number is the same.
        error: the error of the attempt before.
        connection: its `connection`, for handlers of transactional mode.

    Raises:
        InvalidPayload, InvalidInput: it could not be enqueued, or has no such attempt.

    Example:
        ```python
        job = job_for_test(emails, Email(to="ada@example.org"), attempt=3)
        assert isinstance(call_handler(emails, send, job), Retry)
        ```
    """
    check_spec(spec)
    try:
        row = new_row(spec, job)
    except InvalidInput as refused:
        raise type(refused)(str(refused).removeprefix("row 0: ")) from None
    new, text = row.job, row.columns["payload"]
    most = spec.max_attempts if new.max_attempts is None else new.max_attempts
    if not is_whole(attempt, 1, min(most, MAX_ATTEMPTS)):
        raise InvalidInput(f"attempt is {attempt!r}; the job has {most:,}, counted from 1")
    now = datetime.now(UTC)
    hand = _Hand(spec, connection)
    claimed = ClaimedJob(
        id=row.id,
        bucket=row.columns["hash"] % spec.bucket_count,
        priority=new.priority,
        lease_no=attempt,
        attempt=attempt,
        max_attempts=most,
        created_at=now,
        lease_until=now + timedelta(seconds=spec.lease_seconds),
        unique_key=new.unique_key,
        ordering_key=new.ordering_key,
        payload=text,
        error=None if error is None else brief(error),
        due_at=new.run_at or now,
        tags=list(new.tags),
        order_no=None,
        timeout_seconds=row.columns["timeout_seconds"],
        backoff=None,
        cancel_requested=False,
        limited=False,
        alone=True,
        queue=spec.name,
    )
    made = JobForTest.of(claimed, serialization.parse(spec, text), hand)
    made._hand = hand
    return made


@overload
def call_handler(spec: QueueSpec[Payload], handler: Any, job: Job[Payload]) -> Outcome: ...


@overload
def call_handler(spec: QueueSpec[Payload], handler: Any, job: list[Job[Payload]]) -> list[Outcome]: ...


def call_handler(
    spec: QueueSpec[Payload], handler: Any, job: "Job[Payload] | list[Job[Payload]]"
) -> Outcome | list[Outcome]:
    """Call a handler as a consumer does, and return the outcome that it would write.

    An async handler is awaited. None is `Done()`; what is no outcome, or cannot be stored, is a `Reject`. An exception is
    raised, so that a test shows where: a consumer makes it a `Retry`.

    Args:
        spec: the queue.
        handler: a function of a job or of a list of jobs; or what `handles` made of one.
        job: the job, or the list.

    Raises:
        InvalidInput: a consumer would not take the handler, or an event loop runs already: await the handler there.
        WrongHandler: what it returned is never awaited or iterated.
    """
    check_spec(spec)
    function = getattr(handler, "handler", handler)
    batch = isinstance(job, list)
    check_called_with_one(spec, function)
    check_awaited(spec, function)
    check_batch(spec, function, batch)
    given = function(job)
    if inspect.iscoroutine(given):
        given = _awaited(given)
    return outcomes_of(given, len(job)) if isinstance(job, list) else outcome_of(given)


def _awaited(given: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(given)
    given.close()
    raise InvalidInput("call_handler was called in an event loop, which it would block; await the handler itself")
