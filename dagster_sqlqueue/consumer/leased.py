"""Work one batch off under leases, and count what became of the jobs, in both modes."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

import tenacity

from dagster_sqlqueue.consumer.batch_size import BatchSize
from dagster_sqlqueue.consumer.caller import Caller, UnderLease
from dagster_sqlqueue.consumer.failure_log import log_aside, log_back, log_endings, log_lost
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.lease_length import LeaseLength
from dagster_sqlqueue.consumer.progress import Reporter
from dagster_sqlqueue.consumer.settlement import DrainSummary, Settlement, settle
from dagster_sqlqueue.db.driver_errors import TIMED_OUT
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.backoff import Backoff, BackoffPolicy
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Outcome, Retry, Snooze
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.queue.complete import Requeued
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.leases import Leases

logger = logging.getLogger("dagster_sqlqueue")

T = TypeVar("T")

_FLUSH_SECONDS = 1.0

PASSING = (DatabaseUnavailable, *TIMED_OUT)
"""Errors after which a statement is repeated as long as the time is not up: also of one that a timeout has ended."""


@dataclass(slots=True)
class Work(Generic[Payload]):
    """The parts that work a batch off, in both modes.

    Attributes:
        leases: where the queue is.
        caller: how the handler is called.
        lease: how long a claim holds; a database that went away is waited for as long.
        size: of a batch; adapts to the handler's time.
        reporter: writes what handlers say of their progress.
    """

    leases: Leases
    spec: QueueSpec[Payload]
    caller: Caller[Payload]
    worker: str
    lease: LeaseLength
    size: BatchSize
    stopping: threading.Event = field(default_factory=threading.Event)
    summary: DrainSummary = field(default_factory=DrainSummary)
    reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        self.reporter = Reporter(self.leases)

    @property
    def patience_seconds(self) -> float:
        """How long a database that went away is waited for."""
        return self.lease.seconds

    @property
    def custom_backoff(self) -> BackoffPolicy | None:
        """The policy that the database does not know; None when its own holds."""
        return None if isinstance(self.spec.backoff, Backoff) else self.spec.backoff

    def patiently(self, *, though_stopping: bool = False) -> tenacity.Retrying:
        """Attempts at something, as long as its time is not up, after an error of `PASSING`.

        Args:
            though_stopping: also once the consumer is stopped, as for outcomes: without them the jobs would run again.
        """
        stopping = None if though_stopping else self.stopping
        return while_away(self.spec.name, self.patience_seconds, stopping, after=PASSING)

    def once_back(self, error: Exception, call: Callable[[], T], *, though_stopping: bool = False) -> T:
        """Call again, as long as the error is of `PASSING` and the time is not up, and return what the call returns.

        Args:
            error: what the first call raised, which was made without `patiently`: it costs as much as a short statement.
            call: to be made again.
            though_stopping: as for `patiently`.

        Raises:
            DatabaseUnavailable, LockNotAvailable, QueryCanceled: of the last call.
        """
        first = [error]

        def again() -> T:
            if first:
                raise first.pop()
            return call()

        return self.patiently(though_stopping=though_stopping)(again)

    def count_finished(self, endings: Endings, accepted: set[UUID] | None) -> None:
        """Count the jobs that were archived, and those whose ending was refused.

        Args:
            endings: the jobs.
            accepted: ids of those that were archived; None: all were.
        """
        refused: list[ClaimedJob] = []
        if accepted is not None and len(accepted) < len(endings.jobs):
            refused = [job for job in endings.jobs if job.id not in accepted]
            endings = endings.among(accepted)
        succeeded = endings.states.count(ArchiveState.SUCCEEDED)
        self.summary.succeeded += succeeded
        if succeeded < len(endings.states):
            failed = endings.states.count(ArchiveState.FAILED)
            self.summary.failed += failed
            self.summary.cancelled += len(endings.states) - succeeded - failed
            log_endings(endings)
        self.count_stale(refused)

    def count_back(
        self,
        back: Sequence[tuple[ClaimedJob, Retry | Snooze]],
        delays: Sequence[float | None],
        accepted: set[UUID],
        cancel_requested: Collection[UUID] = (),
    ) -> None:
        """Count what went back to the queue, each after its delay, or at once to be cancelled."""
        log_back(back, delays, accepted, cancel_requested)
        retried = sum(isinstance(how, Retry) for job, how in back if job.id in accepted)
        self.summary.retried += retried
        self.summary.snoozed += len(accepted) - retried

    def count_aside(self, writes: Settlement, accepted: set[UUID]) -> None:
        """Count what was held."""
        self.summary.held += len(accepted)
        log_aside(writes, accepted)

    def count_stale(self, jobs: Sequence[ClaimedJob]) -> None:
        """Count jobs whose write was refused."""
        if jobs:
            self.summary.stale += len(jobs)
            log_lost(jobs)

    def count_lost(self, job: ClaimedJob) -> None:
        """Count a job whose lease had passed on before a handler began it."""
        self.summary.stale += 1
        log_lost([job], "no handler began it")


def while_away(
    about: str,
    seconds: float,
    stopping: threading.Event | None = None,
    *,
    after: tuple[type[Exception], ...] = (DatabaseUnavailable,),
) -> tenacity.Retrying:
    """Attempts at something, as long as the database is away and neither the time is up nor the event set.

    Args:
        about: what is worked on, for the log.
        seconds: how long a database that went away is waited for, from the first failure on: the attempt before it may have
            taken its time.
        stopping: ends the waiting before; None: nothing does.
        after: the errors after which there is another attempt.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(after),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
        stop=_SinceFirstFailure(seconds) | tenacity.stop_when_event_set(stopping or threading.Event()),
        before_sleep=lambda state: logger.warning("%s: %s", about, state.outcome and state.outcome.exception()),
        reraise=True,
    )


