"""The drain loop: claim a batch, handle it, finish it, until the buckets are empty or the time is up."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from uuid_utils.compat import uuid7

from dagster_sqlqueue.consumer.ahead import Ahead
from dagster_sqlqueue.consumer.batch_size import BEHIND_SECONDS, BatchSize
from dagster_sqlqueue.consumer.bucket_order import BucketOrder
from dagster_sqlqueue.consumer.caller import Caller
from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.consumer.concurrent import SideBySide, log_released
from dagster_sqlqueue.consumer.handler import AnyHandler, Shape, check_call, check_times
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.hooks import ClaimHooks, ConsumerHooks, around_work, hooked
from dagster_sqlqueue.consumer.idle import Idle
from dagster_sqlqueue.consumer.lease_length import LeaseLength
from dagster_sqlqueue.consumer.leased import PASSING, Work, work_leased
from dagster_sqlqueue.consumer.locked_ahead import LockedAhead
from dagster_sqlqueue.consumer.manager import Source
from dagster_sqlqueue.consumer.presence import Presence
from dagster_sqlqueue.consumer.queue_view import QueueView
from dagster_sqlqueue.consumer.same_process import Member
from dagster_sqlqueue.consumer.settlement import DrainSummary
from dagster_sqlqueue.consumer.start import (
    check_drain_times,
    check_mode,
    check_side_by_side,
    compare_settings,
    ensure_queue,
)
from dagster_sqlqueue.consumer.transactional import work_locked
from dagster_sqlqueue.consumer.upkeep import Upkeep
from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.model.job import ClaimedJob, Mode
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.claim_filter import ClaimFilter, check_filter
from dagster_sqlqueue.queue.claim_request import check_buckets, check_worker
from dagster_sqlqueue.queue.maintenance import Maintenance
from dagster_sqlqueue.queue.sql_queue import check_sql_queue
from dagster_sqlqueue.schema import migrations

logger = logging.getLogger("dagster_sqlqueue")


class Consumer(Generic[Payload]):
    """Works one queue off with one handler.

    A handler returns an `Outcome`; None is `Done()`. An exception is a `Retry` by the queue's backoff. A payload that
    does not fit the model is a `Reject`, and so is a returned value that is no outcome: the work is done.

    Args:
        queue: where the queue is.
        spec: the queue.
        handler: called for one job at a time; if it is async, for all jobs of a claim side by side, on one event loop. It
            may run again for the same job after a crash: pass `job.id`, or under leases `job.lease_no`, on to systems that
            can recognise a repetition. In transactional mode another try has the same `job.lease_no`.
        batch: the handler takes all jobs of a claim at once, and returns an outcome for each of them, or one for all.
        buckets: which ones to work off; None for all. Of a function the answer counts; it is asked anew every five seconds,
            between two batches.
        batch_size: jobs for each claim, 1 to 10,000. None: 100; where a plain handler takes one job after another under
            leases, 1 for the first one, and then as many as it handles in a tenth of a second, up to 500 and to four
            times the last batch; what has to wait for one of them for longer than five seconds is given back. Beside a
            batch of a quick handler the next one is under lease, or locked in transactional mode, unless others would have
            less by it; not with 1.
        concurrency: how many jobs are worked on at a time: by a plain handler in as many threads, by an async one on its
            event loop. A job is claimed when it can begin at once. None: one after another, or all async ones of a claim.
            Not for handlers of a batch, nor in transactional mode, which works one job after another.
        lease_seconds: of its claims; None: the queue's, which is read again as it runs.
        job_timeout_seconds: past it a job's lease is not extended any more, and an async handler of one job is cancelled,
            unless the job says otherwise; None for ten leases.
        mode: leased or transactional.
        filter: take only jobs that fit; it belongs to this consumer alone.
        region: buckets of this region are worked off first.
        source: takes nothing by itself, only what this hands out, such as `AssignedSource`.
        worker: shown with the jobs that it holds; unique for each start. None: made of host, process and a random part.
        beat: called from the heartbeat's thread, four times a lease.
        on_claim: called with the jobs that were taken, before any of them is worked on. What it raises ends the drain: they
            go back without an attempt, and the outcomes of those before them are written.
        hooks: entered and left around what it does; the first is the outermost.
        maintain: whether it maintains the schema when that is due, in a thread of its own; see `SqlQueue.maintain`.
        create: make the queue from the spec, if it is not there when the consumer begins.
        warn: called at the beginning with a line that names the settings in which code and queue differ, and with one of
            buckets, or of a region, that the queue does not have; None: they go to the log.

    Raises:
        InvalidInput: an argument is out of range or of another type, or the handler cannot be called with one positional
            argument, or is annotated for jobs of another model.
    """

    def __init__(
        self,
        queue: SqlQueue,
        spec: QueueSpec[Payload],
        handler: AnyHandler[Payload],
        *,
        batch: bool = False,
        buckets: Sequence[int] | Callable[[], Sequence[int]] | None = None,
        batch_size: int | None = None,
        concurrency: int | None = None,
        lease_seconds: float | None = None,
        job_timeout_seconds: float | None = None,
        mode: Mode | str = Mode.LEASED,
        filter: ClaimFilter | None = None,
        region: str | None = None,
        source: Source | None = None,
        worker: str | None = None,
        beat: Callable[[], object] | None = None,
        on_claim: Callable[[Sequence[ClaimedJob]], None] | None = None,
        hooks: Sequence[ConsumerHooks] = (),
        maintain: bool = True,
        create: bool = True,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        check_sql_queue(queue)
        check_spec(spec)
        check_filter(filter)
        self._hooks = tuple(hooks)
        self._queue, self._create, self._warn = queue, create, warn
        self._claim_hooks = ClaimHooks(spec.name, self._hooks)
        self._leases = self._claim_hooks.watch(queue.leases)
        self._catalog = queue.catalog
        self._spec = spec
        first = buckets() if callable(buckets) else buckets
        bucket_order = BucketOrder(None if first is None else list(check_buckets(first)), region)
        self._idle = False
        self.worker = check_worker(worker) if worker else f"{socket.gethostname()}/{os.getpid()}/{str(uuid7())[-8:]}"
        check_times(lease_seconds, job_timeout_seconds)
        check_call(spec, handler, batch)
        caller = Caller(spec, hooked(handler, self._hooks), batch)
        self._mode = check_mode(spec, mode, caller.shape, filter)
        if concurrency is not None:
            check_side_by_side(spec, concurrency, caller.shape, self._mode, source)
        # In transactional mode as many jobs may have killed a consumer that died as it said that it takes at once; all jobs
        # of a batch take their time together for handlers of another shape; and a source was asked for a number of jobs.
        one_by_one = self._mode is Mode.LEASED and caller.shape is Shape.JOB and concurrency is None and source is None
        self._size = BatchSize(batch_size, measured=one_by_one)
        lease = LeaseLength(lease_seconds, until_known=spec.lease_seconds)
        self._work = Work(self._leases, spec, caller, self.worker, lease, self._size)
        self._stopping = self._work.stopping
        self.summary = self._work.summary
        self._heartbeat = Heartbeat(
            self._leases,
            lease=lease,
            job_timeout_seconds=job_timeout_seconds,
            side_by_side=caller.shape is Shape.ASYNC or concurrency is not None,
            behind_seconds=BEHIND_SECONDS if one_by_one and batch_size is None else None,
            beat=self._beat,
        )
        self._upkeep = Upkeep(queue.database, self._stopping, allowed=maintain)
        self._presence = (
            Presence(queue.database, spec.name, self.worker, first, self._size.now, lease)
            if self._mode is Mode.TRANSACTIONAL
            else None
        )
        claiming = source is None
        self._view = QueueView(
            self._work,
            self._catalog,
            bucket_order,
            ask_buckets=buckets if callable(buckets) else None,
            presence=self._presence,
            hinted=claiming,
        )
        self._waits = Idle(self._work, self._catalog, self._view, claiming=claiming, filter=filter)
        self._member = Member()
        self._claimer = Claimer(
            self._work,
            self._view,
            filter=filter,
            source=source,
            on_claim=on_claim,
            hooks=self._claim_hooks,
            idle=self._waits,
            member=self._member,
        )
        self._ahead = Ahead(self._work, self._heartbeat, self._claimer, self._claim_hooks)
        self._locked_ahead: LockedAhead[Any] = LockedAhead(self._work, self._claimer, self._claim_hooks)
        self._side_by_side = (
            None
            if concurrency is None
            else SideBySide(
                self._work, self._heartbeat, concurrency, self._claimer.take_for_slots, self._claimer.announce
            )
        )
        self._also_beat = beat

    def stop(self) -> None:
        """End the drain after the job in hand; what was claimed and not begun is given back. May come from any thread."""
        self._stopping.set()
        self._waits.wake()

    def give_back(self, *, begun: bool = False) -> int:
        """Give claimed jobs back at once, while a handler is still at another one: for a consumer that is stopped, and
        from a thread of its own. Returns their number. In transactional mode there are none: the end of the transaction
        lets them go.

        Args:
            begun: also those that a handler has begun. The fence keeps it from ending them; for a process that ends now.

        Raises:
            DatabaseUnavailable: the leases end by themselves then.
        """
        self._ahead.stop()
        jobs, released = self._heartbeat.give_back(begun=begun)
        if begun:
            log_released(self._spec.name, jobs)
        return released

    def interrupt(self) -> None:
        """Interrupt handlers that run side by side, for a consumer that was stopped: `job.cancelled` is set, and async
        handlers are cancelled. A job whose handler does not succeed then is released, no attempt spent. Without
        `concurrency` nothing is interrupted. May come from any thread.
        """
        if self._side_by_side is not None:
            self._side_by_side.interrupt()

    @property
    def cut_off(self) -> int:
        """The number of jobs that were released as their handlers were interrupted by `interrupt`."""
        return 0 if self._side_by_side is None else self._side_by_side.cut_off

    @property
    def stopping(self) -> threading.Event:
        """Set by `stop`."""
        return self._stopping

    def drain(
        self,
        *,
        budget_seconds: float | None = None,
        linger_seconds: float = 0.0,
        after_batch: Callable[[DrainSummary], None] | None = None,
    ) -> DrainSummary:
        """Work until nothing is due. Jobs that are due and may not run yet, because of a limit, are waited for; a paused
        queue counts as empty.

        Args:
            budget_seconds: stop taking new batches after that long; None for no limit.
            linger_seconds: when nothing is due, wait that long for more before ending.
            after_batch: called after each batch with what was done so far.

        Returns:
            `summary`: what the consumer has done, in this drain and those before it.

        Raises:
            UnknownQueue: the queue does not exist, and is not to be made or may not be.
            SchemaTooOld, SchemaTooNew: the schema does not serve this code any more; what was claimed is given back.
            DatabaseUnavailable: the database stayed away for longer than a lease.
            InvalidInput: a time is no number; or transactional mode, and the queue's strategy, order or limits need leases.
        """
        check_drain_times(budget_seconds, linger_seconds)
        began = time.monotonic()
        idle_since: float | None = None
        with self.working(), self._waits.listening(linger_seconds):
            while not self._stopping.is_set():
                now = time.monotonic()
                if budget_seconds is not None and now - began >= budget_seconds:
                    break
                until = None if budget_seconds is None else began + budget_seconds
                taken = self.work_batch(ahead_until=until)
                if taken and after_batch is not None:
                    after_batch(self.summary)
                if taken or self.wait_if_limited():
                    idle_since = None
                    continue
                idle_since = now if idle_since is None else idle_since
                left = idle_since + linger_seconds - time.monotonic()
                if left <= 0:
                    break
                self._waits.wait(
                    left if budget_seconds is None else min(left, began + budget_seconds - time.monotonic())
                )
        return self.summary

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keep leases alive while the block calls `work_batch`."""
        with self._member.working():
            began = time.monotonic()
            with permissions.needing("claim_round_robin"):
                self._begin()
            self._catalog.keep_sensitive_names(self._spec)
            Maintenance(self._catalog).ensure_partitions()
            with (
                around_work(self._hooks, self._spec.name, self.summary),
                contextlib.closing(self._work.caller),
                self._upkeep.going_on(),
                self._heartbeat,
            ):
                self._ahead.open()
                self._claim_hooks.forget()
                try:
                    with migrations.explaining(self._catalog.database), self._under_way():
                        yield
                finally:
                    try:
                        self._give_back_ahead()
                    finally:
                        self._locked_ahead.close()
                        self.summary.seconds += time.monotonic() - began
                    if self._presence is not None:
                        with contextlib.suppress(*PASSING):
                            self._presence.leave()

    def work_batch(self, *, ahead_until: float | None = 0.0) -> int:
        """Take one batch and work it off. Returns the number of jobs taken; 0: nothing is due, or nothing may run now.

        Args:
            ahead_until: the moment of `time.monotonic` up to which the next batch may be claimed while this one is ended,
                for the next call; None for always.
        """
        while not self._stopping.is_set():
            if time.monotonic() >= self._view.refresh_at:
                self._view.refresh()
                self._upkeep.check()
            taken = self._take_and_work(ahead_until)
            self._claim_hooks.complain()
            self._view.notice_new_settings()
            if taken:
                self._idle = False
                return taken
            if self._claimer.nothing_left(idle=self._idle):
                self._idle = True
                self._ahead.rest()
                self._locked_ahead.close()
                return 0
            self._view.hints.sweep_next()
        return 0

    def wait_if_limited(self) -> bool:
        """Wait a moment if jobs are due that a limit, or the turn of a key, keeps from running."""
        return self._waits.wait_if_limited()

    def _begin(self) -> None:
        lines: list[str] = []
        for attempt in self._work.patiently():
            with attempt:
                settings = ensure_queue(self._queue, self._spec, create=self._create)
                differences = compare_settings(self._queue, self._spec, settings, self.worker)
                lines = [differences, *self._view.bucket_order.lacking(settings)]
        for line in filter(None, lines):
            (self._warn or logger.warning)(line)
        self._view.refresh()

    def _beat(self) -> None:
        self._work.reporter.flush()
        if self._presence is not None:
            self._presence.note()
        if self._also_beat is not None:
            self._also_beat()

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """See to the jobs that are worked on side by side when the block ends."""
        try:
            yield
        except BaseException:
            if self._side_by_side is not None:
                self._side_by_side.abandon()
            raise
        if self._side_by_side is not None:
            self._side_by_side.finish()

    def _give_back_ahead(self) -> None:
        """Give back what was claimed for the next batch. What another thread has given back meanwhile is counted here."""
        ahead = self._ahead.close()
        mine = self._heartbeat.part_with(of=ahead)
        self.summary.released += sum(self._heartbeat.parted_with(job) for job in ahead) - len(mine)
        self._heartbeat.forget(ahead)
        self.summary.released += len(self._leases.release(mine))

    def _take_and_work(self, ahead_until: float | None) -> int:
        until = self._view.refresh_at if ahead_until is None else min(ahead_until, self._view.refresh_at)
        if self._side_by_side is not None:
            taken = self._side_by_side.step(may_claim=not self._stopping.is_set())
            if self._member.has_turn and not self._side_by_side.alone:
                self._member.pass_turn()
            return taken
        try:
            if self._mode is Mode.TRANSACTIONAL:
                return work_locked(self._work, self._claimer, self._locked_ahead, until)
            jobs = self._ahead.take(until)
            if jobs:
                work_leased(self._work, jobs, self._heartbeat, self._ahead.finish)
            return len(jobs)
        finally:
            if self._member.has_turn:
                self._member.pass_turn()
