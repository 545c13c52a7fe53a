"""Call a handler for the jobs of a batch: for one after another, once for all of them, or side by side."""

import asyncio
import contextlib
import enum
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Generic, TypeAlias

from dagster_sqlqueue.consumer.handler import (
    Prepared,
    handle,
    handle_async,
    handle_batch,
    handle_prepared,
    is_async,
    prepare,
    said,
)
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.progress import Reporter
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import Payload, QueueSpec

_LOOK_SECONDS = 1.0

Called: TypeAlias = tuple[ClaimedJob, Outcome | None]
"""A job with its outcome; None: its lease was lost, or it was given back, before it was begun."""


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
                    tasks[loop.create_task(handle_async(self.spec, self.handler, called))] = called.claimed
                else:
                    yield called
            while tasks:
                wait = asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
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
