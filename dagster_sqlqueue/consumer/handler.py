"""What a handler is, and the outcome of what it returned or raised. No I/O."""

import enum
import functools
import inspect
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from dagster_sqlqueue.errors import InvalidInput, QueueError, UnknownVersion, UnreadablePayload, WrongHandler
from dagster_sqlqueue.model.job import ClaimedJob, Job
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload import redacted_text, serialization
from dagster_sqlqueue.payload.storable import storable_text

Handler: TypeAlias = Callable[[Job[Payload]], Outcome | None]
"""Called for one job at a time."""

AsyncHandler: TypeAlias = Callable[[Job[Payload]], Awaitable[Outcome | None]]
"""Called for all jobs of a batch, which then take their time side by side on one event loop."""

BatchHandler: TypeAlias = Callable[[Sequence[Job[Payload]]], Any]
"""Called once for a batch. Returns an outcome for each job, in their order; or one for all of them, None being `Done()`.
May be async.
"""

AnyHandler: TypeAlias = Handler[Payload] | AsyncHandler[Payload] | BatchHandler[Payload]

DONE = Done()
"""Of a handler that returns None."""

TIMED_OUT = Retry("the handler was cancelled at the time-out of its job")
"""Of an async handler."""

MAX_CONCURRENCY = 1_000

_ERROR_LIMIT = 10_000
_MESSAGE_LIMIT = 1_000


def is_async(handler: Any) -> bool:
    """Return whether the handler is a coroutine function."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def function_behind(handler: Any) -> Any:
    """Return the function behind a partial, a wrapper or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if inspect.isroutine(handler) or inspect.isclass(handler):
        return handler
    return inspect.unwrap(type(handler).__call__)


def check_awaited(spec: QueueSpec[Any], handler: Any) -> None:
    """Raise an error if a handler is a plain wrapper around an async function.

    Raises:
        InvalidInput: it is: nothing would await what it returns.
    """
    function = function_behind(handler)
    if is_async(function) and not is_async(handler):
        name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        raise InvalidInput(
            f"the handler of {spec.label} is a plain wrapper around the async function {name!r:.100}, and nothing would"
            " await what it returns; write the wrapper as async def, and let it await the function. If it runs the"
            " function to its end, as asyncio.run does, leave functools.wraps out"
        )


def check_concurrency(concurrency: int) -> None:
    """Raise an error if so many jobs cannot be handled at a time.

    Raises:
        InvalidInput: the number is out of range.
    """
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise InvalidInput(f"concurrency is {concurrency}; it must be 1 to {MAX_CONCURRENCY:,}")


class Shape(enum.StrEnum):
    """What a handler is a function of."""

    JOB = "job"
    BATCH = "batch"
    ASYNC = "async"


def shape_of(handler: Any, *, batch: bool = False) -> Shape:
    """Return the shape of a handler, which shows by itself whether it is async."""
    if batch:
        return Shape.BATCH
    return Shape.ASYNC if is_async(handler) else Shape.JOB


def said(spec: QueueSpec[Payload], claimed: ClaimedJob, payload: Any, message: str | None) -> str | None:
    """Return a progress message as it may be stored: it quotes no sensitive value of the payload."""
    return message and _short(redacted_text.scrub(spec.payload, message, claimed.payload, payload))


def brief(text: str) -> str:
    """Return a reason or error as it is stored: without what the database cannot take, at most 10,000 characters."""
    return storable_text(text)[:_ERROR_LIMIT]


def _short(message: str) -> str:
    return storable_text(message)[:_MESSAGE_LIMIT]


def not_called(error: QueueError) -> Outcome:
    """Return the outcome of a job whose payload lets no handler begin."""
    reason = brief(str(error))
    return Hold(reason) if isinstance(error, UnknownVersion | UnreadablePayload) else Reject(reason)


def discreet(spec: QueueSpec[Payload], outcome: Outcome, claimed: ClaimedJob, job: Job[Payload]) -> Outcome:
    """Return the outcome as it may be stored: it quotes no sensitive value of the payload."""
    if type(outcome) is Done:
        return outcome
    shown = claimed.payload, job.payload
    match outcome:
        case Retry(error, after):
            return Retry(redacted_text.scrub(spec.payload, error, *shown), after)
        case Hold(reason) | Reject(reason) | Cancel(reason):
            return type(outcome)(redacted_text.scrub(spec.payload, reason, *shown))
    return outcome


def outcomes_of(given: Any, count: int) -> list[Outcome]:
    """Return an outcome for each of `count` jobs, from what the handler of a batch returned.

    Raises:
        InvalidInput: it does not fit.
        WrongHandler: it, or a part of it, is to be awaited.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [outcome_of(given)] * count
    if len(given) != count:
        raise InvalidInput(
            f"the handler was given {count} jobs and returned {len(given)} outcomes; return one for each job, in"
            " their order, or a single one for all of them"
        )
    try:
        return [outcome_of(outcome) for outcome in given]
    except WrongHandler:
        for outcome in given:
            _let_go(outcome)
        raise


def outcome_of(outcome: Any) -> Outcome:
    """Return what a handler returned for a job, checked, and with its result as text.

    Raises:
        InvalidInput: it is no outcome.
        WrongHandler: it is to be awaited.
    """
    if outcome is None:
        return DONE
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
        case _ if inspect.isawaitable(outcome):
            raise _never_awaited(outcome)
        case _:
            raise InvalidInput(
                f"the handler returned a {type(outcome).__name__}; return Done(…), Retry(…), Snooze(…), Hold(…), Reject(…),"
                " Cancel(…) or None"
            )


def _never_awaited(given: Any) -> WrongHandler:
    _let_go(given)
    return WrongHandler(
        f"the handler returned a {type(given).__name__}, which is to be awaited, and nothing awaits it: make the handler"
        " async def, or let it return an outcome. No attempt was spent; its jobs were given back"
    )


def _let_go(given: Any) -> None:
    """Close a coroutine that nothing will await, so that Python does not warn of it."""
    if inspect.iscoroutine(given):
        given.close()


def failed(error: BaseException) -> Retry:
    """Return the outcome of a job whose handler raised this."""
    return Retry(_describe(error))


def _describe(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    return f"{type(error).__name__}: {message}\n\n{''.join(traceback.format_exception(error))}"
