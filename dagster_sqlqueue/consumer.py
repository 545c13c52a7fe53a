"""The drain loop: claim a batch, handle it, finish it, until the buckets are empty or the time is up."""

import contextlib
import enum
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol
from uuid import UUID

import psycopg
import tenacity
from uuid_utils.compat import uuid7

from dagster_sqlqueue.claiming import MAX_BATCH, check_buckets
from dagster_sqlqueue.database import Transaction
from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.filters import ClaimFilter
from dagster_sqlqueue.handling import Handler, handle
from dagster_sqlqueue.hints import HeadHints
from dagster_sqlqueue.lanes import Lanes
from dagster_sqlqueue.leases import LeaseKeeper
from dagster_sqlqueue.model import ArchiveState, ClaimedJob
from dagster_sqlqueue.outcomes import Cancel, Done, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.settings import MAX_DELAY_SECONDS, Backoff, Payload, QueueSettings, QueueSpec
from dagster_sqlqueue.settling import DrainSummary, settle
from dagster_sqlqueue.waiting import Waiter

logger = logging.getLogger("dagster_sqlqueue")

_POLL_SECONDS = 0.2
_LISTENING_POLL_SECONDS = 1.0
_FLUSH_SECONDS = 1.0
_LOOK_SECONDS = 5.0


class Mode(enum.StrEnum):
    """How a consumer keeps its jobs from others."""

    LEASED = "leased"
    """Under a lease, extended by a heartbeat; a crash spends the attempt, and the job is due when the lease ends."""
    TRANSACTIONAL = "transactional"
    """Locked in one transaction in which they are worked off and ended: twice as fast for quick handlers, and what the
    handler writes through `job.connection` is committed with the job's end. A crash leaves the jobs as they were, attempt
    included, so a job that kills its process is met again and again: for handlers that are trusted."""


class Source(Protocol):
    """Where a consumer gets jobs from that it does not claim by itself."""

    def take(self, limit: int) -> list[ClaimedJob]:
        """Up to `limit` jobs under a lease; none: there are none now."""
        ...


