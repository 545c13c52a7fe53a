"""Call a handler: for one job, or for those of a batch, one after another, once for all of them, or side by side."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Generic, NamedTuple, TypeAlias

from dagster_sqlqueue.consumer.annotations import is_async
from dagster_sqlqueue.consumer.handler import (
    DONE,
    TIMED_OUT,
    AsyncHandler,
    Handler,
    Shape,
    check_awaited,
    discreet,
    failed,
    not_called,
    outcome_of,
    outcomes_of,
    said,
    shape_of,
)
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.progress import Reporter
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, WrongHandler
from dagster_sqlqueue.model.interrupts import is_interrupt
from dagster_sqlqueue.model.job import ClaimedJob, InHand, Job
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload import serialization

_CHECK_SECONDS = 1.0

Called: TypeAlias = tuple[ClaimedJob, Outcome | None]
"""A job with its outcome; None: its lease was lost, or it was given back, before it was begun."""


class Prepared(NamedTuple, Generic[Payload]):
    """A claimed job whose payload fits, and what its handler is given."""

    claimed: ClaimedJob
    job: Job[Payload]


@dataclass(slots=True)
class UnderLease(Generic[Payload]):
    """The `InHand` of all jobs of one consumer under leases.

    Args:
        spec: the queue.
        heartbeat: keeps their leases.
        reporter: writes their progress.
    """

    spec: QueueSpec[Payload]
    heartbeat: Heartbeat
    reporter: Reporter

    def cancellation(self, job: ClaimedJob) -> Event:
        """Return the event that is set when the job's cancellation is requested."""
        return self.heartbeat.cancellation(job)

    def connection(self) -> None:
        """Return None: a job under a lease has no transaction."""
        return

    def report(self, job: ClaimedJob, payload: Any, percent: float, message: str | None) -> None:
        """Note how far the job is."""
        self.reporter.report(job, percent, said(self.spec, job, payload, message))


