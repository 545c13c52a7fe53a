"""One call of a handler, without a database: the job that it is given, and the outcome that a consumer would write."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast, overload

from dagster_sqlqueue.consumer.annotations import is_async, takes_batch
from dagster_sqlqueue.consumer.handler import (
    AnyHandler,
    brief,
    check_awaited,
    check_called_with_one,
    discreet,
    outcome_of,
    outcomes_of,
    said,
)
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion, UnreadablePayload
from dagster_sqlqueue.model.job import ClaimedJob, Job, NewJob
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.queue.intake import new_row
from dagster_sqlqueue.testing.handlers import bare


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

    __slots__ = ()

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("make one with job_for_test(spec, payload)")

    @property
    def claimed(self) -> ClaimedJob:
        """The job as a claim returns it."""
        return self._claimed

    @property
    def reports(self) -> list[tuple[float, str | None]]:
        """The progress that was reported: each percentage with its message, as it would be stored."""
        return cast(_Hand, self._in_hand).reports

    def request_cancellation(self) -> None:
        """Request that the job be cancelled, as an operator does while it runs."""
        self.cancellation.set()


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
        InvalidPayload, UnknownVersion, UnreadablePayload: a consumer could not read the payload back.

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
        raise type(refused)(serialization.without_row(refused)) from None
    new, text = row.job, row.columns["payload"]
    most = spec.max_attempts if new.max_attempts is None else new.max_attempts
    if not is_whole(attempt, 1, most):
        raise InvalidInput(f"attempt is {attempt!r}; give 1 to {most:,}, or the job more max_attempts by a NewJob")
    if not (error is None or isinstance(error, str)):
        raise InvalidInput(f"error is {error!r:.100}; give the text of the attempt before, or None")
    try:
        payload = serialization.parse(spec, text)
    except (InvalidPayload, UnknownVersion, UnreadablePayload) as unread:
        raise type(unread)(
            f"the job could be enqueued, and a consumer could not read its payload back: {unread}. Mend the serializers or"
            f" aliases of {spec.payload.__name__}"
        ) from None
    now = datetime.now(UTC)
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
    return JobForTest.of(claimed, payload, _Hand(spec, connection))


@overload
def call_handler(spec: QueueSpec[Payload], handler: AnyHandler[Payload], job: JobForTest[Payload]) -> Outcome: ...


@overload
def call_handler(
    spec: QueueSpec[Payload], handler: AnyHandler[Payload], job: Sequence[JobForTest[Payload]]
) -> list[Outcome]: ...


def call_handler(
    spec: QueueSpec[Payload],
    handler: AnyHandler[Payload],
    job: "JobForTest[Payload] | Sequence[JobForTest[Payload]]",
) -> Outcome | list[Outcome]:
    """Call a handler as a consumer does, and return the outcome that it would write.

    An async handler is awaited. None is `Done()`; what is no outcome, or cannot be stored, is a `Reject`. Reasons and errors
    are without the values of sensitive fields. An exception is raised, so that a test shows where: a consumer makes it a
    `Retry`.

    Args:
        spec: the queue.
        handler: a function of a job or of a list of jobs; or what `handles` made of one.
        job: what `job_for_test` made; or a sequence of such for a handler of a batch.

    Returns:
        The outcome, or of a batch one for each job.

    Raises:
        InvalidInput: a consumer would not take the handler, these are not jobs of the queue, or an event loop runs already.
        WrongHandler: what the handler returned is never awaited or iterated.
    """
    check_spec(spec)
    function = bare(spec, handler)
    jobs = [job] if isinstance(job, Job) else _jobs(job)
    for one in jobs:
        _check_job(spec, one)
    check_called_with_one(spec, function)
    check_awaited(spec, function)
    batch = not isinstance(job, Job)
    if (taken := takes_batch(function)) is not None and taken != batch:
        raise InvalidInput(
            f"the handler of {spec.label} takes {'a list of jobs' if taken else 'one job'} by its annotation; give"
            f" call_handler {'a list' if taken else 'one, not a list'}"
        )
    given = function(jobs if batch else jobs[0])
    if is_async(function):
        given = _awaited(given)
    outcomes = outcomes_of(given, len(jobs)) if batch else [outcome_of(given)]
    written = [discreet(spec, outcome, one.claimed, one) for outcome, one in zip(outcomes, jobs, strict=True)]
    return written if batch else written[0]


def _jobs(given: object) -> list[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidInput(f"the job is a {type(given).__name__}; make one with job_for_test(spec, payload)")
    return list(given)


def _check_job(spec: QueueSpec[Any], job: Any) -> None:
    if not isinstance(job, JobForTest):
        raise InvalidInput(f"the job is a {type(job).__name__}; make one with job_for_test(spec, payload)")
    if job.queue != spec.name:
        raise InvalidInput(f"the job is of queue {job.queue!r}, and the handler is called for {spec.label}")


def _awaited(given: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(given)
    given.close()
    raise InvalidInput(
        "call_handler was called in an event loop, which it would block; call it in a thread:"
        " await asyncio.to_thread(call_handler, spec, handler, job)"
    )
