"""Work jobs off side by side, a free slot for each that is claimed: in threads, or on an event loop."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from dagster_sqlqueue.consumer.caller import Caller, Prepared, UnderLease, handle_async, prepare
from dagster_sqlqueue.consumer.handler import Shape
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.leased import Work, end_leases, settle_called
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Done, Outcome, Retry

logger = logging.getLogger("dagster_sqlqueue")

_POLL_SECONDS = 0.1
"""The pause between claims while a slot is free and nothing was due; and the longest that an outcome waits for others."""

_LOGGED_IDS = 20

Ended: TypeAlias = tuple[ClaimedJob, Outcome | BaseException]
"""A job with its outcome, or with what its handler raised or returned and is to end the consumer."""

Claim = Callable[[int, bool], list[ClaimedJob]]
"""Claims up to so many jobs; true: they join others, so that none is taken whose lease ran out."""


class _Runner(Protocol):
    def start(self, claimed: ClaimedJob, job: Prepared[Any]) -> None:
        """Begin a job."""

    def ended(self, seconds: float) -> list[Ended]:
        """Wait until a job has ended, or the time is up. Returns those that have, with their outcomes."""

    def cancel(self) -> None:
        """Interrupt what can be interrupted."""

    def close(self) -> None:
        """Let go of what is still under way."""


def log_released(queue_name: str, jobs: Sequence[ClaimedJob]) -> None:
    """Log jobs that were released although their handlers had begun: one line, with the first twenty ids."""
    if jobs:
        ids = ", ".join(str(job.id) for job in jobs[:_LOGGED_IDS])
        more = "" if len(jobs) <= _LOGGED_IDS else f", and {len(jobs) - _LOGGED_IDS} more"
        logger.warning("queue %s: released before their handlers had ended: %s%s", queue_name, ids, more)


@dataclass(slots=True)
class SideBySide:
    """Works a queue off with up to `concurrency` handlers at a time. A job is claimed only when it can begin at once.

    A job whose lease ran out may be what its consumer died of: it is begun when all others have ended, and nothing beside
    it.

    Args:
        work: what is worked off.
        heartbeat: keeps the leases.
        concurrency: how many jobs at a time.
        claim: takes jobs.
        announce: called with the jobs that were taken, before any of them is begun.

    Attributes:
        cut_off: jobs that were released as their handlers were interrupted.
    """

    work: Work[Any]
    heartbeat: Heartbeat
    concurrency: int
    claim: Claim
    announce: Callable[[Sequence[ClaimedJob]], None]
    _running: dict[UUID, ClaimedJob] = field(default_factory=dict, init=False)
    _waiting: list[ClaimedJob] = field(default_factory=list, init=False)
    _alone: bool = field(default=False, init=False)
    _empty_at: float = field(default=0.0, init=False)
    _runner: _Runner | None = field(default=None, init=False)
    _interrupted: threading.Event = field(default_factory=threading.Event, init=False)
    _wrong: BaseException | None = field(default=None, init=False)
    cut_off: int = field(default=0, init=False)

    @property
    def alone(self) -> bool:
        """Whether the job in hand, or the one that is to begin next, is to have nothing beside it."""
        return self._alone or any(job.alone for job in self._waiting)

    def interrupt(self) -> None:
        """Interrupt the handlers: their cancellation events are set, and `finish` cancels async ones. A job whose handler
        does not succeed from now on is released, no attempt spent: the interrupt, and not the job, may be the reason. May be
        called from any thread.
        """
        self._interrupted.set()
        self.heartbeat.cancel_all()

    def step(self, *, may_claim: bool) -> int:
        """Fill the free slots, and end what has ended meanwhile.

        Args:
            may_claim: whether the time is not up.

        Returns:
            How many jobs are in hand or have ended; 0: nothing is due, and nothing is under way.

        Raises:
            WrongHandler: a handler returned what is to be awaited or iterated; its job was given back.
            BaseException: a handler was interrupted, or ended the process.
        """
        taken = self._fill() if may_claim else 0
        in_hand = len(self._running)
        if in_hand:
            self._settle(self._open().ended(_POLL_SECONDS))
            self._complain()
        return max(taken, in_hand)

    def finish(self) -> None:
        """Wait for the jobs that are under way, and end them."""
        cancelled = False
        try:
            self._give_back_unbegun()
            while self._running:
                if self._interrupted.is_set() and not cancelled:
                    cancelled = True
                    self._open().cancel()
                self._settle(self._open().ended(_POLL_SECONDS))
            self._complain()
        finally:
            self._close()

    def abandon(self) -> None:
        """End what ends within a lease, after an interrupt or an error. An async handler is cancelled, and its job given
        back unless it had ended; a job whose thread goes on is left to its lease: it must not be begun while it is still
        worked on.
        """
        self.interrupt()
        deadline = time.monotonic() + self.work.patience_seconds
        threaded = self.work.caller.shape is not Shape.ASYNC
        try:
            self._give_back_unbegun()
            if self._running:
                self._open().cancel()
            while self._running and time.monotonic() < deadline:
                self._settle(self._open().ended(1.0))
        finally:
            left = list(self._running.values())
            self._close()
            # A drain that goes on after an error begins anew.
            self._interrupted.clear()
            self._wrong = None
            self.cut_off = 0
            if threaded:
                self.heartbeat.let_go(left)
            else:
                self._release(left, begun=True)

    def _fill(self) -> int:
        if self._alone or self._waiting:
            return self._begin_waiting()
        free = self.concurrency - len(self._running)
        if not free or (self._running and time.monotonic() - self._empty_at < _POLL_SECONDS):
            return 0
        jobs = self.claim(free, True)
        if not jobs:
            self._empty_at = time.monotonic()
            if self._running:
                return 0
            jobs = self.claim(1, False)
        self.heartbeat.hold(jobs)
        self._waiting = list(jobs)
        self.announce(jobs)
        self._begin_waiting()
        return len(jobs)

    def _begin_waiting(self) -> int:
        """Begin what may begin now: one that is to be alone, when nothing is under way."""
        begun = 0
        while self._waiting and not self._alone and not self.work.stopping.is_set():
            if self._waiting[0].alone and self._running:
                break
            claimed = self._waiting.pop(0)
            self._alone = claimed.alone
            self._begin(claimed)
            begun += 1
        return begun

    def _begin(self, claimed: ClaimedJob) -> None:
        if not self.heartbeat.begin(claimed):
            self._alone = False
            if self.heartbeat.parted_with(claimed):
                self._release([claimed], begun=False)
            else:
                self.work.count_lost(claimed)
                self.heartbeat.forget([claimed])
            return
        made = prepare(self.work.spec, claimed, UnderLease(self.work.spec, self.heartbeat, self.work.reporter))
        self._running[claimed.id] = claimed
        if isinstance(made, Prepared):
            self._open().start(claimed, made)
        else:
            self._settle([(claimed, made)])

    def _settle(self, called: Sequence[Ended]) -> None:
        ended: list[tuple[ClaimedJob, Outcome]] = []
        back: list[ClaimedJob] = []
        misused: list[ClaimedJob] = []
        dead: list[ClaimedJob] = []
        for claimed, outcome in called:
            self.heartbeat.end(claimed)
            del self._running[claimed.id]
            self._alone = self._alone and bool(self._running)
            if isinstance(outcome, BaseException):
                self._wrong = outcome
                (dead if isinstance(outcome, SystemExit) else misused).append(claimed)
            elif self._interrupted.is_set() and not isinstance(outcome, Done):
                back.append(claimed)
            else:
                ended.append((claimed, outcome))
        if ended:
            self._empty_at = 0.0
            settle_called(self.work, ended, self.heartbeat)
        if back:
            self.cut_off += len(back)
            self._release(back, begun=True)
        if misused:
            self._release(misused, begun=True)
        if dead:
            end_leases(self.work, self.heartbeat.part_with(begun=True, of=dead))
            self.heartbeat.forget(dead)

    def _complain(self) -> None:
        wrong, self._wrong = self._wrong, None
        if wrong is not None:
            raise wrong

    def _give_back_unbegun(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._release(waiting, begun=False)

    def _release(self, jobs: Sequence[ClaimedJob], *, begun: bool) -> None:
        # What takes them out of the heartbeat gives them back: this, or `Consumer.give_back` from another thread.
        mine = self.heartbeat.part_with(begun=begun, of=jobs) if jobs else []
        self.work.summary.released += sum(self.heartbeat.parted_with(job) for job in jobs) - len(mine)
        self.work.reporter.forget((job, None) for job in jobs)
        self.heartbeat.forget(jobs)
        if mine:
            self.work.summary.released += len(self.work.leases.release(mine))
            if begun:
                log_released(self.work.spec.name, mine)

    def _open(self) -> _Runner:
        if self._runner is None:
            caller = self.work.caller
            self._runner = (
                _Loop(caller, self.heartbeat) if caller.shape is Shape.ASYNC else _Threads(caller, self.concurrency)
            )
        return self._runner

    def _close(self) -> None:
        runner, self._runner = self._runner, None
        self._running, self._alone = {}, False
        if runner is not None:
            runner.close()


class _Threads:
    """A plain handler in threads of its own, which a process that ends does not wait for."""

    def __init__(self, caller: Caller[Any], size: int) -> None:
        self._caller = caller
        self._size = size
        self._begun: queue.SimpleQueue[tuple[ClaimedJob, Prepared[Any]] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._threads = 0

    def start(self, claimed: ClaimedJob, job: Prepared[Any]) -> None:
        """Begin a job in a thread that is free; as many are made as are ever needed."""
        if self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._run, name=f"sqlqueue-handler-{self._threads}", daemon=True).start()
        self._begun.put((claimed, job))

    def ended(self, seconds: float) -> list[Ended]:
        """Wait until a job has ended, or the time is up. Returns those that have."""
        found: list[Ended] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._ended.get(timeout=seconds))
            while True:
                found.append(self._ended.get_nowait())
        return found

    def cancel(self) -> None:
        """Do nothing: a thread cannot be interrupted."""

    def close(self) -> None:
        """Let the threads end, each after what it is at."""
        for _ in range(self._threads):
            self._begun.put(None)

    def _run(self) -> None:
        while (given := self._begun.get()) is not None:
            claimed, job = given
            try:
                self._ended.put((claimed, self._caller.call(job)))
            except BaseException as error:
                # Whatever it is: without an outcome the consumer would wait for this job for ever.
                self._ended.put((claimed, error))


class _Loop:
    """An async handler on the caller's event loop, which runs while outcomes are waited for."""

    def __init__(self, caller: Caller[Any], heartbeat: Heartbeat) -> None:
        self._caller = caller
        self._heartbeat = heartbeat
        self._loop = caller.running_loop()
        self._tasks: dict[asyncio.Task[Outcome], ClaimedJob] = {}

    def start(self, claimed: ClaimedJob, job: Prepared[Any]) -> None:
        """Begin a job as a task."""
        until = self._heartbeat.may_take_until(claimed)
        made = handle_async(self._caller.spec, self._caller.handler, job, until)
        self._tasks[self._loop.create_task(made)] = claimed

    def ended(self, seconds: float) -> list[Ended]:
        """Wait until a job has ended, or the time is up. Returns those that have."""
        first = asyncio.wait(set(self._tasks), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        waiting = self._loop.create_task(first)
        try:
            done, _ = self._loop.run_until_complete(waiting)
        except SystemExit:
            # It leaves the loop at once, and is the outcome of its task besides.
            waiting.cancel()
            done = {task for task in self._tasks if task.done()}
        return [(self._tasks.pop(task), _ended_by(task)) for task in done]

    def cancel(self) -> None:
        """Cancel what is under way; a handler may still end it in another way."""
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """Cancel what is under way, and wait for its end."""
        self.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._tasks.clear()


def _ended_by(task: asyncio.Task[Outcome]) -> Outcome | BaseException:
    if task.cancelled():
        # Before it began: once it has, the handler's outcome says so.
        return Retry("cancelled before it began")
    return task.exception() or task.result()