@dataclass(slots=True)
class Caller(Generic[Payload]):
    """Calls one handler, batch after batch.

    Args:
        spec: the queue.
        handler: what is called, an `AnyHandler`.
        batch: it takes a batch.

    Attributes:
        shape: what it is a function of.
        outcomes: calls the handler for a batch, and yields each job with its outcome. Once the event is set no other job is
            begun.
    """

    spec: QueueSpec[Payload]
    handler: Any
    batch: bool = False
    shape: Shape = field(init=False)
    outcomes: Callable[[Sequence[ClaimedJob], UnderLease[Payload], Event], Generator[Called, None, None]] = field(
        init=False, repr=False
    )
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_awaited(self.spec, self.handler)
        self.shape = shape_of(self.handler, batch=self.batch)
        ways = {Shape.JOB: self._one_by_one, Shape.BATCH: self._together, Shape.ASYNC: self._side_by_side}
        self.outcomes = ways[self.shape]

    def close(self) -> None:
        """Close the event loop, if there is one."""
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.closing(loop):
                loop.run_until_complete(loop.shutdown_asyncgens())

    def _one_by_one(
        self, jobs: Sequence[ClaimedJob], in_hand: UnderLease[Payload], stopping: Event
    ) -> Generator[Called, None, None]:
        heartbeat = in_hand.heartbeat
        for claimed in jobs:
            if stopping.is_set():
                return
            if not heartbeat.begin(claimed, others_ended=True):
                yield claimed, None
                continue
            yield claimed, handle(self.spec, self.handler, claimed, in_hand)

    def _together(
        self, jobs: Sequence[ClaimedJob], in_hand: UnderLease[Payload], stopping: Event
    ) -> Generator[Called, None, None]:
        if stopping.is_set():
            return
        batch: list[Prepared[Payload]] = []
        for called in self._begun(jobs, in_hand):
            if isinstance(called, Prepared):
                batch.append(called)
            else:
                yield called
        if not batch:
            return
        call = self._awaited if is_async(self.handler) else self.handler
        outcomes = handle_batch(self.spec, call, batch)
        for prepared, outcome in zip(batch, outcomes, strict=True):
            in_hand.heartbeat.end(prepared.claimed)
            yield prepared.claimed, outcome

    def _side_by_side(
        self, jobs: Sequence[ClaimedJob], in_hand: UnderLease[Payload], stopping: Event
    ) -> Generator[Called, None, None]:
        if stopping.is_set():
            return
        loop = self.running_loop()
        tasks: dict[asyncio.Task[Outcome], ClaimedJob] = {}
        try:
            for called in self._begun(jobs, in_hand):
                if isinstance(called, Prepared):
                    until = in_hand.heartbeat.may_take_until(called.claimed)
                    tasks[loop.create_task(handle_async(self.spec, self.handler, called, until))] = called.claimed
                else:
                    yield called
            while tasks:
                wait = asyncio.wait(tasks, timeout=_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                done, _ = loop.run_until_complete(wait)
                for task in done:
                    claimed = tasks.pop(task)
                    in_hand.heartbeat.end(claimed)
                    yield claimed, task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def _begun(
        self, jobs: Sequence[ClaimedJob], in_hand: UnderLease[Payload]
    ) -> Generator[Prepared[Payload] | Called, None, None]:
        heartbeat = in_hand.heartbeat
        for claimed in jobs:
            if not heartbeat.begin(claimed):
                yield claimed, None
                continue
            prepared = prepare(self.spec, claimed, in_hand)
            if isinstance(prepared, Prepared):
                yield prepared
            else:
                heartbeat.end(claimed)
                yield claimed, prepared

    def _awaited(self, jobs: Sequence[Any]) -> Any:
        return self.running_loop().run_until_complete(self.handler(jobs))

    def call(self, prepared: Prepared[Payload]) -> Outcome:
        """Call a plain handler for one job. May be called from any thread."""
        return handle_prepared(self.spec, self.handler, prepared)

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of an async handler: the same until `close`.

        Raises:
            InvalidInput: this is called from inside another one.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise InvalidInput(
                f"queue {self.spec.name!r} has an async handler, and is worked off from inside a running event loop, which"
                " that would block; call it in a thread: await asyncio.to_thread(consumer.drain)"
            )
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop


def handle(
    spec: QueueSpec[Payload], handler: Handler[Payload], claimed: ClaimedJob, in_hand: InHand | None = None
) -> Outcome:
    """Call a handler for one job. Returns its outcome; a `Retry` for its exception, a `Reject` for a payload that does not
    fit, a result that cannot be stored or a returned value that is no outcome, a `Hold` for a payload of a version that is
    not known, or that cannot be read. What it says quotes no sensitive value of the payload.

    Raises:
        WrongHandler: it returned what is to be awaited or iterated.
        BaseException: an interrupt, which is no failure of the job.
    """
    try:
        payload = serialization.parse(spec, claimed.payload)
    except InvalidPayload as error:
        return not_called(error)
    return _call(spec, handler, claimed, Job.of(claimed, payload, in_hand))


def handle_prepared(spec: QueueSpec[Payload], handler: Handler[Payload], prepared: Prepared[Payload]) -> Outcome:
    """Do the same for a job whose payload has been read."""
    return _call(spec, handler, *prepared)


async def handle_async(
    spec: QueueSpec[Payload], handler: AsyncHandler[Payload], prepared: Prepared[Payload], until: float | None = None
) -> Outcome:
    """Do the same for a handler that is awaited. At its time-out it is cancelled, which is a `Retry` unless it ends in
    another way.

    Args:
        spec: the queue.
        handler: what is awaited.
        prepared: the job.
        until: the moment of `time.monotonic`, which event loops count by as well, of the time-out; None for none.
    """
    limit = asyncio.timeout_at(until)
    try:
        async with limit:
            outcome = outcome_of(await handler(prepared.job))
    except WrongHandler:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        outcome = TIMED_OUT if limit.expired() and isinstance(error, TimeoutError) else failed(error)
    return discreet(spec, outcome, *prepared)


def handle_batch(
    spec: QueueSpec[Payload], call: Callable[[Sequence[Job[Payload]]], Any], batch: Sequence[Prepared[Payload]]
) -> list[Outcome]:
    """Do the same for a handler of a batch. Returns an outcome for each job, in their order. An exception is a `Retry` for
    all, a wrong number of outcomes a `Reject` for all.
    """
    try:
        outcomes = outcomes_of(call([prepared.job for prepared in batch]), len(batch))
    except WrongHandler:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        outcomes = [failed(error)] * len(batch)
    return [discreet(spec, outcome, *prepared) for outcome, prepared in zip(outcomes, batch, strict=True)]


def prepare(
    spec: QueueSpec[Payload], claimed: ClaimedJob, in_hand: InHand | None = None
) -> Prepared[Payload] | Outcome:
    """Read a job's payload. Returns the handler's argument; or the outcome, if the payload lets no handler begin."""
    try:
        payload = serialization.parse(spec, claimed.payload)
    except InvalidPayload as error:
        return not_called(error)
    return Prepared(claimed, Job.of(claimed, payload, in_hand))


def _call(spec: QueueSpec[Payload], handler: Handler[Payload], claimed: ClaimedJob, job: Job[Payload]) -> Outcome:
    try:
        returned = handler(job)
        if returned is None:
            return DONE
        outcome = outcome_of(returned)
    except WrongHandler:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        outcome = failed(error)
    return discreet(spec, outcome, claimed, job)
