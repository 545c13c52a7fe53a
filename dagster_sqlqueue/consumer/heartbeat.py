"""Extend the leases of a batch while a handler works, from a thread of its own."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from dagster_sqlqueue.consumer.lease_length import LeaseLength
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.leases import Leases

logger = logging.getLogger("dagster_sqlqueue")

_LOOK_SECONDS = 1.0
"""How often the thread looks whether a handler takes long, where a quarter of a lease is longer."""


class Heartbeat:
    """Extends the leases of the jobs in hand once they are past their half: one statement for all of them.

    Args:
        leases: where the jobs were claimed.
        lease: the length of a lease, which may change.
        job_timeout_seconds: how long a job may take that does not say so itself; None: ten leases. Past it nothing in hand
            is extended any more: the leases run out and other consumers take the jobs, while the fence keeps the hanging
            handler from ending them. Where jobs run side by side it is the one job that is not extended any more.
        side_by_side: whether the jobs in hand run independently of each other, so that one that hangs keeps no other one
            from being begun and ended.
        behind_seconds: when the handler of one job has taken that long, the jobs in this charge that none has begun are
            given back, for other consumers; None: they wait for it.
        beat: called from the thread four times a lease, also while no job is in hand.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        lease: LeaseLength,
        job_timeout_seconds: float | None = None,
        side_by_side: bool = False,
        behind_seconds: float | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._job_timeout = job_timeout_seconds
        self._side_by_side = side_by_side
        self._behind_seconds = math.inf if behind_seconds is None else behind_seconds
        self._beat = beat
        self._lock = threading.Lock()
        # By the identity of a claim, not by the job's id: a job that is in hand again is another claim of it.
        self._held: dict[int, ClaimedJob] = {}
        self._lost: dict[int, ClaimedJob] = {}
        self._begun: dict[int, ClaimedJob] = {}
        self._parted: dict[int, ClaimedJob] = {}
        # Of those parted with, the ones that could not be given back.
        self._owed: dict[int, ClaimedJob] = {}
        # Held while jobs are given back: nobody else takes them for given back before they are.
        self._giving_back = threading.Lock()
        self._cancellations: dict[int, threading.Event] = {}
        self._extended_at = 0.0
        self._may_take_until: dict[int, float] = {}
        self._begun_at = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stopping.clear()
        self._lease.changed.clear()
        self._thread = threading.Thread(target=self._run, name="sqlqueue-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._lease.changed.set()
        if self._thread is not None:
            self._thread.join()
        # What an error has left here is left to its lease: the heartbeat of another drain must not extend it for ever.
        with self._lock:
            for known in (self._held, self._lost, self._begun, self._parted, self._owed):
                known.clear()
            self._cancellations.clear()
            self._may_take_until.clear()

    def hold(self, jobs: Sequence[ClaimedJob], *, since: float | None = None) -> None:
        """Take charge of freshly claimed jobs, beside those in hand. Those that were lost or given back stay so.

        Args:
            jobs: the jobs.
            since: a moment of `time.monotonic` from which on their leases count, or before; None for now.
        """
        moment = time.monotonic() if since is None else since
        with self._lock:
            self._extended_at = min(self._extended_at, moment) if self._held else moment
            for job in jobs:
                if id(job) not in self._parted and id(job) not in self._lost:
                    self._held[id(job)] = job

    def cancel_all(self) -> None:
        """Set the cancellation events of the jobs in hand."""
        with self._lock:
            for key in self._begun:
                self._cancellations.setdefault(key, threading.Event()).set()

    def begin(self, job: ClaimedJob, *, others_ended: bool = False) -> bool:
        """Note that a handler begins this job. False: its lease is lost or given back already and it must not begin.

        Args:
            job: one of those in hand.
            others_ended: whether the handlers of all other jobs have returned, as of jobs that are worked on one by one.
        """
        key, seconds = id(job), job.timeout_seconds
        if seconds is None:
            seconds = 10 * self._lease.seconds if self._job_timeout is None else self._job_timeout
        with self._lock:
            if others_ended:
                self._may_take_until.clear()
            if key in self._lost or key in self._parted:
                return False
            self._begun[key] = job
            self._begun_at = time.monotonic()
            self._may_take_until[key] = self._begun_at + seconds
        return True

    def cancellation(self, job: ClaimedJob) -> threading.Event:
        """Return the event that is set when the job's cancellation is requested; for a job that is not in hand any more, an
        event that stays unset. May be called from any thread.
        """
        key = id(job)
        with self._lock:
            if self._begun.get(key) is not job:
                return threading.Event()
            return self._cancellations.setdefault(key, threading.Event())

    def may_take_until(self, job: ClaimedJob) -> float | None:
        """Return the moment of `time.monotonic` at which the time-out of a job that has begun is over; None if no handler
        is at it.
        """
        with self._lock:
            return self._may_take_until.get(id(job))

    def end(self, job: ClaimedJob | None = None) -> None:
        """Note that the handler of this job, or of all that were begun, returned."""
        with self._lock:
            if job is None:
                self._may_take_until.clear()
            else:
                self._may_take_until.pop(id(job), None)

    def let_go(self, jobs: Sequence[ClaimedJob]) -> None:
        """Stop extending these: they were ended or given back."""
        with self._lock:
            for job in jobs:
                self._held.pop(id(job), None)
        if self._side_by_side:
            self.forget(jobs)

    def forget(self, jobs: Sequence[ClaimedJob]) -> None:
        """Forget everything about these jobs."""
        with self._lock:
            for known in (self._held, self._lost, self._begun, self._parted, self._owed):
                if known:
                    for job in jobs:
                        known.pop(id(job), None)
            for keyed in (self._cancellations, self._may_take_until):
                if keyed:
                    for job in jobs:
                        keyed.pop(id(job), None)

    def part_with(self, *, begun: bool = False, of: Iterable[ClaimedJob] | None = None) -> list[ClaimedJob]:
        """Take out of this charge the jobs that no handler has begun, and those that could not be given back, for the caller
        to give back; none of them can begin any more. May be called from any thread.

        Args:
            begun: those that have begun as well.
            of: only of these; None for all.
        """
        with self._giving_back:
            return self._part_with(begun=begun, of=of)

    def _part_with(self, *, begun: bool = False, of: Iterable[ClaimedJob] | None = None) -> list[ClaimedJob]:
        with self._lock:
            among = {*self._held, *self._owed} if of is None else set(map(id, of))
            parted = {key: job for key, job in self._held.items() if key in among and (begun or key not in self._begun)}
            owed = {key: job for key, job in self._owed.items() if key in among}
            for key in parted:
                del self._held[key]
            for key in owed:
                del self._owed[key]
            self._parted |= parted
        return [*parted.values(), *owed.values()]

    def give_back(self, *, begun: bool = False) -> tuple[list[ClaimedJob], int]:
        """Part with jobs, as `part_with` does, and give them back. May be called from any thread.

        Args:
            begun: those that have begun as well.

        Returns:
            The jobs, and how many of them were still this consumer's.

        Raises:
            DatabaseUnavailable: they are given back later, or their leases run out.
        """
        with self._giving_back:
            jobs = self._part_with(begun=begun)
            try:
                return jobs, len(self._leases.release(jobs))
            except BaseException:
                with self._lock:
                    self._owed |= {id(job): job for job in jobs}
                raise

    def parted_with(self, job: ClaimedJob) -> bool:
        """Return whether the job was taken out to be given back."""
        with self._lock:
            return id(job) in self._parted

    def _run(self) -> None:
        beat_at = time.monotonic() + self._lease.pace / 4
        while True:
            if self._lease.changed.wait(min(max(beat_at - time.monotonic(), 0.0), _LOOK_SECONDS)):
                self._lease.changed.clear()
                beat_at = 0.0
            if self._stopping.is_set():
                return
            try:
                self._release_behind()
                if time.monotonic() < beat_at:
                    continue
                beat_at = time.monotonic() + self._lease.pace / 4
                self._extend()
                if self._beat is not None:
                    self._beat()
            except QueueError as error:
                logger.warning("heartbeat failed, it is tried again: %s", error)
            except BaseException:
                # Whatever it is, such as a SystemExit of the caller's beat: without this thread the leases run out.
                logger.exception("heartbeat failed, it is tried again")

    def _release_behind(self) -> None:
        """Give back what waits for the handler of one job, if that takes long."""
        with self._lock:
            if not self._may_take_until or time.monotonic() - self._begun_at < self._behind_seconds:
                return
            if self._held.keys() <= self._begun.keys() and not self._owed:
                return
        # What began in between is not among them.
        self.give_back()

    def _extend(self) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._held or now - self._extended_at < self._lease.pace / 2:
                return
            hanging = {key for key, until in self._may_take_until.items() if now > until}
            if not self._side_by_side and hanging and len(hanging) == len(self._may_take_until):
                return
            jobs = [job for key, job in self._held.items() if not (self._side_by_side and key in hanging)]
            # Before the statement: what is held while it runs is not extended by it, and may count from earlier.
            before, self._extended_at = self._extended_at, now
        try:
            kept = self._leases.heartbeat(jobs, lease_seconds=self._lease.seconds)
        except BaseException:
            with self._lock:
                self._extended_at = min(before, self._extended_at)
            raise
        with self._lock:
            for job in jobs:
                key = id(job)
                # Given back or ended meanwhile, it is not this thread's to judge.
                if self._held.get(key) is not job:
                    continue
                if job.id in kept.cancel_requested:
                    self._cancellations.setdefault(key, threading.Event()).set()
                if job.id not in kept.held:
                    del self._held[key]
                    self._lost[key] = job
