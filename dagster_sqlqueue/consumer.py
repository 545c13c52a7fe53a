"""The drain loop: claim a batch, handle it, finish it, until the buckets are empty or the time is up."""

import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias
from uuid import UUID

import tenacity
from uuid_utils.compat import uuid7

from dagster_sqlqueue import payloads
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, InvalidPayload
from dagster_sqlqueue.leases import LeaseKeeper
from dagster_sqlqueue.model import ArchiveState, ClaimedJob, Job
from dagster_sqlqueue.outcomes import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.queue import MAX_BATCH, Ending, SqlQueue
from dagster_sqlqueue.settings import MAX_DELAY_SECONDS, Backoff, Payload, QueueSpec

logger = logging.getLogger("dagster_sqlqueue")

Handler: TypeAlias = Callable[[Job[Payload]], Outcome | None]

_ERROR_LIMIT = 10_000
_POLL_SECONDS = 0.2
_FLUSH_SECONDS = 1.0


@dataclass(slots=True)
class DrainSummary:
    """What one drain did.

    Attributes:
        claimed: jobs taken under a lease.
        succeeded: jobs ended as succeeded.
        retried: jobs given back to be tried again.
        snoozed: jobs given back without spending the attempt.
        failed: jobs sent to the dead letter.
        held: jobs set aside until somebody decides.
        cancelled: jobs ended as cancelled.
        stale: writes refused because the lease had passed on.
        released: jobs claimed and given back unbegun, when the drain was stopped.
        batches: claims that found something.
        seconds: how long it took.
    """

    claimed: int = 0
    succeeded: int = 0
    retried: int = 0
    snoozed: int = 0
    failed: int = 0
    held: int = 0
    cancelled: int = 0
    stale: int = 0
    released: int = 0
    batches: int = 0
    seconds: float = 0.0

    @property
    def jobs_per_second(self) -> float:
        """Jobs ended or given back for each second."""
        return self.handled / self.seconds if self.seconds else 0.0

    @property
    def handled(self) -> int:
        """Jobs that a handler worked on, and whose outcome was accepted."""
        return self.succeeded + self.retried + self.snoozed + self.failed + self.held + self.cancelled


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
        job_timeout_seconds: past it a job's lease is not extended any more; None for ten leases.
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
        worker: str | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self._queue = queue
        self._spec = spec
        self._handler = handler
        self._buckets = None if buckets is None else list(buckets)
        self._batch_size = batch_size
        self._lease_seconds = spec.lease_seconds if lease_seconds is None else lease_seconds
        self._job_timeout = 10 * self._lease_seconds if job_timeout_seconds is None else job_timeout_seconds
        self._beat = beat
        self._custom_backoff = None if isinstance(spec.backoff, Backoff) else spec.backoff
        self._stopping = threading.Event()
        self.worker = worker or f"{socket.gethostname()}/{os.getpid()}/{str(uuid7())[-8:]}"
        self.summary = DrainSummary()
        if not 0 < self._lease_seconds <= MAX_DELAY_SECONDS:
            raise InvalidInput(f"lease_seconds is {lease_seconds}; it must be positive, at most a hundred years")
        if not self._job_timeout > 0:
            raise InvalidInput(f"job_timeout_seconds is {job_timeout_seconds}; it must be positive")
        if not 1 <= batch_size <= MAX_BATCH:
            raise InvalidInput(f"batch_size is {batch_size}; it must be 1 to {MAX_BATCH:,}")
        if self._buckets is not None and (not self._buckets or min(self._buckets) < 0 or max(self._buckets) > 1023):
            raise InvalidInput(f"buckets is {self._buckets}; name at least one, each 0 to 1023, or give None for all")

    def stop(self) -> None:
        """End the drain after the job in hand; what was claimed and not begun is given back. May come from any thread."""
        self._stopping.set()

    def drain(self, *, budget_seconds: float | None = None, linger_seconds: float = 0.0) -> DrainSummary:
        """Work until nothing is due.

        Args:
            budget_seconds: stop taking new batches after that long; None for no limit.
            linger_seconds: when nothing is due, wait that long for more before ending.

        Raises:
            UnknownQueue: the queue does not exist.
            DatabaseUnavailable: the database stayed away for longer than a lease.
        """
        began = time.monotonic()
        settings = self._queue.settings(self._spec.name)
        lanes = list(range(settings.bucket_count)) if self._buckets is None else self._buckets
        keeper = LeaseKeeper(
            self._queue,
            lease_seconds=self._lease_seconds,
            job_timeout_seconds=self._job_timeout,
            beat=self._beat,
        )
        idle_since: float | None = None
        with keeper:
            try:
                while not self._stopping.is_set():
                    if budget_seconds is not None and time.monotonic() - began >= budget_seconds:
                        break
                    jobs = self._claim(lanes)
                    if jobs:
                        idle_since = None
                        lanes = _rotated(lanes, after=jobs[0].bucket)
                        self._work(jobs, keeper)
                        continue
                    idle_since = time.monotonic() if idle_since is None else idle_since
                    if time.monotonic() - idle_since >= linger_seconds:
                        break
                    self._stopping.wait(min(_POLL_SECONDS, linger_seconds))
            finally:
                self.summary.seconds = time.monotonic() - began
        return self.summary

    def _claim(self, lanes: Sequence[int]) -> list[ClaimedJob]:
        for attempt in self._patiently():
            with attempt:
                jobs = self._queue.claim(
                    self._spec.name,
                    buckets=lanes,
                    limit=self._batch_size,
                    lease_seconds=self._lease_seconds,
                    worker=self.worker,
                )
        if jobs:
            self.summary.claimed += len(jobs)
            self.summary.batches += 1
        return jobs

    def _work(self, jobs: Sequence[ClaimedJob], keeper: LeaseKeeper) -> None:
        keeper.hold(jobs)
        open_jobs = {job.id: job for job in jobs}
        settled: list[tuple[ClaimedJob, Outcome]] = []
        flushed_at = time.monotonic()
        try:
            for claimed in jobs:
                if self._stopping.is_set():
                    break
                cancellation = keeper.begin(claimed)
                if cancellation is None:
                    del open_jobs[claimed.id]
                    self.summary.stale += 1
                    continue
                outcome = self._handle(claimed, cancellation)
                keeper.end()
                del open_jobs[claimed.id]
                settled.append((claimed, outcome))
                if time.monotonic() - flushed_at >= _FLUSH_SECONDS:
                    self._settle(settled, keeper)
                    settled = []
                    flushed_at = time.monotonic()
        finally:
            keeper.end()
            try:
                self._settle(settled, keeper)
            finally:
                keeper.let_go(jobs)
                if open_jobs:
                    self.summary.released += len(self._queue.release(list(open_jobs.values())))

    def _handle(self, claimed: ClaimedJob, cancellation: threading.Event) -> Outcome:
        try:
            payload = payloads.parse(self._spec, claimed.payload)
        except InvalidPayload as error:
            return Reject(str(error))
        try:
            outcome = self._handler(_job(claimed, payload, cancellation))
            return _checked(outcome)
        except Exception as error:
            return Retry(_describe(error))

    def _settle(self, settled: Sequence[tuple[ClaimedJob, Outcome]], keeper: LeaseKeeper) -> None:
        endings: list[Ending] = []
        back: list[tuple[ClaimedJob, Retry | Snooze]] = []
        aside: list[tuple[ClaimedJob, str]] = []
        for job, outcome in settled:
            match outcome:
                case Done(result):
                    endings.append(Ending(job, ArchiveState.SUCCEEDED, result=result))
                case Cancel(reason):
                    endings.append(Ending(job, ArchiveState.CANCELLED, error=_brief(reason)))
                case Hold(reason):
                    aside.append((job, _brief(reason)))
                case Retry(error, after) if not job.last_attempt:
                    back.append((job, Retry(_brief(error), after)))
                case Snooze():
                    back.append((job, outcome))
                case Retry(reason, _) | Reject(reason) if self._queue.stops_key(job):
                    aside.append((job, _brief(reason)))
                case Retry(reason, _) | Reject(reason):
                    endings.append(Ending(job, ArchiveState.FAILED, error=_brief(reason)))
        if endings:
            self._finish(endings)
        if back:
            self._give_back(back)
        if aside:
            self._set_aside(aside)
        keeper.let_go([job for job, _ in settled])

    def _finish(self, endings: Sequence[Ending]) -> None:
        accepted: set[UUID] = set()
        for attempt in self._patiently():
            with attempt:
                accepted = self._queue.finish(endings)
        if attempt.retry_state.attempt_number > 1 and len(accepted) < len(endings):
            accepted |= self._queue.ended_by_us([e.job for e in endings if e.job.id not in accepted])
        done = sum(e.state is ArchiveState.SUCCEEDED for e in endings if e.job.id in accepted)
        self.summary.succeeded += done
        cancelled = sum(e.state is ArchiveState.CANCELLED for e in endings if e.job.id in accepted)
        self.summary.cancelled += cancelled
        self.summary.failed += len(accepted) - done - cancelled
        self._count_stale(len(endings) - len(accepted))

    def _give_back(self, back: Sequence[tuple[ClaimedJob, Retry | Snooze]]) -> None:
        accepted: set[UUID] = set()
        for attempt in self._patiently():
            with attempt:
                accepted = self._queue.requeue(back, backoff=self._custom_backoff)
        if attempt.retry_state.attempt_number > 1:
            accepted = {job.id for job, _ in back}
        retried = sum(isinstance(how, Retry) for job, how in back if job.id in accepted)
        self.summary.retried += retried
        self.summary.snoozed += len(accepted) - retried
        self._count_stale(len(back) - len(accepted))

    def _set_aside(self, aside: Sequence[tuple[ClaimedJob, str]]) -> None:
        accepted: set[UUID] = set()
        for attempt in self._patiently():
            with attempt:
                accepted = self._queue.hold(aside)
        if attempt.retry_state.attempt_number > 1:
            accepted = {job.id for job, _ in aside}
        self.summary.held += len(accepted)
        self._count_stale(len(aside) - len(accepted))

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


