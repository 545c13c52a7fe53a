"""Work batches off inside transactions: claim, work and end are one whole, and a crash leaves the jobs queued."""

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.consumer.handler import brief
from dagster_sqlqueue.consumer.leased import Work
from dagster_sqlqueue.consumer.locked_ahead import REFUSED_ENDS, EndsLost, LockedAhead
from dagster_sqlqueue.consumer.locked_call import ConnectionLost, TransactionEnded, outcome_in, spent
from dagster_sqlqueue.consumer.settlement import Settlement, settle
from dagster_sqlqueue.db import driver_errors
from dagster_sqlqueue.db.driver_errors import TIMED_OUT
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.payload import redacted_text
from dagster_sqlqueue.queue.odd_jobs import ROW_ERRORS, OddJobs, despite_odd_jobs, hold_unclaimable

logger = logging.getLogger("dagster_sqlqueue")

_LOST = (
    "the connection that is the job's was lost twice in a row while the handler worked: a statement of its may end the"
    " session or crash the server; those before it in the batch run again"
)

_LATE = "a timeout ended the queue's own write for longer than a lease"


def work_locked(
    work: Work[Any], claimer: Claimer, ahead: LockedAhead[Any], until: float, odd: OddJobs | None = None
) -> int:
    """Lock a batch, work it off and end it, in one transaction, and go on so with the next one. What was done is counted
    when it is committed.

    A batch that cannot be committed, because of what one of its handlers wrote, is worked off again one job at a time: the
    job whose own transaction cannot be committed is tried again later, like one whose handler failed. If it is the queue's
    own write that a timeout ends, no attempt is spent: the job is worked off again for as long as a lease.

    Args:
        work: what is worked off.
        claimer: how the consumer takes jobs.
        ahead: locks the next batch while one is worked on.
        until: the moment of `time.monotonic` from which on no other batch is locked.
        odd: what has set jobs aside so far, for a call after another one that took nothing.

    Returns:
        The number of jobs taken.
    """
    odd = odd or OddJobs(work.leases.database, work.spec.name)
    batches = _Batches(work, claimer, ahead)
    try:
        _work_patiently(batches, until, odd)
    except TIMED_OUT as error:
        batches.give_up_late(error)
    batches.count(batches.hand)
    if batches.refused is not None:
        raise batches.refused
    return batches.taken or (work_locked(work, claimer, ahead, until, odd) if batches.again else 0)


def _work_patiently(batches: "_Batches", until: float, odd: OddJobs) -> None:
    """Work off what is due; after an error of `PASSING` again, as long as its time is not up."""
    work = batches.work
    for attempt in work.patiently():
        with attempt:
            try:
                batches.each_alone(batches.late)
                work.leases.database.transact(lambda t: batches.work_off(t, until), idling=True)
            except TransactionEnded as ended:
                batches.give_up(ended.job, str(ended))
            except SystemExit:
                with contextlib.suppress(DatabaseUnavailable):
                    batches.leave_suspect()
                raise
            except EndsLost as lost:
                # If the connection was lost, its jobs have ended or are on the queue again; a database that is away is
                # waited for by the next lock.
                batches.again = _is_lost(lost.error)
                if not isinstance(lost.error, REFUSED_ENDS):
                    raise lost.error from None
                if not batches.again:
                    batches.one_by_one(lost.batch, lost.error)
            except REFUSED_ENDS as error:
                if _is_lost(error):
                    raise
                if batches.hand.ending:
                    batches.one_by_one(batches.hand, error)
                elif isinstance(error, ROW_ERRORS) and odd.set_aside(error):
                    batches.again = True
                else:
                    raise


@dataclass(slots=True)
class _Batch:
    """One batch.

    Attributes:
        jobs: its jobs.
        settled: those of them that were handled, with their outcomes.
        writes: what is to be written for them.
        delays: in how many seconds each of those that go back is due.
        ending: whether they were all handled, and what is left are the queue's own writes and the commit.
        written: whether what is left is the commit, as far as it is known: not of writes that were sent together with it.
    """

    jobs: list[ClaimedJob] = field(default_factory=list)
    settled: list[tuple[ClaimedJob, Outcome]] = field(default_factory=list)
    writes: Settlement = field(default_factory=Settlement)
    delays: list[float | None] = field(default_factory=list)
    ending: bool = False
    written: bool = False

    @property
    def ends_only(self) -> bool:
        """Whether nothing goes back to the queue, or is held."""
        return not self.writes.back and not self.writes.aside


