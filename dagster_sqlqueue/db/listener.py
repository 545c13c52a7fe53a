"""Connection that listens for notifications of the database, and is reopened when it is lost."""

import contextlib
import logging
import math
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db import forks, statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import DatabaseUnavailable

logger = logging.getLogger("dagster_sqlqueue")

RECONNECT_SECONDS = 1.0


class Listener:
    """Receiver of the notifications on the channels of a statement. For one thread; only `wake` is thread-safe.

    Args:
        database: one connection is taken out of its pool for good, and does not count towards the pool size.
        statement: name of the SQL file with the LISTEN statements.
        label: name of the listener in log messages.
    """

    def __init__(self, database: Database, statement: str, label: str) -> None:
        self._database = database
        self._statement = statement
        self._label = label
        self._connection: psycopg.Connection[Any] | None = None
        # Notifications received while a statement ran.
        self._notes: list[psycopg.Notify] = []
        self._try_again_at = 0.0
        self._reported = False
        self._open_wakes()
        forks.begin_anew_in_child(self)

    def _open_wakes(self) -> None:
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)

    @property
    def listening(self) -> bool:
        """Whether notifications are being received."""
        return self._connection is not None

    def close(self) -> None:
        """Stop listening."""
        self._drop()
        self._wake_sender.close()
        self._wake_receiver.close()

    def begin_anew(self) -> None:
        """Leave the connection to the parent, in a forked process; `connect` opens another one."""
        self._connection, self._notes, self._try_again_at = None, [], 0.0
        if self._wake_sender.fileno() >= 0:
            self._wake_sender.close()
            self._wake_receiver.close()
            self._open_wakes()

    def wake(self) -> None:
        """End the current call of `heard`, or else the next one. May be called from any thread."""
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"w")

    def run(self, name: str, parameters: Mapping[str, Any]) -> list[Any] | None:
        """Run a statement in the listening session.

        Returns:
            Its rows; None if there is no listening session, or it was lost.
        """
        if self._connection is None:
            return None
        try:
            text = statements.load(name, self._database.schema).encode()
            return self._connection.execute(text, parameters, prepare=True).fetchall()
        except psycopg.Error as error:
            self.lose(self._why(error))
            return None

    def heard(self, seconds: float) -> list[tuple[str, str]] | None:
        """Wait for notifications, for at most `seconds`.

        Returns:
            Pairs of channel and payload, empty after the timeout or if the connection was lost; None if `wake` was called.
        """
        if found := self._taken():
            return found
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            if self._connection is not None:
                selector.register(self._connection.fileno(), selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(max(seconds, 0))}
        heard = self._read() if ready - {self._wake_receiver} else []
        if self._wake_receiver in ready:
            with contextlib.suppress(BlockingIOError):
                while self._wake_receiver.recv(1024):
                    pass
            return None
        return heard

    def connect(self) -> bool:
        """Start listening, unless it listens already, or failed to or lost its connection within the last second.

        Returns:
            Whether this call started to listen.
        """
        if self._connection is not None or time.monotonic() < self._try_again_at:
            return False
        with contextlib.ExitStack() as unless_it_listens:
            try:
                connection = self._database.apart()
                unless_it_listens.callback(_close, connection)
                if self._database.shared:
                    # Another client uses the session in the next transaction: LISTEN would have no effect here.
                    self._try_again_at = math.inf
                    return False
                connection.execute(statements.load(self._statement, self._database.schema).encode())
            except (DatabaseUnavailable, sa.exc.DBAPIError, psycopg.Error) as error:
                self.lose(self._why(getattr(error, "orig", None) or error))
                return False
            unless_it_listens.pop_all()
        connection.add_notify_handler(lambda note: self._notes.append(note))
        # Set only now: before the server has run LISTEN, notifications do not arrive.
        self._connection = connection
        if self._reported:
            logger.info("%s: notifications are received again", self._label)
            self._reported = False
        return True

    def lose(self, reason: str) -> None:
        """Close the connection, and log the reason once, until it listens again."""
        if not self._reported:
            logger.warning("%s: no notifications are received (%s); polling instead", self._label, reason)
            self._reported = True
        self._try_again_at = time.monotonic() + RECONNECT_SECONDS
        self._drop()

    def _why(self, error: BaseException) -> str:
        if isinstance(error, DatabaseUnavailable):
            return str(error)
        if getattr(error, "sqlstate", None) is None:
            return str(self._database.errors.unavailable(str(error)))
        return f"the database refused: {str(error).splitlines()[0]}"

    def _read(self) -> list[tuple[str, str]]:
        assert self._connection is not None
        try:
            self._connection.pgconn.consume_input()
        except psycopg.OperationalError:
            self.lose("the connection was lost")
        return self._taken()

    def _taken(self) -> list[tuple[str, str]]:
        """Return the notifications received while a statement ran, and since."""
        notes, self._notes = self._notes, []
        heard = [(note.channel, note.payload) for note in notes]
        if self._connection is not None:
            while note := self._connection.pgconn.notifies():
                heard.append((note.relname.decode(), note.extra.decode()))
        return heard

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._notes = []
        if connection is not None:
            _close(connection)


def _close(connection: "psycopg.Connection[Any]") -> None:
    with contextlib.suppress(psycopg.Error):
        connection.close()
