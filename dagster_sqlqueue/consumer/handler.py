"""Call a handler for a claimed job and return its outcome. No I/O of its own."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias

from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, QueueError, UnknownVersion, UnreadablePayload
from dagster_sqlqueue.model.job import ClaimedJob, InHand, Job
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload import redacted_text, serialization

Handler: TypeAlias = Callable[[Job[Payload]], Outcome | None]
"""Called for one job at a time."""

AsyncHandler: TypeAlias = Callable[[Job[Payload]], Awaitable[Outcome | None]]
"""Called for all jobs of a batch, which then take their time side by side on one event loop."""

BatchHandler: TypeAlias = Callable[[Sequence[Job[Payload]]], Any]
"""Called once for a batch. Returns an outcome for each job, in their order; or one for all of them, None being `Done()`.
May be async.
"""

AnyHandler: TypeAlias = Handler[Payload] | AsyncHandler[Payload] | BatchHandler[Payload]

_DONE = Done()
_ERROR_LIMIT = 10_000
_MESSAGE_LIMIT = 1_000


class Prepared(NamedTuple, Generic[Payload]):
    """A claimed job whose payload fits, and what its handler is given."""

    claimed: ClaimedJob
    job: Job[Payload]


def handle(
    spec: QueueSpec[Payload], handler: Handler[Payload], claimed: ClaimedJob, in_hand: InHand | None = None
) -> Outcome:
    """Call a handler for one job. Returns its outcome; a `Retry` for its exception, a `Reject` for a payload that does not
    fit or a result that cannot be stored, a `Hold` for a payload of a version that is not known, or that cannot be read.
    What it says quotes no sensitive value of the payload.
    """
    try:
        payload = serialization.parse(spec, claimed.payload)
    except InvalidPayload as error:
        return _without_handler(error)
    return _call(spec, handler, claimed, Job.of(claimed, payload, in_hand))


def handle_prepared(spec: QueueSpec[Payload], handler: Handler[Payload], prepared: Prepared[Payload]) -> Outcome:
    """Do the same for a job whose payload has been read."""
    return _call(spec, handler, *prepared)


async def handle_async(
    spec: QueueSpec[Payload], handler: AsyncHandler[Payload], prepared: Prepared[Payload]
) -> Outcome:
    """Do the same for a handler that is awaited."""
    try:
        outcome = _checked(await handler(prepared.job))
    except (Exception, asyncio.CancelledError) as error:
        outcome = Retry(_describe(error))
    return _discreet(spec, outcome, *prepared)


def handle_batch(
    spec: QueueSpec[Payload], call: Callable[[Sequence[Job[Payload]]], Any], batch: Sequence[Prepared[Payload]]
) -> list[Outcome]:
    """Do the same for a handler of a batch. Returns an outcome for each job, in their order. An exception is a `Retry` for
    all.
    """
    try:
        outcomes = _one_for_each(call([prepared.job for prepared in batch]), len(batch))
    except Exception as error:
        outcomes = [Retry(_describe(error))] * len(batch)
    return [_discreet(spec, outcome, *prepared) for outcome, prepared in zip(outcomes, batch, strict=True)]


def prepare(
    spec: QueueSpec[Payload], claimed: ClaimedJob, in_hand: InHand | None = None
) -> Prepared[Payload] | Outcome:
    """Read a job's payload. Returns the handler's argument; or the outcome, if the payload lets no handler begin."""
    try:
        payload = serialization.parse(spec, claimed.payload)
    except InvalidPayload as error:
        return _without_handler(error)
    return Prepared(claimed, Job.of(claimed, payload, in_hand))


def said(spec: QueueSpec[Payload], claimed: ClaimedJob, payload: Any, message: str | None) -> str | None:
    """Return a progress message as it may be stored: it quotes no sensitive value of the payload."""
    return message and _short(redacted_text.scrub(spec.payload, message, claimed.payload, payload))


def is_async(handler: Any) -> bool:
    """Return whether the handler is a coroutine function."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def brief(text: str) -> str:
    """Return a reason or error as it is stored: without what the database cannot take, at most 10,000 characters."""
    return serialization.storable_text(text)[:_ERROR_LIMIT]


def _short(message: str) -> str:
    return serialization.storable_text(message)[:_MESSAGE_LIMIT]


def _call(spec: QueueSpec[Payload], handler: Handler[Payload], claimed: ClaimedJob, job: Job[Payload]) -> Outcome:
    try:
        said = handler(job)
        if said is None:
            return _DONE
        outcome = _checked(said)
    except Exception as error:
        outcome = Retry(_describe(error))
    return _discreet(spec, outcome, claimed, job)


def _without_handler(error: QueueError) -> Outcome:
    reason = brief(str(error))
    return Hold(reason) if isinstance(error, UnknownVersion | UnreadablePayload) else Reject(reason)


def _discreet(spec: QueueSpec[Payload], outcome: Outcome, claimed: ClaimedJob, job: Job[Payload]) -> Outcome:
    if type(outcome) is Done:
        return outcome
    shown = claimed.payload, job.payload
    match outcome:
        case Retry(error, after):
            return Retry(redacted_text.scrub(spec.payload, error, *shown), after)
        case Hold(reason) | Reject(reason) | Cancel(reason):
            return type(outcome)(redacted_text.scrub(spec.payload, reason, *shown))
    return outcome


def _one_for_each(given: Any, count: int) -> list[Outcome]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [_checked(given)] * count
    if len(given) != count:
        raise InvalidInput(
            f"the handler was given {count} jobs and returned {len(given)} outcomes; return one for each job, in"
            " their order, or a single one for all of them"
        )
    return [_checked(outcome) for outcome in given]


def _checked(outcome: Any) -> Outcome:
    if outcome is None:
        return _DONE
    match outcome:
        case Done(None):
            return outcome
        case Done(result):
            done = Done(result)
            try:
                # Frozen for its users, of which there is none yet.
                object.__setattr__(done, "text", serialization.result_text(result))
            except InvalidInput as error:
                # The work is done. Doing it again would come to the same result.
                return Reject(str(error))
            return done
        case Retry() | Snooze() | Hold() | Reject() | Cancel():
            return outcome
        case _:
            raise InvalidInput(
                f"the handler returned a {type(outcome).__name__}; return Done(…), Retry(…), Snooze(…), Hold(…), Reject(…),"
                " Cancel(…) or None"
            )


def _describe(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    return f"{type(error).__name__}: {message}\n\n{''.join(traceback.format_exception(error))}"
