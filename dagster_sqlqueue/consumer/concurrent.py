"""Work jobs off side by side, a free slot for each that is claimed: in threads, or on an event loop."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from dagster_sqlqueue.consumer.caller import Called, Caller, Prepared, UnderLease, handle_async, prepare
from dagster_sqlqueue.consumer.handler import Shape
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.leased import Work, settle_called
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Outcome

_LOOK_SECONDS = 0.1
"""The pause between claims while a slot is free and nothing was due; and the longest that an outcome waits for others."""

Claim = Callable[[int, bool], list[ClaimedJob]]
"""Claims up to so many jobs; true: they join others, so that none is taken whose lease ran out."""


class _Runner(Protocol):
    def start(self, claimed: ClaimedJob, job: Prepared[Any]) -> None:
        """Begin a job."""

    def ended(self, seconds: float) -> list[Called]:
        """Wait until a job has ended, or the time is up. Returns those that have, with their outcomes."""

    def close(self) -> None:
        """Let go of what is still under way."""


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
    """

    work: Work[Any]
    heartbeat: Heartbeat
    concurrency: int
    claim: Claim
    _running: dict[UUID, ClaimedJob] = field(default_factory=dict, init=False)
    _waiting: list[ClaimedJob] = field(default_factory=list, init=False)
    _alone: bool = field(default=False, init=False)
    _empty_at: float = field(default=0.0, init=False)
    _runner: _Runner | None = field(default=None, init=False)

    def step(self, *, may_claim: bool) -> int:
        """Fill the free slots, and end what has ended meanwhile.

        Args:
            may_claim: whether the time is not up.

        Returns:
            How many jobs are in hand or have ended; 0: nothing is due, and nothing is under way.
        """
        taken = self._fill() if may_claim else 0
        in_hand = len(self._running)
        if in_hand:
            self._settle(self._open().ended(_LOOK_SECONDS))
        return max(taken, in_hand)

    def finish(self) -> None:
        """Wait for the jobs that are under way, and end them."""
        self._give_back_unbegun()
        try:
            while self._running:
                self._settle(self._open().ended(1.0))
        finally:
            self._close()

    def abandon(self) -> None:
        """End what ends within a lease, after an interrupt or an error. An async handler is cancelled and its job given
        back; a job whose thread goes on is left to its lease: it must not be begun while it is still worked on.
        """
        self._give_back_unbegun()
        self.heartbeat.cancel_all()
        deadline = time.monotonic() + self.work.patience_seconds
        threaded = self.work.caller.shape is not Shape.ASYNC
        try:
            while threaded and self._running and time.monotonic() < deadline:
                self._settle(self._open().ended(1.0))
        finally:
            left = list(self._running.values())
            self._close()
            if left and not threaded:
                mine = [job for job in self.heartbeat.part_with(begun=True) if any(job is one for one in left)]
                self.work.summary.released += len(self.work.leases.release(mine))

    def _fill(self) -> int:
        if self._alone or self._waiting:
            return self._begin_waiting()
        free = self.concurrency - len(self._running)
        if not free or (self._running and time.monotonic() - self._empty_at < _LOOK_SECONDS):
            return 0
        jobs = self.claim(free, True)
        if not jobs:
            self._empty_at = time.monotonic()
            if self._running:
                return 0
            jobs = self.claim(1, False)
        self.heartbeat.hold(jobs)
        self._waiting = list(jobs)
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
            if not self.heartbeat.parted_with(claimed):
                self.work.count_lost(claimed)
            self.heartbeat.forget([claimed])
            return
        made = prepare(self.work.spec, claimed, UnderLease(self.work.spec, self.heartbeat, self.work.reporter))
        self._running[claimed.id] = claimed
        if isinstance(made, Prepared):
            self._open().start(claimed, made)
        else:
            self._settle([(claimed, made)])

    def _settle(self, called: Sequence[Called]) -> None:
        ended: list[tuple[ClaimedJob, Outcome]] = []
        for claimed, outcome in called:
            self.heartbeat.end(claimed)
            del self._running[claimed.id]
            self._alone = self._alone and bool(self._running)
            if outcome is not None:
                ended.append((claimed, outcome))
        if ended:
            self._empty_at = 0.0
            settle_called(self.work, ended, self.heartbeat)

    def _give_back_unbegun(self) -> None:
        waiting, self._waiting = self._waiting, []
        # What takes them out of the heartbeat gives them back: this, or `Consumer.give_back` from another thread.
        mine = [job for job in self.heartbeat.part_with() if any(job is one for one in waiting)]
        if mine:
            self.work.summary.released += len(self.work.leases.release(mine))

    def _open(self) -> _Runner:
        if self._runner is None:
            caller = self.work.caller
            self._runner = _Loop(caller) if caller.shape is Shape.ASYNC else _Threads(caller, self.concurrency)
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
        self._ended: queue.SimpleQueue[Called] = queue.SimpleQueue()
        self._threads = 0

    def start(self, claimed: ClaimedJob, job: Prepared[Any]) -> None:
        """Begin a job in a thread that is free; as many are made as are ever needed."""
        if self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._run, name=f"sqlqueue-handler-{self._threads}", daemon=True).start()
        self._begun.put((claimed, job))

    def ended(self, seconds: float) -> list[Called]:
        """Wait until a job has ended, or the time is up. Returns those that have."""
        found: list[Called] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._ended.get(timeout=seconds))
            while True:
                found.append(self._ended.get_nowait())
        return found

    def close(self) -> None:
        """Let the threads end, each after what it is at."""
        for _ in range(self._threads):
            self._begun.put(None)

    def _run(self) -> None:
        while (given := self._begun.get()) is not None:
            claimed, job = given
            self._ended.put((claimed, self._caller.call(job)))


class _Loop:
    """An async handler on the caller's event loop, which runs while outcomes are waited for."""

    def __init__(self, caller: Caller[Any]) -> None:
        self._caller = caller
        self._loop = caller.running_loop()
        self._tasks: dict[asyncio.Task[Outcome], ClaimedJob] = {}

    def start(self, claimed: ClaimedJob, job: Prepared[Any]) -> None:
        """Begin a job as a task."""
        made = handle_async(self._caller.spec, self._caller.handler, job)
        self._tasks[self._loop.create_task(made)] = claimed

    def ended(self, seconds: float) -> list[Called]:
        """Wait until a job has ended, or the time is up. Returns those that have."""
        wait = asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        done, _ = self._loop.run_until_complete(wait)
        return [(self._tasks.pop(task), task.result()) for task in done]

    def close(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._tasks.clear()
