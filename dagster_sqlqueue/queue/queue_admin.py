"""Verbs that administer a queue: create it, change its settings, pause and drain it, change its buckets, delete it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import tenacity

from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.numbers import in_seconds, is_seconds, is_whole
from dagster_sqlqueue.model.queue import (
    QueueSettings,
    QueueSpec,
    Strategy,
    check_bucket_count,
    check_queue_name,
    check_spec,
)
from dagster_sqlqueue.payload import redacted_text
from dagster_sqlqueue.payload.storable import unstorable_text
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.catalog import settings_of
from dagster_sqlqueue.queue.queue_deletion import IN_TRANSACTION, Obstacle, refusal
from dagster_sqlqueue.queue.selection import moment_in_utc
from dagster_sqlqueue.queue.validation import check_timeout

logger = logging.getLogger("dagster_sqlqueue")

_LATE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_DRAIN_SECONDS = 0.2
_LEASES_AT_ONCE = 1_000
_REGION_LIMIT = 1_000
_CLAIMS = ["RowShareLock"]
_CLAIMS_WITHOUT_LOCKS = (Strategy.ASSIGN, Strategy.TOKEN)
_WRITES = ["RowShareLock", "RowExclusiveLock"]


class QueueAdminVerbs(Verbs):
    """What the owner and the operators of a queue do with it as a whole."""

    def create_queue(self, spec: QueueSpec[Any], *, change: bool = True) -> QueueSettings:
        """Make the queue, or bring the settings of an existing one up to date; its bucket count stays as it is.

        A change holds from the next claim on, also for consumers that run. A limit, or an order, holds once the leases
        that were granted without it have ended. When an order or a limit changes, this waits up to five seconds for the
        transactions that were enqueuing or claiming meanwhile; a warning in the log names what it did not wait for.

        Args:
            spec: the queue.
            change: false: a queue that is there is left as it is, also if another process makes it at the same moment.

        Returns:
            The settings as the database has them.
        """
        check_spec(spec)
        backoff = spec.backoff if isinstance(spec.backoff, Backoff) else Backoff()
        parameters = {
            "name": spec.name,
            "bucket_count": spec.bucket_count,
            "strategy": str(spec.strategy),
            "ordered": spec.ordered,
            "on_poison": str(spec.on_poison),
            "lease_seconds": spec.lease_seconds,
            "timeout_seconds": spec.timeout_seconds,
            "max_attempts": spec.max_attempts,
            "backoff_seconds": backoff.seconds,
            "backoff_factor": backoff.factor,
            "backoff_max_seconds": backoff.max_seconds,
            "backoff_jitter": backoff.jitter,
            "max_running": spec.max_running,
            "max_running_per_key": spec.max_running_per_key,
            "rate_limit": spec.rate and spec.rate.starts,
            "rate_seconds": spec.rate and spec.rate.seconds,
            "retention_days": spec.retention_days,
            "change": change,
        }
        names = sorted(redacted_text.sensitive_names(spec.payload))
        before, after = self.database.transact(lambda executor: self._create(executor, parameters, names))
        if before and _counted(before) != _counted(after):
            self._settle_late(after, _turns(before) != _turns(after))
        return after

    def delete_queue(self, queue: str, *, dry_run: bool = False) -> QueueSettings:
        """Delete a queue that has no jobs and is not in use, with its settings, its automation rule and its batches that are
        over. What has ended stays in the archive.

        Nothing else goes with it: what would put jobs on it, as a schedule, a subscription or a callback, has to be removed
        first. Consumers have to be stopped first; one whose code has the queue's `QueueSpec` makes it again when it starts.
        A transaction that enqueues on the queue meanwhile is waited for, up to five seconds; one that comes later raises
        `UnknownQueue`.

        Args:
            queue: its name.
            dry_run: only check whether it could be deleted.

        Returns:
            The settings that it had.

        Raises:
            QueueInUse: the message names what is in the way, and how to remove it; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        settings = self.settings(check_queue_name(queue))
        parameters = {"queue": queue, "dry_run": dry_run}
        found: list[Obstacle] = []

        def tried() -> bool:
            found[:] = self.database.transact(
                lambda executor: [Obstacle(*row) for row in executor.run("delete_queue", parameters)]
            )
            return [obstacle.kind for obstacle in found] != [IN_TRANSACTION]

        _wait(tried, time.monotonic() + _LATE_SECONDS, _POLL_SECONDS)
        if found:
            raise refusal(queue, found) or self.catalog.unknown(queue, self.database)
        return settings

    def pause(self, queue: str, *, until: datetime | timedelta | float | None = None) -> QueueSettings:
        """Have the queue hand out nothing more. What runs goes on, and so do enqueues.

        Args:
            queue: its name.
            until: when it goes on by itself: the moment, with a time zone, or how long from now, a timedelta or seconds;
                None: when it is resumed. Of a paused queue this is what changes.

        Raises:
            InvalidInput: the moment is not usable, or has passed by the database's clock; the queue is as it was.
            UnknownQueue: there is no such queue.
        """
        parameters: dict[str, Any] = {"queue": check_queue_name(queue), "seconds": None, "moment": None}
        if isinstance(until, datetime):
            parameters["moment"] = moment_in_utc("until", until)
        elif until is not None:
            seconds = in_seconds(until)
            if not is_seconds(seconds):
                raise InvalidInput(
                    f"until is {until!r}; give a datetime with a time zone, a timedelta or seconds from now, more than 0 and"
                    " at most a hundred years, or None"
                )
            parameters["seconds"] = float(seconds)

        def change(executor: Executor) -> QueueSettings:
            executor.run("pause", parameters)
            after = self.settings(queue, executor=executor)
            if after.paused_at is None:
                raise InvalidInput(f"until is {until}, which has passed by the database's clock; nothing was changed")
            return after

        return self.database.transact(change)

    def resume(self, queue: str) -> QueueSettings:
        """Have a paused queue hand out jobs again; one that is not paused stays as it is.

        Raises:
            UnknownQueue: there is no such queue.
        """
        if self.database.run("resume", {"queue": check_queue_name(queue)}):
            self.database.run("waiter_notify", {"queue": queue})
        return self.settings(queue)

    def drain(self, queue: str, *, timeout_seconds: float | None = None) -> bool:
        """Pause the queue and wait until what runs has ended: no lease is live any more, and no job is worked on in a
        transaction. The queue stays paused; of one that is paused already nothing changes, also not until when.

        Args:
            queue: its name.
            timeout_seconds: how long to wait; None for as long as it takes, 0 to check once.

        Returns:
            Whether nothing runs any more. False: the time was up, or the queue was resumed.

        Raises:
            InvalidInput: the timeout is not usable.
            UnknownQueue: there is no such queue.
        """
        check_timeout(timeout_seconds)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        settings = self.settings(check_queue_name(queue))
        if settings.paused_at is None:
            settings = self.pause(queue)
        modes = _WRITES if settings.strategy in _CLAIMS_WITHOUT_LOCKS else _CLAIMS
        if self._outlived(modes, deadline):
            return False
        while leases := self._ids("leases", {"queue": queue, "limit": _LEASES_AT_ONCE}):
            # These are asked after by their ids: looking for leases reads what is scheduled, too.
            ended = partial(self._none_left, leases)
            if not _wait(ended, deadline, _DRAIN_SECONDS) or self.settings(queue).paused_at is None:
                return False
        return self.settings(queue).paused_at is not None

    def rebucket(self, queue: str, bucket_count: int) -> QueueSettings:
        """Spread the queue's jobs over another number of buckets from now on, while producers and consumers run.

        No job is moved. Consumers work off what is left in the buckets of a larger count before these are forgotten, and
        an ordered queue keeps the order of each key, whose jobs may be in two buckets for a while.

        Raises:
            InvalidInput: the count is out of range, or would leave a region without a bucket: give it one of those that
                stay first, with `set_region`.
            UnknownQueue: there is no such queue.
        """
        check_bucket_count(bucket_count, check_queue_name(queue))

        def change(executor: Executor) -> QueueSettings:
            executor.run("queue_lock", {"name": queue})
            before = self.settings(queue, executor=executor)
            used = set(before.regions[: before.bucket_count])
            if lost := used - set(before.regions[:bucket_count]):
                raise InvalidInput(
                    f"bucket_count of queue {queue!r} cannot become {bucket_count}: no bucket would be left for"
                    f" {', '.join(sorted(map(repr, lost)))}; give the region one of the first {bucket_count} with set_region"
                )
            executor.run("rebucket", {"queue": queue, "bucket_count": bucket_count})
            return self.settings(queue, executor=executor)

        return self.database.transact(change)

    def set_region(self, queue: str, region: str, buckets: Sequence[int]) -> QueueSettings:
        """Give buckets to a region: jobs that are enqueued for it go there, and its consumers claim there first.

        Args:
            queue: its name.
            region: a name of one's own; every bucket begins as `local`.
            buckets: their numbers.

        Raises:
            InvalidInput: there is no such bucket, or the region's name is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        check_queue_name(queue)
        if not isinstance(region, str) or not 0 < len(region) <= _REGION_LIMIT or unstorable_text(region):
            raise InvalidInput(f"region is {region!r}; it must be a text of 1 to {_REGION_LIMIT:,} storable characters")

        def change(executor: Executor) -> QueueSettings:
            executor.run("queue_lock", {"name": queue})
            count = len(self.settings(queue, executor=executor).regions)
            wrong = [bucket for bucket in buckets if not is_whole(bucket, 0, count - 1)]
            if wrong or not buckets:
                named = ", ".join([*map(repr, wrong[:10]), *(["…"] if len(wrong) > 10 else [])]) or "none"
                raise InvalidInput(
                    f"the region's buckets name {named}, and queue {queue!r} has the buckets 0 to {count - 1}; name one of"
                    " these, or several"
                )
            executor.run("set_region", {"queue": queue, "region": region, "buckets": sorted(set(buckets))})
            return self.settings(queue, executor=executor)

        return self.database.transact(change)

    def _create(
        self, executor: Executor, parameters: dict[str, Any], sensitive: list[str]
    ) -> tuple[QueueSettings | None, QueueSettings]:
        name = parameters["name"]
        executor.run("queue_lock", {"name": name})
        rows = executor.run("queues", {"name": name})
        before = settings_of(rows[0]) if rows else None
        made = executor.run("create_queue", parameters)
        if made and sensitive:
            executor.run("sensitive_add", {"queue": name, "names": sensitive})
        after = self.settings(name, executor=executor)
        if before and _counted(before) != _counted(after):
            executor.run("settle_turns", {"queue": name, "let_out": _turns(before) != _turns(after)})
        return before, after

    def _settle_late(self, settings: QueueSettings, let_out: bool) -> None:
        """Settle what was enqueued or claimed under the old settings and committed after the change."""
        if late := self._outlived(_WRITES, time.monotonic() + _LATE_SECONDS):
            logger.warning(
                "queue %r: %d transactions that began before its settings changed still run: a job that they enqueue or"
                " claim goes by the old order and limits",
                settings.name,
                len(late),
            )

        def settle(executor: Executor) -> None:
            executor.run("queue_lock", {"name": settings.name})
            executor.run("settle_turns", {"queue": settings.name, "let_out": let_out})

        self.database.transact(settle)

    def _outlived(self, modes: list[str], deadline: float | None) -> set[str]:
        """Wait for the transactions that work on jobs at this moment; returns those that are still there."""
        there = set(self._ids("open_writers", {"modes": modes}))

        def ended() -> bool:
            there.intersection_update(self._ids("open_writers", {"modes": modes}))
            return not there

        if there:
            _wait(ended, deadline, _POLL_SECONDS)
        return there

    def _none_left(self, leases: list[UUID]) -> bool:
        return not self._ids("leases_left", {"ids": leases})

    def _ids(self, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
        return [row[0] for row in self.database.run(statement, parameters)]


def _wait(condition: Callable[[], bool], deadline: float | None, pause: float) -> bool:
    """Whether the condition came true before the deadline (of `time.monotonic`)."""
    stop = (
        tenacity.stop_never if deadline is None else tenacity.stop_before_delay(max(deadline - time.monotonic(), 0.0))
    )
    patiently = tenacity.Retrying(
        retry=tenacity.retry_if_not_result(bool),
        wait=tenacity.wait_fixed(pause),
        stop=stop,
        retry_error_callback=lambda _: False,
    )
    return bool(patiently(condition))


def _turns(settings: QueueSettings) -> tuple[object, ...]:
    return settings.ordered, settings.max_running_per_key


def _counted(settings: QueueSettings) -> tuple[object, ...]:
    return (*_turns(settings), settings.max_running is not None)