@dataclass(slots=True)
class _Batches:
    """The batches of one call.

    Attributes:
        hand: the one in hand.
        taken: how many jobs were taken and committed.
        again: whether nothing was taken, and there may be jobs nevertheless.
        lost_with: the job whose handler was at work when the connection was lost the last time.
        late: jobs that are to be worked off again, because a timeout ended the queue's own write.
        refused: what `on_claim` raised: no handler is called any more.
    """

    work: Work[Any]
    claimer: Claimer
    ahead: LockedAhead[_Batch]
    hand: _Batch = field(default_factory=_Batch)
    taken: int = 0
    again: bool = False
    lost_with: UUID | None = None
    late: list[ClaimedJob] = field(default_factory=list)
    refused: BaseException | None = None

    def work_off(self, transaction: Transaction, until: float) -> None:
        """Work batch after batch off, as long as the ends of one and the lock of another go together."""
        if self.refused is not None:
            # Begun again, after an error of what was left to write.
            return
        ahead, self.hand = self.ahead, _Batch()
        with ahead.beside(transaction, self.count):
            here, jobs = transaction, self.claimer.lock(transaction)
            while True:
                self._announce(jobs)
                follows = ahead.begin(jobs) if self._in_time(until) else ahead.under_way
                self._handle(here, jobs)
                if not self.hand.settled or not self._in_time(until):
                    break
                if follows:
                    jobs = self._next(ahead)
                    here = ahead.here
                elif self.hand.ends_only:
                    jobs = self.claimer.finish_and_lock(here, self.hand.writes.endings)
                    self.count(self.hand)
                else:
                    break
            self._write(here)
            if ahead.commit():
                self.count(self.hand)

    def one_by_one(self, batch: _Batch, error: Exception) -> None:
        """Work the jobs of a batch off again, each in a transaction of its own: together they could not be committed.

        Raises:
            LockNotAvailable, QueryCanceled: as `each_alone`.
        """
        if len(batch.jobs) == 1 and not driver_errors.lost_a_race(error) and not isinstance(error, TIMED_OUT):
            self.give_up(batch.jobs[0], _uncommitted(error))
        else:
            self.each_alone(batch.jobs)

    def each_alone(self, jobs: list[ClaimedJob]) -> None:
        """Work jobs off, each in a transaction of its own.

        Raises:
            LockNotAvailable, QueryCanceled: a timeout ended the queue's own write for those that are `late` now.
        """
        self.late, timed_out = [], None
        for job in jobs:
            if not self._goes_on:
                break
            self.hand = _Batch()
            try:
                self.work.leases.database.transact(lambda t, job=job: self._work_off_alone(t, job), idling=True)  # type: ignore[misc]
            except TransactionEnded as ended:
                self.give_up(ended.job, str(ended))
            except REFUSED_ENDS as again:
                if _is_lost(again) or not self.hand.ending:
                    raise
                if isinstance(again, TIMED_OUT) and not self.hand.written:
                    timed_out = again
                    self.late.append(job)
                    self.hand = _Batch()
                    continue
                self.give_up(job, _uncommitted(again))
            self.count(self.hand)
        self.hand = _Batch()
        if timed_out is not None:
            raise timed_out

    def give_up_late(self, error: Exception) -> None:
        """Spend the attempts of the jobs that are `late`. A consumer that is stopped leaves them as they were.

        Args:
            error: why they are late, or, if none is, of something else; it is raised then.
        """
        if not self.late:
            raise error
        if self.work.stopping.is_set():
            logger.warning("%s: %d jobs were not ended: %s", self.work.spec.name, len(self.late), error)
            return
        for job in self.late:
            self.give_up(job, brief(f"{_LATE}: {type(error).__name__}: {error}"))
            self.count(self.hand)

    def give_up(self, job: ClaimedJob, reason: str) -> None:
        """Spend the attempt of a job whose transaction is gone, unless another consumer has taken it meanwhile."""

        def spend(transaction: Transaction) -> bool:
            self.hand = _Batch()
            locked = self.work.leases.lock_again(transaction, job)
            if locked:
                settled: list[tuple[ClaimedJob, Outcome]] = [
                    (job, Retry(redacted_text.scrub(self.work.spec.payload, reason, job.payload)))
                ]
                self.hand = _Batch([job], settled, settle(settled, self.work.leases.stops_key))
                self._write(transaction)
            return locked

        database, name = self.work.leases.database, self.work.spec.name
        locked = despite_odd_jobs(database, name, lambda: database.transact(spend))
        if not locked and spent(job):
            # It was locked to be ended, and could not be.
            self.again = hold_unclaimable(database, name, RuntimeError(reason)) > 0

    def leave_suspect(self) -> None:
        """Leave the job in hand, whose handler ends the process, as one whose consumer has died: a job that does so each
        time is found like one that crashes it.
        """
        done = len(self.hand.settled)
        for job in self.hand.jobs[done : done + 1]:
            # The attempt of one that has begun by itself is counted already, and it is not queued.
            if not job.alone:
                self.work.leases.leave_suspect(job, worker=self.work.worker)

    def count(self, batch: _Batch) -> None:
        """Count a batch that was committed. If it was in hand, nothing is any more."""
        work, jobs, writes = self.work, batch.jobs, batch.writes
        self.taken += len(jobs)
        work.summary.claimed += len(jobs)
        work.summary.batches += bool(jobs)
        work.summary.released += len(jobs) - len(batch.settled)
        if writes.endings.jobs:
            work.count_finished(writes.endings, None)
        if writes.back:
            work.count_back(writes.back, batch.delays, {job.id for job, _ in writes.back})
        if writes.aside:
            work.count_aside(writes, {job.id for job, _ in writes.aside})
        work.summary.buried += sum(isinstance(outcome, Reject) and spent(job) for job, outcome in batch.settled)
        if batch is self.hand:
            self.hand = _Batch()

    def _announce(self, jobs: list[ClaimedJob]) -> None:
        """Call `on_claim`. What it raises is raised once the transactions have ended: it is no error of theirs, and in them
        the attempt of a job that is worked off by itself is given back.
        """
        try:
            self.claimer.announce(jobs)
        except BaseException as error:
            self.refused = error

    @property
    def _goes_on(self) -> bool:
        return self.refused is None and not self.work.stopping.is_set()

    def _in_time(self, until: float) -> bool:
        return time.monotonic() < until and self._goes_on

    def _next(self, ahead: LockedAhead[_Batch]) -> list[ClaimedJob]:
        """End the batch in hand, or send its ends, and go to the one that was locked ahead."""
        batch = self.hand
        if batch.ends_only:
            # In hand no more, whatever becomes of it.
            self.hand = _Batch()
            return ahead.finish(batch, batch.jobs, batch.writes.endings)
        self._write(ahead.here)
        ahead.here.go_on()
        self.count(batch)
        return ahead.turn()

    def _work_off_alone(self, transaction: Transaction, job: ClaimedJob) -> None:
        self.hand = _Batch()
        if self.work.leases.lock_again(transaction, job):
            self._handle(transaction, [job])
            self._write(transaction)

    def _handle(self, transaction: Transaction, jobs: list[ClaimedJob]) -> None:
        batch = self.hand = _Batch(jobs)
        began = time.monotonic()
        for claimed in jobs:
            if not self._goes_on:
                break
            batch.settled.append((claimed, self._outcome(transaction, claimed)))
        self.work.size.took(len(batch.settled), time.monotonic() - began)
        # The attempt of one that is worked off by itself is counted already: it is given back.
        batch.settled += [(claimed, Snooze(0)) for claimed in jobs[len(batch.settled) :] if claimed.alone]
        transaction.take_back()
        batch.writes = settle(batch.settled, self.work.leases.stops_key)
        batch.ending = bool(jobs)

    def _outcome(self, transaction: Transaction, claimed: ClaimedJob) -> Outcome:
        try:
            return outcome_in(self.work, transaction, claimed, self.ahead.settle)
        except ConnectionLost:
            # A database that goes away takes whichever job is in hand with it, and hardly the same one again.
            if claimed.id == self.lost_with:
                raise TransactionEnded(claimed, _LOST) from None
            self.lost_with = claimed.id
            raise

    def _write(self, transaction: Transaction) -> None:
        leases, batch = self.work.leases, self.hand
        writes = batch.writes
        if writes.endings.jobs:
            leases.finish_locked(transaction, writes.endings, worker=self.work.worker)
        if writes.back or writes.aside:
            batch.delays = leases.delays(writes.back, backoff=self.work.custom_backoff)
            leases.return_locked(transaction, writes.back, writes.aside, delays=batch.delays)
        batch.written = True


def _uncommitted(error: Exception) -> str:
    return brief(f"what the handler wrote could not be committed: {type(error).__name__}: {error}")


def _is_lost(error: Exception) -> bool:
    """Return whether a connection was lost, and no statement failed, such as one for which a handler has set a time-out."""
    return isinstance(error, psycopg.OperationalError) and driver_errors.is_unavailable(error)
