"""Maintenance of a schema: make partitions of the archive ahead, trim ended jobs by retention, remove expired rows."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TypeVar
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import AccessRefused, InvalidInput, QueueError
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog, settings_of
from dagster_sqlqueue.queue.maintenance_run import MaintenanceRun, Stopped, begin
from dagster_sqlqueue.queue.odd_jobs import first_line, move_strays
from dagster_sqlqueue.queue.stuck_keys import heal_keys
from dagster_sqlqueue.queue.unpublished_batches import Swept, sweep
from dagster_sqlqueue.schema import partitions

logger = logging.getLogger("dagster_sqlqueue")

T = TypeVar("T")

MAX_DAYS_AHEAD = 366
_TRIMMED_AT_ONCE = 10_000
_AT_ONCE = 1_000
_BY_PAGE = ("notify_missed_followers", "forget_progress")
"""Those that read a page, and say where it ended."""
_WHILE_ANY = ("forget_groups", "forget_replaced", "forget_waits", "forget_staged", "forget_writes")
"""Those that remove so many, as often as there are any."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What `trim` removed from the archive.

    Attributes:
        partitions_dropped: the UTC days whose whole partition was dropped, in order.
        rows_deleted: how many rows were deleted one by one, by queue: from partitions that other queues still need.
        events_deleted: how many steps of people were deleted, by queue: those of jobs that are gone.
        busy: the days whose partition could not be dropped because the archive was in use; the next call tries again.
    """

    partitions_dropped: tuple[date, ...]
    rows_deleted: dict[str, int]
    events_deleted: dict[str, int]
    busy: tuple[date, ...]


@dataclass(frozen=True, slots=True)
class Maintained:
    """What `maintain` did.

    Attributes:
        ran: False: another process was at it, and nothing was done here.
        partitions_made: the UTC days that got a partition of the archive, in order.
        rows_moved: how many rows that had found no partition of their day were moved into it.
        partitions_dropped: see `Trimmed`.
        rows_deleted: see `Trimmed`.
        events_deleted: see `Trimmed`.
        expired_removed: how many expired waiters, consumers, grants and slots, old counts of refused writes, groups that
            ended 30 days ago, followers whose job is not there any more or whose process died, notes of progress
            without a job, attempts of Spark tasks that staged jobs more than a day ago, names of writes of more than 30
            days ago, and ids of jobs that were replaced or deleted more than a week ago, were removed.
        batches_swept: the batches that were left behind by their drivers, and whose jobs were given back.
        keys_healed: the ordering keys whose jobs waited for a turn that would not have come, and that go on now.
        jobs_moved: the jobs that were in a bucket that their queue never had, which no sensor reads, or had a priority that
            there is not; they are where claims and sensors find them now.
        queues_removed: the reply queues whose time was up, removed with their jobs.
        busy: the days whose partition could not be made or dropped because the archive was in use; the next call tries
            again.
    """

    ran: bool
    partitions_made: tuple[date, ...] = ()
    rows_moved: int = 0
    partitions_dropped: tuple[date, ...] = ()
    rows_deleted: dict[str, int] = field(default_factory=dict)
    events_deleted: dict[str, int] = field(default_factory=dict)
    expired_removed: int = 0
    batches_swept: int = 0
    keys_healed: int = 0
    jobs_moved: int = 0
    queues_removed: tuple[str, ...] = ()
    busy: tuple[date, ...] = ()


class Maintenance:
    """What keeps the archive in order; any process may do it, as often as it likes.

    Args:
        catalog: the queues of the schema.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.database = catalog.database
        self._catalog = catalog

    def maintain(self, *, days_ahead: int = partitions.DAYS_AHEAD) -> Maintained:
        """Keep the archive and the schema in order: `SqlQueue.maintain`."""
        if not is_whole(days_ahead, 0, MAX_DAYS_AHEAD):
            raise InvalidInput(
                f"days_ahead is {days_ahead!r}; it must be a whole number of days, 0 to {MAX_DAYS_AHEAD}"
            )
        with self.database.connection() as connection:
            run = begin(connection, self.database, forced=True)
            if run is None:
                return Maintained(ran=False)
            done = self._maintain(run, days_ahead)
        # On a connection of its own, which this one may be the only one to have.
        return replace(done, keys_healed=heal_keys(self.database))

    def maintain_if_due(self, *, stopping: Callable[[], bool]) -> Maintained:
        """Do the same, if it is due, with what a consumer may do: a step that the user has no right to is left to an
        operator.

        Args:
            stopping: asked before each statement; once it says yes, the rest is left to the next process.
        """
        with self.database.connection() as connection:
            run = begin(connection, self.database, forced=False, stopping=stopping)
            if run is None:
                return Maintained(ran=False)
            try:
                done = self._maintain(run, partitions.DAYS_AHEAD, narrow=True)
            except Stopped:
                return Maintained(ran=True)
        return replace(done, keys_healed=heal_keys(self.database))

    def _maintain(self, at: MaintenanceRun, days_ahead: int, *, narrow: bool = False) -> Maintained:
        """Everything there is to do, in this run, which ends."""

        def step(work: Callable[[], T], otherwise: T) -> T:
            try:
                return work()
            except AccessRefused:
                if not narrow:
                    raise
                return otherwise

        def made(strays: bool) -> partitions.PartitionsMade:
            return partitions.make_missing(at, days_ahead=days_ahead, strays=strays, narrow=narrow)

        no_days = partitions.PartitionsMade((), 0, ())
        with at.ending():
            # The days ahead come first: they are what consumers will need. Rows that are to go are not moved before.
            ahead = step(lambda: made(strays=False), no_days)
            trimmed = step(lambda: self._trim(at, None), Trimmed((), {}, {}, ()))
            strays = step(lambda: made(strays=True), no_days)
            step(lambda: at.run("archive_summarize", {}), None)
            expired = step(lambda: int(at.run("forget_expired", {})[0][0]), 0)
            expired += sum(step(lambda verb=verb: _page_by_page(at, verb), 0) for verb in _BY_PAGE)  # type: ignore[misc]
            expired += sum(step(lambda verb=verb: _while_any(at, verb), 0) for verb in _WHILE_ANY)  # type: ignore[misc]
            swept = step(lambda: sweep(at), Swept())
            removed = step(lambda: _remove_reply_queues(at), tuple[str, ...]())
            moved = step(lambda: move_strays(at), 0)
        return Maintained(
            ran=True,
            partitions_made=tuple(sorted({*ahead.days, *strays.days})),
            rows_moved=ahead.rows_moved + strays.rows_moved,
            partitions_dropped=trimmed.partitions_dropped,
            rows_deleted=trimmed.rows_deleted,
            events_deleted=trimmed.events_deleted,
            expired_removed=expired,
            batches_swept=swept.batches,
            jobs_moved=moved,
            queues_removed=removed,
            busy=tuple(sorted({*strays.busy, *trimmed.busy})),
        )

    def trim(self, queue: str | None = None) -> Trimmed:
        """Remove finished jobs that no retention keeps: `SqlQueue.trim`."""
        if queue is not None:
            self._catalog.check_exists(check_queue_name(queue))
        with self.database.connection() as connection:
            return self._trim(Transaction(connection, self.database), queue)

    def ensure_partitions(self) -> bool:
        """Have a partition of the archive for today and tomorrow: for the start of a drain.

        One read of the catalog where tomorrow's is there, which it is if anything maintains the schema. Never stands
        in a consumer's way: what goes wrong is a warning in the log, and the jobs of a day without a partition are
        archived in the default one.

        Returns:
            Whether tomorrow has its partition now.
        """
        try:
            if self.database.run("archive_day_ahead", {})[0][0]:
                return True
            with self.database.connection() as connection:
                at = Transaction(connection, self.database)
                partitions.make_missing(at, days_ahead=1, strays=False, attempts=2, narrow=True)
            return bool(self.database.run("archive_day_ahead", {})[0][0])
        except AccessRefused:
            reason = "this user may not make one; have an operator or the owner of the schema run: sqlqueue maintain"
        except (psycopg.Error, QueueError) as error:
            reason = first_line(error)
        logger.warning("the archive in schema %s has no partition for tomorrow: %s", self.database.schema, reason)
        return False

    def _trim(self, at: Transaction, queue: str | None) -> Trimmed:
        dropped = partitions.drop_over(at, only_queue=queue)
        deleted: dict[str, int] = {}
        events: dict[str, int] = {}
        for settings in map(settings_of, at.run("queues", {"name": queue})):
            if not settings.retention_days:
                continue
            parameters = {"queue": settings.name, "limit": _TRIMMED_AT_ONCE}
            while rows := at.run("archive_trim", parameters)[0][0]:
                deleted[settings.name] = deleted.get(settings.name, 0) + rows
            # Only now: they go with what became of their jobs.
            if gone := _trim_events(at, settings.name):
                events[settings.name] = gone
        while queue is None and (found := at.run("archive_trim_no_queue", {"limit": _TRIMMED_AT_ONCE})):
            for name, rows in found:
                deleted[name] = deleted.get(name, 0) + rows
        return Trimmed(dropped.days, deleted, events, dropped.busy)


