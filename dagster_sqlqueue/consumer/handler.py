"""What a handler is, and the outcome of what it returned or raised. No I/O."""

import contextlib
import enum
import inspect
import traceback
import types
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel

from dagster_sqlqueue.consumer.annotations import function_behind, is_async, payloads_of, signature_called, takes_batch
from dagster_sqlqueue.errors import InvalidInput, QueueError, UnknownVersion, UnreadablePayload, WrongHandler
from dagster_sqlqueue.model.job import ClaimedJob, Job
from dagster_sqlqueue.model.numbers import is_number, is_whole
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_lease_seconds
from dagster_sqlqueue.payload import redacted_text, serialization
from dagster_sqlqueue.payload.storable import storable_text

Handler: TypeAlias = Callable[[Job[Payload]], Outcome | None]
"""Called for one job at a time."""

AsyncHandler: TypeAlias = Callable[[Job[Payload]], Awaitable[Outcome | None]]
"""Called for all jobs of a batch, which then take their time side by side on one event loop."""

BatchHandler: TypeAlias = Callable[[list[Job[Payload]]], Any]
"""Called once for a batch. Returns an outcome for each job, in their order; or one for all of them, None being `Done()`.
Another number of outcomes rejects all of them. May be async.
"""

AnyHandler: TypeAlias = Handler[Payload] | AsyncHandler[Payload] | BatchHandler[Payload]

DONE = Done()
"""Of a handler that returns None."""

TIMED_OUT = Retry("the handler was cancelled at the time-out of its job")
"""Of an async handler."""

MAX_CONCURRENCY = 1_000

_KINDS = (Done, Retry, Snooze, Hold, Reject, Cancel)
_NOT_BEGUN = (types.GeneratorType, types.AsyncGeneratorType, map)

_NOT_AGAIN = "The job is not retried, which would do its work again; redrive it if that is wanted"
_ERROR_LIMIT = 10_000
_MESSAGE_LIMIT = 1_000


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


def check_called_with_one(spec: QueueSpec[Any], handler: Any) -> None:
    """Raise an error if a handler cannot be called with its job, or its batch, as the one positional argument.

    Raises:
        InvalidInput: it cannot: every call would fail.
    """
    if not callable(handler):
        raise InvalidInput(f"the handler of {spec.label} is {handler!r:.100}; it must be a function of one job")
    signature = signature_called(handler)
    if signature is None:
        return
    try:
        signature.bind(object())
    except TypeError as error:
        name = getattr(function_behind(handler), "__qualname__", repr(handler)).rpartition("<locals>.")[2]
        raise InvalidInput(
            f"the handler {name!r:.100} of {spec.label} is called with one positional argument, its job or batch, which"
            f" {signature!s:.500} does not take: {error}. Let it take that first, and nothing else without a default;"
            " or wrap it in a function that does"
        ) from None


def check_payloads(spec: QueueSpec[Any], named: str, payloads: Iterable[type[BaseModel]]) -> None:
    """Raise an error if a handler's annotations name other payloads than those of its queue, or of a base class of theirs.

    Args:
        spec: the queue.
        named: the handler, as the message names it.
        payloads: the models that it names.

    Raises:
        InvalidInput: one of them is another one.
    """
    for payload in payloads:
        if not issubclass(spec.payload, payload):
            raise InvalidInput(
                f"{named} takes Job[{payload.__name__}], and the payloads of queue {spec.name!r} are"
                f" {spec.payload.__name__}; give it the other queue, or change the annotation"
            )


def check_model(spec: QueueSpec[Any], handler: Any) -> None:
    """Raise an error if a handler's annotations name jobs with other payloads than those of its queue.

    Raises:
        InvalidInput: as for `check_payloads`.
    """
    check_payloads(spec, f"the handler {getattr(handler, '__qualname__', repr(handler))}", payloads_of(handler))


def check_batch(spec: QueueSpec[Any], handler: Any, batch: bool) -> None:
    """Raise an error if a handler says by its annotation that it takes a list of jobs where it is called with one, or one
    where it is called with a list.

    Raises:
        InvalidInput: it does: every call would fail.
    """
    said = takes_batch(handler)
    if said is None or said == batch:
        return
    name = getattr(function_behind(handler), "__qualname__", repr(handler)).rpartition("<locals>.")[2]
    raise InvalidInput(
        f"the handler {name!r:.100} of {spec.label} takes "
        + (
            "a list of jobs by its annotation, and is called with one at a time; give batch=True, or let it take a Job"
            if said
            else "one job by its annotation, and batch=True calls it with a list; leave batch out, or let it take a list"
        )
    )