def _rotated(lanes: Sequence[int], *, after: int) -> list[int]:
    turn = lanes.index(after) + 1 if after in lanes else 0
    return [*lanes[turn:], *lanes[:turn]]


def _job(claimed: ClaimedJob, payload: Payload, cancellation: threading.Event) -> Job[Payload]:
    return Job(
        id=claimed.id,
        queue=claimed.queue,
        payload=payload,
        lease_no=claimed.lease_no,
        attempt=claimed.attempt,
        max_attempts=claimed.max_attempts,
        priority=claimed.priority,
        created_at=claimed.created_at,
        unique_key=claimed.unique_key,
        ordering_key=claimed.ordering_key,
        error=claimed.error,
        tags=claimed.tags,
        cancellation=cancellation,
    )


def _checked(outcome: Any) -> Outcome:
    match outcome:
        case None:
            return Done()
        case Done(result):
            payloads.result_text(result)
            return Done(result)
        case Retry() | Snooze() | Hold() | Reject() | Cancel():
            return outcome
        case _:
            raise InvalidInput(
                f"the handler returned a {type(outcome).__name__}; return Done(…), Retry(…), Snooze(…),"
                " Hold(…), Reject(…), Cancel(…) or None"
            )


def _describe(error: Exception) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    return f"{type(error).__name__}: {message}\n\n{''.join(traceback.format_exception(error))}"


def _brief(text: str) -> str:
    return payloads.storable_text(text)[:_ERROR_LIMIT]