def _trim_events(at: Transaction, queue: str) -> int:
    """Delete the old steps of jobs that are gone, page by page; those of jobs that are not are stepped over."""
    deleted = 0
    place: tuple[str, UUID, int] = ("-infinity", UUID(int=0), 0)
    while True:
        after = dict(zip(("after_at", "after_id", "after_no"), place, strict=True))
        gone, scanned, *last = at.run("event_trim", {"queue": queue, "limit": _AT_ONCE, **after})[0]
        deleted += int(gone)
        if scanned < _AT_ONCE:
            return deleted
        place = (last[0], last[1], last[2])


def _while_any(at: Transaction, verb: str) -> int:
    forgotten = 0
    while removed := at.run(verb, {"limit": _AT_ONCE})[0][0]:
        forgotten += removed
    return forgotten


def _page_by_page(at: Transaction, verb: str) -> int:
    forgotten = 0
    after = UUID(int=0)
    while True:
        read, removed, after = at.run(verb, {"after": after, "limit": _AT_ONCE})[0]
        forgotten += int(removed)
        if read < _AT_ONCE:
            return forgotten


def _remove_reply_queues(at: Transaction) -> tuple[str, ...]:
    """Each in a transaction of its own; one that is in use gets more time, or is left for the next call."""
    removed: list[str] = []
    after = ("-infinity", "")
    while over := at.run("reply_queues_over", {"after_at": after[0], "after_queue": after[1], "limit": _AT_ONCE}):
        for queue, expires_at in over:
            after = expires_at, queue
            with contextlib.suppress(psycopg.errors.DeadlockDetected):
                while (gone := at.run("reply_queue_expire", {"queue": queue})[0][0]) is None:
                    pass
                removed += [queue] if gone else []
    return tuple(removed)