def check_call(spec: QueueSpec[Any], handler: Any, batch: bool) -> None:
    """Raise an error if a consumer of a queue cannot call its handler.

    Raises:
        InvalidInput: as for `check_called_with_one`, `check_model` and `check_batch`.
    """
    check_called_with_one(spec, handler)
    check_model(spec, handler)
    check_batch(spec, handler, batch)


def check_concurrency(concurrency: int) -> None:
    """Raise an error if so many jobs cannot be handled at a time.

    Raises:
        InvalidInput: the number is out of range.
    """
    if not is_whole(concurrency, 1, MAX_CONCURRENCY):
        raise InvalidInput(f"concurrency is {concurrency!r}; it must be 1 to {MAX_CONCURRENCY:,}")


def check_times(lease_seconds: float | None, job_timeout_seconds: float | None) -> None:
    """Raise an error if a consumer's leases cannot be so long, or its jobs not take so long. None: as the queue has it.

    Raises:
        InvalidInput: one of them is out of range.
    """
    if lease_seconds is not None:
        check_lease_seconds(lease_seconds)
    if job_timeout_seconds is not None and not (is_number(job_timeout_seconds) and job_timeout_seconds > 0):
        raise InvalidInput(f"job_timeout_seconds is {job_timeout_seconds!r}; it must be positive")


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
    """Return an outcome for each of `count` jobs, from what the handler of a batch returned: a `Reject` for what is no
    outcome, and for all of them if there are not as many as jobs, since nobody knows whose they are.

    Raises:
        WrongHandler: it, or a part of it, is to be awaited or iterated.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        return [outcome_of(given)] * count
    try:
        outcomes = [outcome_of(outcome) for outcome in given]
    except WrongHandler:
        for outcome in given:
            _let_go(outcome)
        raise
    if len(outcomes) == count:
        return outcomes
    reason = (
        f"the handler was given {count} jobs and returned {len(outcomes)} outcomes; return one for each job, in their"
        f" order, or a single one for all of them. {_NOT_AGAIN}"
    )
    return [Reject(reason)] * count


def outcome_of(outcome: Any) -> Outcome:
    """Return what a handler returned for a job, checked, and with its result as text. What is no outcome, or cannot be
    stored, is a `Reject`: the work is done, and doing it again would come to the same.

    Raises:
        WrongHandler: it is to be awaited or iterated.
    """
    if outcome is None:
        return DONE
    match outcome:
        case Done(None):
            return outcome
        case Done() if outcome.text is not None:
            return outcome  # judged before
        case Done(result):
            done = Done(result)
            try:
                # Frozen for its users, of which there is none yet.
                object.__setattr__(done, "text", serialization.result_text(result))
            except InvalidInput as error:
                return Reject(str(error))
            return done
        case Retry() | Snooze() | Hold() | Reject() | Cancel():
            return outcome
        case _ if is_never_run(outcome):
            raise _never_run(outcome)
        case _ if inspect.isclass(outcome) and issubclass(outcome, _KINDS):
            name = outcome.__name__
            return Reject(f"the handler returned the class {name}; return an instance, {name}(…). {_NOT_AGAIN}")
        case _:
            return Reject(
                f"the handler returned a {type(outcome).__name__}; return Done(…), Retry(…), Snooze(…), Hold(…), Reject(…),"
                f" Cancel(…) or None. {_NOT_AGAIN}"
            )


def is_never_run(given: Any) -> bool:
    """Return whether what a handler returned does nothing until it is awaited or iterated."""
    return isinstance(given, _NOT_BEGUN) or inspect.isawaitable(given)


def _never_run(given: Any) -> WrongHandler:
    _let_go(given)
    kind = type(given).__name__
    if inspect.isawaitable(given):
        what = f"{kind}, which is to be awaited, and nothing awaits it: make the handler async def, or let it"
    else:
        what = f"{kind}, which does nothing until it is iterated, and nothing iterates it: let the handler do its work, and"
    return WrongHandler(
        f"the handler returned a {what} return an outcome. A consumer spends no attempt on this, and gives the jobs back"
    )


def _let_go(given: Any) -> None:
    """Close what nothing will await or iterate, so that Python does not warn of it."""
    if inspect.iscoroutine(given) or inspect.isgenerator(given):
        # Code of the handler may run at the close.
        with contextlib.suppress(Exception):
            given.close()


def failed(error: BaseException) -> Retry:
    """Return the outcome of a job whose handler raised this."""
    return Retry(_describe(error))


def _describe(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        trace = "(its traceback could not be made)"
    return f"{type(error).__name__}: {message}\n\n{trace}"
