"""The writes under a lease: end, requeue, release or hold a job, extend the lease, note progress. Each carries its fence."""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.execution import Parameters, Row, Step
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.db.isolation import check_sees_others
from dagster_sqlqueue.errors import InvalidInput, LeaseLost
from dagster_sqlqueue.model.backoff import Backoff, BackoffPolicy
from dagster_sqlqueue.model.interrupts import is_interrupt
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS
from dagster_sqlqueue.model.outcome import Retry, Snooze
from dagster_sqlqueue.model.queue import PoisonPolicy
from dagster_sqlqueue.payload.storable import storable_text
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.endings import Ending, Endings, fences
from dagster_sqlqueue.queue.odd_jobs import despite_odd_jobs
from dagster_sqlqueue.queue.selection import JobRow

logger = logging.getLogger("dagster_sqlqueue")


@dataclass(frozen=True, slots=True)
class Kept:
    """A heartbeat's answer: the ids of jobs whose lease still holds, and those of them whose cancellation is requested."""

    held: set[UUID]
    cancel_requested: set[UUID]


@dataclass(frozen=True, slots=True)
class Requeued:
    """A requeue's answer: the ids that were accepted, and those of them whose cancellation is requested: these are due at
    once, whatever their delay, and the next claim drops them.
    """

    accepted: set[UUID]
    cancel_requested: set[UUID]


