"""Jobs that claims cannot take, or do not find: held with the reason, or moved, so that the others go on."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.queue.catalog import settings_of

logger = logging.getLogger("dagster_sqlqueue")

T = TypeVar("T")

ROW_ERRORS: Final = (psycopg.DataError, psycopg.IntegrityError)
"""What the database says of a statement that is refused because of a row."""

_AT_ONCE = 1_000


def despite_odd_jobs(database: Database, queue: str, claim: Callable[[], T]) -> T:
    """Claim, and should the database refuse it because of a row, set the jobs aside that no claim can take, and claim again.

    Args:
        database: where the queue is.
        queue: its name.
        claim: done in a transaction of its own.

    Raises:
        psycopg.Error: there is no such job: the error has another cause.
    """
    try:
        return claim()
    except ROW_ERRORS as error:
        if not hold_unclaimable(database, queue, error):
            raise
        return claim()


def hold_unclaimable(database: Executor, queue: str, error: Exception) -> int:
    """Set the jobs of a queue aside that no claim can take, with the reason as their error.

    Args:
        database: where the queue is.
        queue: its name.
        error: why it is done, for the log.

    Returns:
        How many there were.
    """
    held = int(database.run("hold_unclaimable", {"queue": queue})[0][0])
    if held:
        logger.warning("%s: %d jobs that no claim could take were held (%s)", queue, held, first_line(error))
    return held


def move_strays(at: Executor) -> int:
    """Move jobs to where claims and sensors find them. Returns their number.

    Args:
        at: runs each statement in a transaction of its own.
    """
    moved = 0
    try:
        while found := int(at.run("move_strays", {"limit": _AT_ONCE})[0][0]):
            moved += found
    except ROW_ERRORS as error:
        for settings in map(settings_of, at.run("queues", {"name": None})):
            hold_unclaimable(at, settings.name, error)
    return moved


def refused(error: Exception) -> str:
    """Why nothing was decided about a job whose row the database refuses."""
    return f"its row cannot be changed as it is: {first_line(error)}"


def first_line(error: Exception) -> str:
    """What an error says, without the rows that the server quotes behind it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
