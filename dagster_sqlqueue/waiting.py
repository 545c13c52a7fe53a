"""Waiting for jobs without asking for them all the time: LISTEN, and a plain wait whenever that is not to be had.

A notification only ever shortens a wait. It may be lost, come late or never: a job whose producer committed before the
waiter was known, or long after he looked, sends none. So whoever waits looks by himself when the wait is over.
"""

import contextlib
import logging
import selectors
import socket
import time
from types import TracebackType
from typing import Any, Self

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue import statements
from dagster_sqlqueue.errors import AccessRefused, DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.settings import check_queue_name
from dagster_sqlqueue.verbs import Verbs

logger = logging.getLogger("dagster_sqlqueue")

REGISTERED_SECONDS = 20.0
"""How long a waiter is known after it last said so. Once that is past, enqueues pay nothing for it."""

_RECONNECT_SECONDS = 1.0


class Waiter:
    """Waits for jobs of one queue, for one consumer.

    As a context manager it registers and listens; between the two and the first `wait` the consumer looks for jobs itself.

    Args:
        queue: where the queue is. The waiter takes one connection out of its pool for good, beside those that it allows.
        queue_name: the queue.
        worker: who waits: unique for each start of a process.

    Raises:
        InvalidInput: the name is not that of a queue, or the worker is empty.
    """

    def __init__(self, queue: Verbs, queue_name: str, worker: str) -> None:
        if not worker:
            raise InvalidInput("worker is empty; give a name that is unique for each start of a process")
        self._verbs = queue
        self._queue = check_queue_name(queue_name)
        self._worker = worker
        self._connection: psycopg.Connection[Any] | None = None
        self._known_until = 0.0
        self._try_again_at = 0.0
        self._told = False
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)

    def __enter__(self) -> Self:
        """Register and listen.

        Raises:
            UnknownQueue: there is no such queue.
            SchemaMissing, AccessRefused: see the classes.
        """
        try:
            self._register()
        except BaseException:
            self._wake_sender.close()
            self._wake_receiver.close()
            raise
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def listening(self) -> bool:
        """Whether notifications would be received; if not, `wait` waits for its time."""
        return self._connection is not None

    def close(self) -> None:
        """Stop listening and waiting."""
        self._drop()
        self._wake_sender.close()
        self._wake_receiver.close()
        self._known_until = 0.0
        # Who may not leave could not register either.
        with contextlib.suppress(DatabaseUnavailable, AccessRefused):
            self._verbs.database.run("waiter_leave", {"queue": self._queue, "worker": self._worker})

    def wake(self) -> None:
        """End the wait that is going on, or the next one. May come from any thread."""
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"w")

    def wait(self, seconds: float) -> bool:
        """Wait until jobs were put on the queue, the time is up, or somebody calls `wake`.

        Args:
            seconds: how long at most. Making a lost connection again, which is tried at most once a second, may take
                longer: up to the database's connect_timeout.

        Returns:
            Whether it is worth to look at once: a notification came, or one may have been missed, because the waiter had
            become unknown or deaf before this call.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._became_known():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            heard = self._heard(min(left, REGISTERED_SECONDS / 4 if self.listening else _RECONNECT_SECONDS))
            if heard is not False:
                return heard is not None

    def _became_known(self) -> bool:
        """Stay known and listening; gives whether it was not so until now, and notifications may have been missed."""
        missed = time.monotonic() >= self._known_until
        self._refresh()
        if self._connection is None and time.monotonic() >= self._try_again_at:
            missed = self._listen() or missed
        return missed and self.listening and time.monotonic() < self._known_until

    def _heard(self, seconds: float) -> bool | None:
        """Whether a notification for the queue came; None when somebody called `wake`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            if self._connection is not None:
                selector.register(self._connection.fileno(), selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(max(seconds, 0))}
        heard = bool(ready - {self._wake_receiver}) and self._read()
        if self._wake_receiver in ready:
            with contextlib.suppress(BlockingIOError):
                while self._wake_receiver.recv(1024):
                    pass
            return None
        return heard

    def _read(self) -> bool:
        assert self._connection is not None
        heard = False
        try:
            self._connection.pgconn.consume_input()
            while note := self._connection.pgconn.notifies():
                heard = heard or note.extra.decode() == self._queue
        except psycopg.OperationalError:
            self._lose("the connection was lost")
        return heard

    def _refresh(self) -> None:
        if time.monotonic() + REGISTERED_SECONDS / 2 < self._known_until:
            return
        try:
            self._register()
        except DatabaseUnavailable as error:
            self._lose(str(error))

    def _register(self) -> None:
        parameters = {"queue": self._queue, "worker": self._worker, "seconds": REGISTERED_SECONDS}
        began = time.monotonic()
        if not self._verbs.database.run("waiter_register", parameters):
            self._verbs.check_exists(self._queue)
        self._known_until = began + REGISTERED_SECONDS

    def _listen(self) -> bool:
        """Listen on a connection of one's own; gives whether that is so now."""
        database = self._verbs.database
        try:
            pooled = database.engine.raw_connection()
            connection = pooled.driver_connection
            assert isinstance(connection, psycopg.Connection)
            pooled.detach()
            connection.execute(statements.load("waiter_listen", database.schema).encode())
        except (sa.exc.OperationalError, psycopg.OperationalError) as error:
            self._lose(str(database.unavailable(str(getattr(error, "orig", None) or error))))
            return False
        except sa.exc.TimeoutError:
            self._lose("every connection of the pool is in use; raise pool_size")
            return False
        if self._told:
            logger.info("%s: notifications are heard again", self._queue)
            self._told = False
        self._connection = connection
        return True

    def _lose(self, reason: str) -> None:
        if not self._told:
            logger.warning("%s: no notifications are heard (%s); looking from time to time", self._queue, reason)
            self._told = True
        self._try_again_at = time.monotonic() + _RECONNECT_SECONDS
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