class FencedWrites:
    """What may be done under a lease, and for jobs that a transaction has locked.

    Args:
        catalog: the queues of the schema.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.database = catalog.database
        self._catalog = catalog
        self._failed_backoffs: set[str] = set()

    def finish(self, endings: Endings, *, executor: Executor | None = None) -> set[UUID]:
        """Move claimed jobs to the archive, each under its fence: `SqlQueue.finish`."""
        return {row[0] for row in self._write(*endings.step(), endings.jobs, executor)}

    def complete(self, jobs: Sequence[ClaimedJob], *, executor: Executor | None = None) -> None:
        """End jobs as succeeded: `SqlQueue.complete`."""
        demand_all(
            jobs, self.finish(Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs), executor=executor)
        )

    def fail(
        self, job: ClaimedJob, error: str, *, backoff: BackoffPolicy | None = None, after: float | None = None
    ) -> bool:
        """Report a failed attempt: `SqlQueue.fail`."""
        if not job.last_attempt:
            demand_all([job], self.requeue([(job, Retry(error, after))], backoff=backoff).accepted)
            return True
        if self.stops_key(job):
            demand_all([job], self.hold([(job, error)]))
        else:
            demand_all([job], self.finish(Endings.of([Ending(job, ArchiveState.FAILED, error=error)])))
        return False

    def requeue(
        self,
        jobs: Sequence[tuple[ClaimedJob, Retry | Snooze]],
        *,
        backoff: BackoffPolicy | None = None,
        delays: Sequence[float | None] | None = None,
        executor: Executor | None = None,
    ) -> Requeued:
        """Give claimed jobs back to be due later: `SqlQueue.requeue`; after `delays`, if they were asked for before."""
        parameters = {
            **fences([job for job, _ in jobs]),
            "delays": list(self.delays(jobs, backoff=backoff) if delays is None else delays),
            "moments": [_moment(back) for _, back in jobs],
            "errors": [storable_text(back.error) if isinstance(back, Retry) else None for _, back in jobs],
            "spent": [isinstance(back, Retry) for _, back in jobs],
        }
        rows = self._write("requeue", parameters, [job for job, _ in jobs], executor)
        return Requeued({row[0] for row in rows}, {row[0] for row in rows if row[2]})

    def release(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Give back jobs that were claimed and not begun: `SqlQueue.release`."""
        return self.requeue([(job, Snooze(0)) for job in jobs]).accepted if jobs else set()

    def end_leases(self, queue: str, worker: str, *, lease_seconds: float | None = None) -> set[UUID]:
        """End the leases of a consumer known to be dead now, instead of waiting until they run out: the jobs are
        claimed one by one. Should it live after all, its writes are refused once another consumer has claimed the jobs.

        Args:
            queue: its name.
            worker: as it claimed.
            lease_seconds: the length of its leases, if it is not the queue's.

        Returns:
            The ids of the jobs, which are due now.

        Raises:
            UnknownQueue: there is no such queue.
        """
        within = self._catalog.settings(queue).lease_seconds if lease_seconds is None else lease_seconds
        rows = self.database.run("end_leases", {"queue": queue, "worker": worker, "within_seconds": within})
        return {row[0] for row in rows}

    def hold(self, jobs: Sequence[tuple[ClaimedJob, str]], *, executor: Executor | None = None) -> set[UUID]:
        """Hold claimed jobs: `SqlQueue.hold`."""
        parameters = {
            **fences([job for job, _ in jobs]),
            "reasons": [storable_text(reason) for _, reason in jobs],
        }
        return {row[0] for row in self._write("hold_running", parameters, [job for job, _ in jobs], executor)}

    def heartbeat(self, jobs: Sequence[ClaimedJob], *, lease_seconds: float) -> Kept:
        """Extend leases, counted from now: `SqlQueue.heartbeat`."""
        parameters = {**fences(jobs), "lease_seconds": lease_seconds}
        turning = [job for job in jobs if job.turns]
        if not turning:
            rows = self.database.run("heartbeat", parameters)
        else:
            rows = self.database.transact(lambda executor: self._locked_run(executor, "heartbeat", parameters, turning))
        self._count_stale(jobs, {row[0] for row in rows})
        return Kept({row[0] for row in rows}, {row[0] for row in rows if row[1]})

    def note_progress(self, job: ClaimedJob, percent: float, message: str | None = None) -> None:
        """Write how far a claimed job is. Visible at once, until the job ends or goes back to its queue.

        Args:
            job: as claimed.
            percent: 0 to 100.
            message: what to show beside it.

        Raises:
            LeaseLost: the write was refused, and counted.
        """
        parameters = {"id": job.id, "lease_no": job.lease_no, "percent": float(percent), "message": message}
        if not self.database.run("progress", parameters):
            self._count_stale([job], set())
            raise lost(job)

    def finish_locked(self, executor: Executor, endings: Endings, *, worker: str) -> set[UUID]:
        """Move jobs that the transaction locked with `lock_due` to the archive. Returns their ids."""
        return {row[0] for row in executor.run(*endings.locked_step(worker))}

    def return_locked(
        self,
        executor: Executor,
        back: Sequence[tuple[ClaimedJob, Retry | Snooze]],
        aside: Sequence[tuple[ClaimedJob, str]] = (),
        *,
        delays: Sequence[float | None] | None = None,
    ) -> set[UUID]:
        """Give jobs that the transaction locked with `lock_due` back to be due later, or hold them. Returns their ids."""
        delays = self.delays(back) if delays is None else delays
        if any(job.alone for job, _ in (*back, *aside)):
            returned = self.requeue(back, delays=delays, executor=executor)
            return returned.accepted | self.hold(aside, executor=executor)
        held = len(aside)
        parameters = {
            "ids": [job.id for job, _ in (*back, *aside)],
            "states": ["queued"] * len(back) + ["held"] * held,
            "delays": [*delays, *[None] * held],
            "moments": [_moment(how) for _, how in back] + [None] * held,
            "errors": [storable_text(how.error) if isinstance(how, Retry) else None for _, how in back]
            + [storable_text(reason) for _, reason in aside],
            "spent": [isinstance(how, Retry) for _, how in back] + [False] * held,
        }
        return {row[0] for row in executor.run("return_locked", parameters)}

    def ended_by_us(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Return which of these jobs were ended under exactly these leases, for when the answer to `finish` got lost."""
        return {row[0] for row in self.database.run("completed_under_lease", fences(jobs))}

    def asked_to_end(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Return which of these jobs, that nobody has claimed since, are to be cancelled, for when the answer to `requeue`
        got lost.
        """
        leases = {job.id: job.lease_no for job in jobs}
        rows = [JobRow(*row) for row in self.database.run("live_rows", {"ids": list(leases)})]
        return {row.id for row in rows if row.cancel_requested_at and row.lease_no == leases[row.id]}

    def stops_key(self, job: ClaimedJob) -> bool:
        """Return whether the job's key stops when it has failed for good: it is held then, not archived."""
        return job.order_no is not None and self._catalog.last_seen(job.queue).on_poison is PoisonPolicy.STOP

    def delays(
        self, jobs: Sequence[tuple[ClaimedJob, Retry | Snooze]], *, backoff: BackoffPolicy | None = None
    ) -> list[float | None]:
        """Return in how many seconds jobs that go back are due, by their own backoff, this one or the queue's, in this
        order; None: at a moment that was named. A function that fails for an attempt, or returns no number, is replaced by
        the queue's; a hundred years are the most.
        """
        return [self._delay(job, back, backoff) for job, back in jobs]

    def _delay(self, job: ClaimedJob, back: Retry | Snooze, backoff: BackoffPolicy | None) -> float | None:
        if isinstance(back, Snooze):
            return None if isinstance(back.until, datetime) else float(back.until)
        if back.after is not None:
            return float(back.after)
        policy = _own_backoff(job) or backoff or self._catalog.last_seen(job.queue).backoff
        try:
            seconds = float(min(max(policy(job.attempt), 0.0), MAX_DELAY_SECONDS))
            if math.isnan(seconds):
                raise ValueError("it returned nan")
        except BaseException as error:
            if is_interrupt(error):
                raise
            # Raised here, it would keep the outcomes of other jobs from being written too.
            self._note_failed_backoff(job, error)
            return self._catalog.last_seen(job.queue).backoff(job.attempt)
        return seconds

    def _note_failed_backoff(self, job: ClaimedJob, error: BaseException) -> None:
        if job.queue not in self._failed_backoffs:
            self._failed_backoffs.add(job.queue)
            logger.warning(
                "queue %s: its backoff function, which has to return seconds, failed for attempt %d with %s: %s; where it"
                " does, the backoff that the database has for the queue holds. This is logged once",
                job.queue,
                job.attempt,
                type(error).__name__,
                error,
            )

    def _write(
        self, verb: str, parameters: Parameters, jobs: Sequence[ClaimedJob], executor: Executor | None
    ) -> Sequence[Row]:
        """Write under leases. Returns the rows of what was accepted."""
        if not jobs:
            return []
        step = verb, {**parameters, "in_line": False}
        if any(job.order_no is not None for job in jobs):
            rows = self._in_line(step, jobs, executor)
        else:
            rows = (executor or self.database).run(*step)
        return self._with_late(step, jobs, rows, executor)

    def accepted(self, step: Step, jobs: Sequence[ClaimedJob], rows: Sequence[Row]) -> set[UUID]:
        """Return what was accepted of a statement that was sent by itself, and write what it has left."""
        return {row[0] for row in self._with_late(step, jobs, rows, None)}

    def _with_late(
        self, step: Step, jobs: Sequence[ClaimedJob], rows: Sequence[Row], executor: Executor | None
    ) -> Sequence[Row]:
        """Return the rows of what was accepted, and write what is left: the ends of jobs that were given a place in their
        key's line since they were claimed, which a statement by itself leaves as they are.
        """
        if len(rows) == len(jobs):
            return rows
        accepted = {row[0] for row in rows}
        if left := [job for job in jobs if job.id not in accepted]:
            known = (executor or self.database).run("leased", fences(left))
            places = {row[0]: row[3] for row in known if row[3] is not None}
            if late := [job._replace(order_no=places[job.id]) for job in left if job.id in places]:
                rows = [*rows, *self._in_line(step, late, executor)]
                accepted = {row[0] for row in rows}
        if executor is None and len(accepted) < len(jobs):
            self._count_stale(jobs, accepted)
        return rows

    def _in_line(self, step: Step, jobs: Sequence[ClaimedJob], executor: Executor | None) -> Sequence[Row]:
        """Write, and let in the next of the keys in the same transaction: nothing can come in between."""

        def write(joined: Executor) -> Sequence[Row]:
            keyed = [job for job in jobs if job.order_no is not None]
            for queue, keys in _lines(keyed):
                if executor is not None:
                    check_sees_others(executor, queue)
                joined.run("key_wait", {"queue": queue, "keys": keys})
            rows = joined.run(step[0], {**step[1], "in_line": True})
            accepted, placed = {row[0] for row in rows}, {row[0] for row in rows if row[1] is not None}
            late = [job for job in jobs if job.order_no is None and job.id in placed]
            for queue, keys in _lines(late):
                joined.run("key_wait", {"queue": queue, "keys": keys})
            for queue, keys in _lines([*(job for job in keyed if job.id in accepted), *late]):
                joined.run("key_promote", {"queue": queue, "keys": keys})
            return rows

        if executor is not None:
            # Over a connection in autocommit, the end and what it lets in would be two transactions.
            with executor.atomic() as joined:  # type: ignore[attr-defined]
                return write(joined)
        # What is refused may be the next of a key, which is let in.
        work = partial(self.database.transact, write)
        for queue in sorted({job.queue for job in jobs}):
            work = partial(despite_odd_jobs, self.database, queue, work)
        return work()

    def _locked_run(
        self, executor: Executor, verb: str, parameters: dict[str, Any], turning: Sequence[ClaimedJob]
    ) -> Sequence[Row]:
        # What ends jobs and claims others locks the rows first, and then the limit. The locks of keys come last.
        limited = [job for job in turning if job.limited]
        if limited and not any(job.order_no is not None for job in turning):
            executor.run("lock_leased", fences(limited))
        for queue in sorted({job.queue for job in limited}):
            executor.run("limit_lock", {"queue": queue})
        for queue in sorted({job.queue for job in turning if job.order_no is not None}):
            keys = [job.ordering_key for job in turning if job.order_no is not None and job.queue == queue]
            executor.run("key_wait", {"queue": queue, "keys": keys})
        return executor.run(verb, parameters)

    def _count_stale(self, jobs: Sequence[ClaimedJob], accepted: set[UUID]) -> None:
        stale = Counter(job.queue for job in jobs if job.id not in accepted)
        for queue, writes in stale.items():
            self.database.run("count_stale", {"queue": queue, "writes": writes})


def _lines(jobs: Sequence[ClaimedJob]) -> list[tuple[str, list[str | None]]]:
    """The keys of these jobs, by queue, each as often as there are jobs of it."""
    by_queue: defaultdict[str, list[str | None]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue].append(job.ordering_key)
    return sorted(by_queue.items())


def demand_all(jobs: Sequence[ClaimedJob], accepted: set[UUID]) -> None:
    """Raise what a caller is to know when not every write was accepted.

    Raises:
        LeaseLost: the message names the jobs.
    """
    lost = [str(job.id) for job in jobs if job.id not in accepted]
    if lost:
        raise LeaseLost(
            f"the lease of {len(lost)} of {len(jobs)} jobs is not current any more ({', '.join(lost[:5])}"
            f"{', …' if len(lost) > 5 else ''}): they were claimed by another consumer, ended or cancelled; drop the work"
        )


def lost(job: ClaimedJob) -> LeaseLost:
    """Return the error for a handler whose job has passed on to another consumer."""
    return LeaseLost(
        f"the lease of job {job.id} is not current any more: it was claimed by another consumer, ended or cancelled; drop"
        " the work"
    )


def _own_backoff(job: ClaimedJob) -> Backoff | None:
    if not job.backoff or len(job.backoff) != 4:
        return None
    try:
        return Backoff(*job.backoff)
    except (InvalidInput, TypeError):
        # It was not written by this library: the queue's holds.
        return None


def _moment(back: Retry | Snooze) -> datetime | None:
    return back.until.astimezone(UTC) if isinstance(back, Snooze) and isinstance(back.until, datetime) else None