class _SinceFirstFailure(tenacity.stop.stop_base):
    """Ends attempts so many seconds after the first failure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        now = time.monotonic()
        if retry_state.attempt_number == 1:
            self._until = now + self._seconds
        return now >= self._until


Finish = Callable[[Endings], set[UUID] | None]
"""Ends jobs. Returns the ids whose ending was accepted; None: that is under way, and they are counted when it is known. What
it raises leaves nothing under way.
"""


def work_leased(work: Work[Any], jobs: Sequence[ClaimedJob], heartbeat: Heartbeat, finish: Finish) -> None:
    """Work a claimed batch off. Outcomes are written once a second and at the end; what was not begun is given back.

    Args:
        work: what is worked off.
        jobs: the batch, whose leases the heartbeat has.
        heartbeat: keeps the leases.
        finish: ends the last jobs of a batch that was worked off to its end.
    """
    open_jobs = {id(job): job for job in jobs}
    in_hand = UnderLease(work.spec, heartbeat, work.reporter)
    settled: list[tuple[ClaimedJob, Outcome]] = []
    began = flushed_at = time.monotonic()
    try:
        try:
            with contextlib.closing(work.caller.outcomes(jobs, in_hand, work.stopping)) as outcomes:
                for claimed, outcome in outcomes:
                    if outcome is None:
                        if not heartbeat.parted_with(claimed):
                            del open_jobs[id(claimed)]
                            work.count_lost(claimed)
                        continue
                    del open_jobs[id(claimed)]
                    settled.append((claimed, outcome))
                    if time.monotonic() - flushed_at >= _FLUSH_SECONDS:
                        # The handler has returned: however long the write takes, the leases are extended.
                        heartbeat.end(claimed)
                        flushed, settled = settled, []
                        _settle(work, flushed, work.leases.finish)
                        heartbeat.let_go([job for job, _ in flushed])
                        flushed_at = time.monotonic()
        finally:
            heartbeat.end()
        work.size.took(len(jobs) - len(open_jobs), time.monotonic() - began)
        if not open_jobs:
            last, settled = settled, []
            _settle(work, last, finish)
    except SystemExit:
        with contextlib.suppress(DatabaseUnavailable):
            unbegun = heartbeat.part_with(of=open_jobs.values())
            if unbegun:
                work.summary.released += len(work.leases.release(unbegun))
            end_leases(work, heartbeat.part_with(begun=True, of=open_jobs.values()))
        open_jobs.clear()
        raise
    finally:
        try:
            if settled:
                _settle(work, settled, work.leases.finish)
        finally:
            # What takes them out of the heartbeat gives them back: this, or `Consumer.give_back` from another thread.
            mine = heartbeat.part_with(begun=True, of=open_jobs.values()) if open_jobs else []
            work.summary.released += sum(heartbeat.parted_with(job) for job in open_jobs.values()) - len(mine)
            heartbeat.forget(jobs)
            if mine:
                work.summary.released += len(work.leases.release(mine))


def end_leases(work: Work[Any], jobs: Sequence[ClaimedJob]) -> None:
    """End the leases of jobs whose handler ends the process, as if they had run out: a job that does so each time is found
    like one that crashes it.
    """
    if jobs:
        work.leases.heartbeat(jobs, lease_seconds=0)


def settle_called(work: Work[Any], settled: Sequence[tuple[ClaimedJob, Outcome]], heartbeat: Heartbeat) -> None:
    """Write the outcomes of jobs that were worked on side by side, each under its fence."""
    _settle(work, settled, work.leases.finish)
    heartbeat.let_go([job for job, _ in settled])


def _settle(work: Work[Any], settled: Sequence[tuple[ClaimedJob, Outcome]], finish: Finish) -> None:
    if work.reporter.said:
        work.reporter.forget(settled)
    writes = settle(settled, work.leases.stops_key)
    try:
        if writes.endings.jobs:
            _finish(work, writes.endings, finish)
    except PASSING:
        raise
    except BaseException:
        # An interrupt, or an error of these ends: the other jobs have their outcomes all the same.
        _return(work, writes)
        raise
    _return(work, writes)


def _return(work: Work[Any], writes: Settlement) -> None:
    """Write which jobs go back to the queue, and which are held."""
    if writes.back:
        jobs = [job for job, _ in writes.back]
        delays = work.leases.delays(writes.back, backoff=work.custom_backoff)
        answered = Requeued(set(), set())

        def requeue() -> set[UUID]:
            done = work.leases.requeue(writes.back, delays=delays)
            answered.accepted.update(done.accepted)
            answered.cancel_requested.update(done.cancel_requested)
            return done.accepted

        accepted = _accepted(work, jobs, requeue)
        cancel_requested = answered.cancel_requested
        if unanswered := [job for job in jobs if job.id in accepted - answered.accepted]:
            cancel_requested |= work.patiently(though_stopping=True)(work.leases.asked_to_end, unanswered)
        work.count_back(writes.back, delays, accepted, cancel_requested)
    if writes.aside:
        jobs = [job for job, _ in writes.aside]
        work.count_aside(writes, _accepted(work, jobs, lambda: work.leases.hold(writes.aside)))


def finish_uncertain(work: Work[Any], endings: Endings) -> None:
    """End jobs that may have ended already: the answer to what was sent got lost, or never came."""
    finish_again = partial(_finish_again, work, endings, work.leases.finish)
    _count(work, endings, work.patiently(though_stopping=True)(finish_again))


def _finish(work: Work[Any], endings: Endings, finish: Finish) -> None:
    try:
        accepted = finish(endings)
    except PASSING as error:
        accepted = work.once_back(error, partial(_finish_again, work, endings, finish), though_stopping=True)
    except BaseException:
        # An interrupt may have come before it, after it, or in the middle.
        finish_uncertain(work, endings)
        raise
    _count(work, endings, accepted)


def _finish_again(work: Work[Any], endings: Endings, finish: Finish) -> set[UUID] | None:
    accepted = finish(endings)
    if accepted is not None and len(accepted) < len(endings.jobs):
        accepted |= work.leases.ended_by_us([job for job in endings.jobs if job.id not in accepted])
    return accepted


def _count(work: Work[Any], endings: Endings, accepted: set[UUID] | None) -> None:
    if accepted is not None:
        work.count_finished(endings, accepted)


def _accepted(work: Work[Any], jobs: Sequence[ClaimedJob], write: Callable[[], set[UUID]]) -> set[UUID]:
    try:
        accepted = write()
    except TIMED_OUT as error:
        accepted = work.once_back(error, write, though_stopping=True)
    except DatabaseUnavailable as error:
        # The answer got lost, and the write perhaps not.
        work.once_back(error, write, though_stopping=True)
        accepted = {job.id for job in jobs}
    work.count_stale([job for job in jobs if job.id not in accepted])
    return accepted
