"""The archive's daily partitions: each made, or dropped, in a transaction of its own that waits for no lock for long.

A partition needs a moment in which no session writes or reads the archive. A session that waits for such a moment blocks
all that come after it, so the database gives up after 200 ms, and this module tries again a little later. What could not
be done is left for the next time: a day without a partition has its rows in the default one, and loses none.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import psycopg
import tenacity

from dagster_sqlqueue.db.execution import Parameters
from dagster_sqlqueue.db.executors import Transaction

DAYS_AHEAD = 7


@dataclass(frozen=True, slots=True)
class PartitionsMade:
    """What `make_missing` did: the days that got a partition, how many rows were moved into them from the default
    partition, and the days that have to wait because the archive was too busy.
    """

    days: tuple[date, ...]
    rows_moved: int
    busy: tuple[date, ...]


@dataclass(frozen=True, slots=True)
class PartitionsDropped:
    """What `drop_over` did: the days whose partition is gone, and those that have to wait because the archive was busy."""

    days: tuple[date, ...]
    busy: tuple[date, ...]


def make_missing(
    at: Transaction, *, days_ahead: int = DAYS_AHEAD, strays: bool, attempts: int = 8, narrow: bool = False
) -> PartitionsMade:
    """Make the partitions from yesterday's to that of `days_ahead` days ahead, where they are not there.

    Args:
        at: statements on a connection in autocommit.
        days_ahead: how far.
        strays: also make those of other days with rows in the default partition. If not, a day that has rows there is
            left out: moving them may take long.
        attempts: how often each is tried while the archive is busy.
        narrow: make each in one go, as a consumer may; rows that were moved are moved again should it be busy then.

    Raises:
        AccessRefused: the user is neither an operator nor the owner of the schema, nor, if it is narrow, a consumer.
    """
    made: list[date] = []
    busy: list[date] = []
    moved = 0
    for (day,) in at.run("archive_days_missing", {"days": days_ahead, "strays": strays}):
        if narrow:
            with _unless_busy(day, busy):
                kept = _patiently(at, "archive_day_keep", {"day": day}, attempts)
                if kept is not None:
                    moved += kept
                    made.append(day)
            continue
        with _unless_busy(day, busy), at.connection.transaction():
            begun = _patiently(at, "archive_day_begin", {"day": day}, attempts)
            if begun is not None:
                moved += begun + _patiently(at, "archive_day_attach", {"day": day}, attempts)
                made.append(day)
    return PartitionsMade(tuple(made), moved, tuple(busy))


def drop_over(at: Transaction, *, only_queue: str | None, attempts: int = 8) -> PartitionsDropped:
    """Drop the partitions in which nothing has to be kept any more.

    Args:
        at: statements on a connection in autocommit.
        only_queue: only those in which that queue alone has rows; None for all.
        attempts: how often each is tried while the archive is busy.
    """
    dropped: list[date] = []
    busy: list[date] = []
    for (day,) in at.run("archive_days_over", {"only_queue": only_queue}):
        with _unless_busy(day, busy):
            if _patiently(at, "archive_day_drop", {"day": day, "only_queue": only_queue}, attempts):
                dropped.append(day)
    return PartitionsDropped(tuple(dropped), tuple(busy))


@contextlib.contextmanager
def _unless_busy(day: date, busy: list[date]) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        busy.append(day)


def _patiently(at: Transaction, verb: str, parameters: Parameters, attempts: int) -> Any:
    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)),
        wait=tenacity.wait_random(0.05, 0.5),
        stop=tenacity.stop_after_attempt(attempts),
        reraise=True,
    ):
        # Inside a transaction this is a savepoint: what was done before the lock that it did not get stays done.
        with attempt, at.connection.transaction():
            found = at.run(verb, parameters)[0][0]
    return found
