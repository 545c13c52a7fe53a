"""From a claimed job to the outcome of its handler. No I/O of its own."""

import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from dagster_sqlqueue import payloads, quoting
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion
from dagster_sqlqueue.model import ClaimedJob, Job
from dagster_sqlqueue.outcomes import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.settings import Payload, QueueSpec

Handler: TypeAlias = Callable[[Job[Payload]], Outcome | None]

Report: TypeAlias = Callable[[ClaimedJob, float, str | None], None]
"""What takes note of how far a job is."""

_ERROR_LIMIT = 10_000
_MESSAGE_LIMIT = 1_000


def handle(
    spec: QueueSpec[Payload],
    handler: Handler[Payload],
    claimed: ClaimedJob,
    *,
    cancellation: threading.Event | None = None,
    connect: Callable[[], Any] | None = None,
    report: Report | None = None,
) -> Outcome:
    """What became of the job: the handler's outcome; a `Retry` for its exception, a `Reject` for a payload that does not
    fit or a result that cannot be stored, a `Hold` for a payload of a version that is not known. What it says, also as its
    progress, quotes no sensitive value of the payload.
    """
    try:
        payload = payloads.parse(spec, claimed.payload)
    except UnknownVersion as error:
        return Hold(str(error))
    except InvalidPayload as error:
        return Reject(str(error))

    def say(percent: float, message: str | None) -> None:
        if report is not None:
            report(claimed, percent, message and _short(quoting.scrub(spec.payload, message, claimed.payload, payload)))

    try:
        job = _job(claimed, payload, cancellation or threading.Event(), connect, say)
        outcome = _checked(handler(job))
    except Exception as error:
        outcome = Retry(_describe(error))
    return outcome if isinstance(outcome, Done) else _discreet(spec, outcome, claimed.payload, payload)


def brief(text: str) -> str:
    """A reason or error as it is stored: without what the database cannot take, at most 10,000 characters."""
    return payloads.storable_text(text)[:_ERROR_LIMIT]


def _short(message: str) -> str:
    return payloads.storable_text(message)[:_MESSAGE_LIMIT]


def _job(
    claimed: ClaimedJob,
    payload: Payload,
    cancellation: threading.Event,
    connect: Callable[[], Any] | None,
    report: Callable[[float, str | None], None],
) -> Job[Payload]:
    return Job(
        id=claimed.id,
        queue=claimed.queue,
        payload=payload,
        lease_no=claimed.lease_no,
        attempt=claimed.attempt,
        max_attempts=claimed.max_attempts,
        priority=claimed.priority,
        created_at=claimed.created_at,
        unique_key=claimed.unique_key,
        ordering_key=claimed.ordering_key,
        error=claimed.error,
        tags=claimed.tags,
        cancellation=cancellation,
        connect=connect,
        report=report,
    )


def _discreet(spec: QueueSpec[Payload], outcome: Outcome, *shown: object) -> Outcome:
    match outcome:
        case Retry(error, after):
            return Retry(quoting.scrub(spec.payload, error, *shown), after)
        case Hold(reason) | Reject(reason) | Cancel(reason):
            return type(outcome)(quoting.scrub(spec.payload, reason, *shown))
    return outcome


def _checked(outcome: Any) -> Outcome:
    match outcome:
        case None:
            return Done()
        case Done(result):
            try:
                payloads.result_text(result)
            except InvalidInput as error:
                # The work is done. Doing it again would come to the same result.
                return Reject(str(error))
            return Done(result)
        case Retry() | Snooze() | Hold() | Reject() | Cancel():
            return outcome
        case _:
            raise InvalidInput(
                f"the handler returned a {type(outcome).__name__}; return Done(…), Retry(…), Snooze(…), Hold(…), Reject(…),"
                " Cancel(…) or None"
            )


def _describe(error: Exception) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    return f"{type(error).__name__}: {message}\n\n{''.join(traceback.format_exception(error))}"