class Consumer(Generic[Payload]):
    """Works one queue off with one handler.

    A handler returns an `Outcome`; None is `Done()`. An exception is a `Retry` by the queue's backoff. A payload that
    does not fit the model is a `Reject`.

    Args:
        queue: where the queue is.
        spec: the queue.
        handler: called for one job at a time. It may run again for the same job after a crash: pass `job.id` or
            `job.lease_no` on to systems that can tell a repetition.
        buckets: which ones to work off; None for all.
        batch_size: jobs for each claim, 1 to 10,000.
        lease_seconds: instead of the queue's.
        job_timeout_seconds: past it a job's lease is not extended any more, unless the job says otherwise; None for ten
            leases.
        mode: leased or transactional.
        filter: take only jobs that fit; it belongs to this consumer alone.
        region: buckets of this region are worked off first.
        source: takes nothing by itself, only what this hands out, such as `AssignedSource`.
        worker: shown with the jobs that it holds; unique for each start. None: made of host, process and a random part.
        beat: called from the heartbeat's thread, four times a lease.

    Raises:
        InvalidInput: an argument is out of range.
    """

    def __init__(
        self,
        queue: SqlQueue,
        spec: QueueSpec[Payload],
        handler: Handler[Payload],
        *,
        buckets: Sequence[int] | None = None,
        batch_size: int = 100,
        lease_seconds: float | None = None,
        job_timeout_seconds: float | None = None,
        mode: Mode | str = Mode.LEASED,
        filter: ClaimFilter | None = None,
        region: str | None = None,
        source: Source | None = None,
        worker: str | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self._queue = queue
        self._spec = spec
        self._handler = handler
        self._lanes = Lanes(None if buckets is None else list(check_buckets(buckets)), region)
        self._batch_size = batch_size
        self._lease_seconds = spec.lease_seconds if lease_seconds is None else lease_seconds
        self._filter = filter
        self._source = source
        self._custom_backoff = None if isinstance(spec.backoff, Backoff) else spec.backoff
        self._hints = HeadHints()
        self._settings: QueueSettings | None = None
        self._looked_at = 0.0
        self._idle = False
        self._waiter: Waiter | None = None
        self._stopping = threading.Event()
        self.worker = worker or f"{socket.gethostname()}/{os.getpid()}/{str(uuid7())[-8:]}"
        self.summary = DrainSummary()
        if not 0 < self._lease_seconds <= MAX_DELAY_SECONDS:
            raise InvalidInput(f"lease_seconds is {lease_seconds}; it must be positive, at most a hundred years")
        if job_timeout_seconds is not None and not job_timeout_seconds > 0:
            raise InvalidInput(f"job_timeout_seconds is {job_timeout_seconds}; it must be positive")
        if not 1 <= batch_size <= MAX_BATCH:
            raise InvalidInput(f"batch_size is {batch_size}; it must be 1 to {MAX_BATCH:,}")
        if mode not in list(Mode):
            raise InvalidInput(f"mode is {mode!r}; it must be 'leased' or 'transactional'")
        self._mode = Mode(mode)
        if self._mode is Mode.TRANSACTIONAL and filter is not None:
            raise InvalidInput("a filter was given in transactional mode, which takes jobs in order; use leased mode")
        self._keeper = LeaseKeeper(
            queue,
            lease_seconds=self._lease_seconds,
            job_timeout_seconds=10 * self._lease_seconds if job_timeout_seconds is None else job_timeout_seconds,
            beat=beat,
        )

    def stop(self) -> None:
        """End the drain after the job in hand; what was claimed and not begun is given back. May come from any thread."""
        self._stopping.set()
        if (waiter := self._waiter) is not None:
            waiter.wake()

    @property
    def stopping(self) -> threading.Event:
        """Set by `stop`."""
        return self._stopping

    def drain(self, *, budget_seconds: float | None = None, linger_seconds: float = 0.0) -> DrainSummary:
        """Work until nothing is due. Jobs that are due and may not run yet, because of a limit, are waited for; a paused
        queue counts as empty.

        Args:
            budget_seconds: stop taking new batches after that long; None for no limit.
            linger_seconds: when nothing is due, wait that long for more before ending.

        Raises:
            UnknownQueue: the queue does not exist.
            DatabaseUnavailable: the database stayed away for longer than a lease.
            InvalidInput: transactional mode, and the queue's strategy, order or limits need leases.
        """
        began = time.monotonic()
        idle_since: float | None = None
        with self.working(), self._waiting(linger_seconds):
            while not self._stopping.is_set():
                now = time.monotonic()
                if budget_seconds is not None and now - began >= budget_seconds:
                    break
                if self.work_batch() or self.wait_if_limited():
                    idle_since = None
                    continue
                idle_since = now if idle_since is None else idle_since
                left = idle_since + linger_seconds - time.monotonic()
                if left <= 0:
                    break
                self._wait(left if budget_seconds is None else min(left, began + budget_seconds - time.monotonic()))
        return self.summary

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keep leases alive while the block calls `work_batch`."""
        began = time.monotonic()
        self._look()
        self._queue.ensure_partitions()
        with self._keeper:
            try:
                yield
            finally:
                self.summary.seconds = time.monotonic() - began

    def work_batch(self) -> int:
        """Take one batch and work it off. Gives the number of jobs taken; 0: nothing is due, or nothing may run now."""
        while not self._stopping.is_set():
            if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._look()
            taken = self._work_locked() if self._mode is Mode.TRANSACTIONAL else self._work_leased()
            self._notice_new_settings()
            if taken:
                self._idle = False
                return taken
            if self._nothing_left():
                self._idle = True
                return 0
            self._hints.sweep_next()
        return 0

    @contextlib.contextmanager
    def _waiting(self, linger_seconds: float) -> Iterator[None]:
        """Be told of new jobs while the block runs, where there is going to be a wait for them."""
        if linger_seconds <= 0 or self._source is not None:
            yield
            return
        with Waiter(self._queue, self._spec.name, self.worker) as waiter:
            self._waiter = waiter
            try:
                yield
            finally:
                self._waiter = None

    def _wait(self, seconds: float) -> None:
        """Until there may be something to do again: a notification, the time of the next job, or a look from time to time."""
        if self._waiter is None or not self._waiter.listening:
            self._stopping.wait(max(min(seconds, _POLL_SECONDS), 0.0))
            return
        for attempt in self._patiently():
            with attempt:
                later = [-head.due_seconds for head in self._queue.peek_heads(self._spec.name) if head.due_seconds < 0]
        self._waiter.wait(max(min(seconds, _LISTENING_POLL_SECONDS, *later), 0.0))

    def _nothing_left(self) -> bool:
        if self._source is not None:
            return True
        if self._filter is not None:
            return not self._filter.unfinished
        return self._hints.swept or (self._idle and self._hints.fresh)

    def _look(self) -> None:
        for attempt in self._patiently():
            with attempt:
                settings = self._queue.settings(self._spec.name)
        self._looked_at = time.monotonic()
        self._settings = settings
        if self._source is None:
            with contextlib.suppress(DatabaseUnavailable):
                self._queue.note_sweep(self._spec.name)
        self._lanes.arrange(settings)

    def _notice_new_settings(self) -> None:
        seen = self._queue.last_seen(self._spec.name)
        if seen is not self._settings:
            self._settings = seen
            self._lanes.arrange(seen)

    def wait_if_limited(self) -> bool:
        """Wait a moment if jobs are due that a limit, or the turn of a key, keeps from running."""
        settings = self._settings
        limited = settings is not None and (settings.limited or settings.keyed)
        if not limited or self._source is not None or settings is None or settings.paused_at is not None:
            return False
        due = False
        for attempt in self._patiently():
            with attempt:
                due = any(head.due_seconds >= 0 for head in self._queue.peek_heads(self._spec.name))
        if due:
            self._stopping.wait(_POLL_SECONDS)
        return due

    def _count_taken(self, jobs: Sequence[ClaimedJob]) -> None:
        if jobs:
            self.summary.claimed += len(jobs)
            self.summary.batches += 1
            self._lanes.turn(after=jobs[0].bucket)

    def _work_leased(self) -> int:
        for attempt in self._patiently():
            with attempt:
                jobs = self._claim() if self._source is None else self._source.take(self._batch_size)
        self._count_taken(jobs)
        if jobs:
            self._work(jobs)
        return len(jobs)

    def _claim(self) -> list[ClaimedJob]:
        return self._queue.claim(
            self._spec.name,
            buckets=self._lanes.order,
            limit=self._batch_size,
            lease_seconds=self._lease_seconds,
            worker=self.worker,
            hints=self._hints,
            filter=self._filter,
        )

    def _work(self, jobs: Sequence[ClaimedJob]) -> None:
        self._keeper.hold(jobs)
        open_jobs = {job.id: job for job in jobs}
        settled: list[tuple[ClaimedJob, Outcome]] = []
        flushed_at = time.monotonic()
        try:
            for claimed in jobs:
                if self._stopping.is_set():
                    break
                cancellation = self._keeper.begin(claimed)
                if cancellation is None:
                    del open_jobs[claimed.id]
                    self.summary.stale += 1
                    continue
                outcome = handle(self._spec, self._handler, claimed, cancellation=cancellation)
                self._keeper.end()
                del open_jobs[claimed.id]
                settled.append((claimed, outcome))
                if time.monotonic() - flushed_at >= _FLUSH_SECONDS:
                    self._settle(settled)
                    settled = []
                    flushed_at = time.monotonic()
        finally:
            self._keeper.end()
            try:
                self._settle(settled)
            finally:
                self._keeper.let_go(jobs)
                if open_jobs:
                    self.summary.released += len(self._queue.release(list(open_jobs.values())))

    def _settle(self, settled: Sequence[tuple[ClaimedJob, Outcome]]) -> None:
        writes = settle(settled, self._queue.stops_key)
        if writes.endings:
            self._finish(writes.endings)
        if writes.back:
            accepted = self._accepted(
                [job for job, _ in writes.back],
                lambda: self._queue.requeue(writes.back, backoff=self._custom_backoff),
            )
            self._count_back(writes.back, accepted)
        if writes.aside:
            jobs = [job for job, _ in writes.aside]
            self.summary.held += len(self._accepted(jobs, lambda: self._queue.hold(writes.aside)))
        self._keeper.let_go([job for job, _ in settled])

    def _finish(self, endings: Sequence[Ending]) -> None:
        accepted: set[UUID] = set()
        for attempt in self._patiently():
            with attempt:
                accepted = self._queue.finish(endings)
        if attempt.retry_state.attempt_number > 1 and len(accepted) < len(endings):
            accepted |= self._queue.ended_by_us([e.job for e in endings if e.job.id not in accepted])
        self._count_ended(endings, accepted)
        self._count_stale(len(endings) - len(accepted))

    def _accepted(self, jobs: Sequence[ClaimedJob], write: Callable[[], set[UUID]]) -> set[UUID]:
        accepted: set[UUID] = set()
        for attempt in self._patiently():
            with attempt:
                accepted = write()
        if attempt.retry_state.attempt_number > 1:
            accepted = {job.id for job in jobs}
        self._count_stale(len(jobs) - len(accepted))
        return accepted

    def _work_locked(self) -> int:
        """One batch in one transaction; counted when it is committed."""
        for attempt in self._patiently():
            with attempt:
                jobs, settled, writes = self._queue.database.transact(self._work_in_transaction)
        self._count_taken(jobs)
        self.summary.released += len(jobs) - len(settled)
        self._count_ended(writes.endings, {ending.job.id for ending in writes.endings})
        self._count_back(writes.back, {job.id for job, _ in writes.back})
        self.summary.held += len(writes.aside)
        return len(jobs)

    def _work_in_transaction(self, transaction: Transaction) -> Any:
        jobs = self._queue.lock_due(
            transaction, self._spec.name, limit=self._batch_size, buckets=self._lanes.order, hints=self._hints
        )
        settled: list[tuple[ClaimedJob, Outcome]] = []
        for claimed in jobs:
            if self._stopping.is_set():
                break
            settled.append((claimed, self._outcome_in(transaction, claimed)))
        writes = settle(settled, self._queue.stops_key)
        if writes.endings:
            self._queue.finish_locked(transaction, writes.endings, worker=self.worker)
        if writes.back or writes.aside:
            self._queue.return_locked(transaction, writes.back, writes.aside, backoff=self._custom_backoff)
        return jobs, settled, writes

    def _outcome_in(self, transaction: Transaction, claimed: ClaimedJob) -> Outcome:
        """The handler's outcome; what it wrote stays only if it succeeded. A handler that writes nothing costs nothing."""
        if claimed.cancel_requested:
            return Cancel("cancelled while it ran")
        if claimed.attempt > claimed.max_attempts:
            return Reject(
                f"the lease ran out on the last of {claimed.max_attempts} attempts: its consumer died or hung"
            )
        savepoint: list[psycopg.Transaction] = []

        def connect() -> "psycopg.Connection[Any]":
            if not savepoint:
                block = transaction.connection.transaction()
                savepoint.append(block.__enter__())
                undo.push(block)
            return transaction.connection

        with contextlib.ExitStack() as undo:
            outcome = handle(self._spec, self._handler, claimed, connect=connect)
            if savepoint and not isinstance(outcome, Done):
                raise psycopg.Rollback(savepoint[0])
        return outcome

    def _count_ended(self, endings: Sequence[Ending], accepted: set[UUID]) -> None:
        for ending in endings:
            if ending.job.id not in accepted:
                continue
            match ending.state:
                case ArchiveState.SUCCEEDED:
                    self.summary.succeeded += 1
                case ArchiveState.FAILED:
                    self.summary.failed += 1
                case ArchiveState.CANCELLED:
                    self.summary.cancelled += 1

    def _count_back(self, back: Sequence[tuple[ClaimedJob, Retry | Snooze]], accepted: set[UUID]) -> None:
        retried = sum(isinstance(how, Retry) for job, how in back if job.id in accepted)
        self.summary.retried += retried
        self.summary.snoozed += len(accepted) - retried

    def _count_stale(self, jobs: int) -> None:
        if jobs:
            self.summary.stale += jobs
            logger.warning("%s: %d writes were refused: their leases had passed on", self._spec.name, jobs)

    def _patiently(self) -> tenacity.Retrying:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(DatabaseUnavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
            stop=tenacity.stop_after_delay(self._lease_seconds) | tenacity.stop_when_event_set(self._stopping),
            before_sleep=lambda state: logger.warning(
                "%s: %s", self._spec.name, state.outcome and state.outcome.exception()
            ),
            reraise=True,
        )
