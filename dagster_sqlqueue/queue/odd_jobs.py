"""Jobs that claims cannot take, or do not find: held with the reason, or moved, so that the others go on."""

import logging
import time
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
_PAUSE_SECONDS = 0.02
_MOST_IN_VAIN = 4


class OddJobs:
    """Sets jobs aside for one claim, as often as the database refuses it because of a row.

    Args:
        database: where the queue is.
        queue: its name.
    """

    def __init__(self, database: Executor, queue: str) -> None:
        self._database = database
        self._queue = queue
        self._in_vain = 0

    def set_aside(self, error: Exception) -> bool:
        """Hold the jobs that no claim can take. Returns whether to claim again; if not, the error has another cause.

        Args:
            error: of the claim.
        """
        if hold_unclaimable(self._database, self._queue, error):
            return True
        # Another consumer that met the same row may have held it just now, or be about to.
        self._in_vain += 1
        time.sleep(_PAUSE_SECONDS * self._in_vain)
        return self._in_vain <= _MOST_IN_VAIN


def despite_odd_jobs(database: Database, queue: str, claim: Callable[[], T]) -> T:
    """Claim, and should the database refuse it because of a row, set the jobs aside that no claim can take, and claim again.

    Args:
        database: where the queue is.
        queue: its name.
        claim: done in a transaction of its own.

    Raises:
        psycopg.Error: there is no such job: the error has another cause.
    """
    odd = OddJobs(database, queue)
    while True:
        try:
            return claim()
        except ROW_ERRORS as error:
            if not odd.set_aside(error):
                raise


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
