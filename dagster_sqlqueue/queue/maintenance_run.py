"""One run of maintenance: at most one goes on over a schema, and one whose process died is over after five minutes.

Nothing is held by the session: behind a pooler it is not the process's own, and what it kept would stop everybody else.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db.execution import Parameters, Row
from dagster_sqlqueue.db.executors import Home, Transaction

_SAID_SECONDS = 30.0
"""A run says so often that it goes on, between two statements; the database believes it for five minutes."""


class Stopped(Exception):
    """The run is to end where it is: its process stops, or another run has begun since."""


class MaintenanceRun(Transaction):
    """Statements of a run, each in a transaction of its own.

    Args:
        connection: in autocommit.
        database: where it is.
        run_no: the run's number.
        stopping: asked before each statement.
    """

    def __init__(
        self, connection: "psycopg.Connection[Any]", database: Home, run_no: int, stopping: Callable[[], bool]
    ) -> None:
        super().__init__(connection, database)
        # A session that a pooler lends may have been left at any level, and retentions are those of now.
        self._lent = bool(database.first_steps())
        if self._lent:
            connection.isolation_level = IsolationLevel.READ_COMMITTED
        self._run_no = run_no
        self._stopping = stopping
        self._said_at = time.monotonic()

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement.

        Raises:
            Stopped: the run is over.
        """
        if self._stopping():
            raise Stopped
        idle = self.connection.info.transaction_status is TransactionStatus.IDLE
        if idle and time.monotonic() - self._said_at >= _SAID_SECONDS:
            self._said_at = time.monotonic()
            if not self._note(ended=False):
                raise Stopped
        if idle and self._lent:
            with self.connection.transaction():
                return super().run(name, parameters)
        return super().run(name, parameters)

    @contextlib.contextmanager
    def ending(self) -> Iterator[Self]:
        """End the run with the block: done, or, after an exception, to be taken over by the next process."""
        done = False
        try:
            yield self
            done = True
        finally:
            if not self.connection.broken:
                self._note(ended=True, done=done)

    def _note(self, *, ended: bool, done: bool = False) -> bool:
        given = {"run_no": self._run_no, "ended": ended, "done": done}
        return bool(super().run("maintenance_note", given)[0][0])


def begin(
    connection: "psycopg.Connection[Any]",
    database: Home,
    *,
    forced: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> MaintenanceRun | None:
    """Begin a run, unless another one goes on.

    Args:
        connection: in autocommit; it is the run's for as long as that goes on.
        database: where it is.
        forced: also if none is due, and in place of one that goes on because it was due.
        stopping: asked before each statement of the run.

    Raises:
        AccessRefused: the user is neither an operator nor the owner of the schema, nor, unless it is forced, a consumer.
    """
    who = f"{socket.gethostname()}/{os.getpid()}"
    verb = "maintenance_force" if forced else "maintenance_take"
    ((run_no,),) = Transaction(connection, database).run(verb, {"who": who})
    return None if run_no is None else MaintenanceRun(connection, database, run_no, stopping)
