"""Wait for jobs without polling all the time: by LISTEN, or a plain wait where that is not available.

A notification only ever shortens a wait. It may be lost, come late or never: a job whose producer committed before the
waiter was registered, or long after its last claim, sends none. So the consumer claims by itself when the wait is over.
"""

import contextlib
import time
from types import TracebackType
from typing import Self

from dagster_sqlqueue.db.listener import RECONNECT_SECONDS, Listener
from dagster_sqlqueue.errors import AccessRefused, DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog

REGISTERED_SECONDS = 20.0
"""How long a waiter is known after it last said so. Once that is past, enqueues pay nothing for it."""


class Waiter:
    """Waits for jobs of one queue, for one consumer.

    As a context manager it registers and listens; between the two and the first `wait` the consumer claims by itself.

    Args:
        catalog: the queues of the schema. The waiter takes one connection out of their pool for good, beside those that it
            allows.
        queue_name: the queue.
        worker: the name of the waiting consumer; unique for each start of a process.

    Raises:
        InvalidInput: the name is not that of a queue, or the worker is empty.
    """

    def __init__(self, catalog: Catalog, queue_name: str, worker: str) -> None:
        if not worker:
            raise InvalidInput("worker is empty; give a name that is unique for each start of a process")
        self._catalog = catalog
        self._queue = check_queue_name(queue_name)
        self._worker = worker
        self._listener = Listener(catalog.database, "waiter_listen", self._queue)
        self._known_until = 0.0

    def __enter__(self) -> Self:
        """Register and listen; what a database that is away does not allow now, the first `wait` tries again.

        Raises:
            UnknownQueue: there is no such queue.
            SchemaMissing, AccessRefused: see the classes.
        """
        try:
            self._refresh()
        except BaseException:
            self._listener.close()
            raise
        self._listener.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def listening(self) -> bool:
        """Whether notifications would be received; if not, `wait` waits for its time."""
        return self._listener.listening

    def close(self) -> None:
        """Stop listening and waiting."""
        self._listener.close()
        self._known_until = 0.0
        # A user who may not leave could not register either.
        with contextlib.suppress(DatabaseUnavailable, AccessRefused):
            self._catalog.database.run("waiter_leave", {"queue": self._queue, "worker": self._worker})

    def wake(self) -> None:
        """End the wait that is going on, or the next one. May come from any thread."""
        self._listener.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until jobs were put on the queue, the time is up, or `wake` is called.

        Args:
            seconds: how long at most. Making a lost connection again, which is tried at most once a second, may take
                longer: up to the database's connect_timeout.

        Returns:
            Whether to claim at once: a notification came, or one may have been missed, because the waiter had
            become unknown or deaf before this call.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._became_known():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            heard = self._listener.heard(min(left, REGISTERED_SECONDS / 4 if self.listening else RECONNECT_SECONDS))
            if heard is None:
                return False
            if self._queue in heard:
                return True

    def _became_known(self) -> bool:
        """Stay known and listening; gives whether it was not so until now, and notifications may have been missed."""
        missed = time.monotonic() >= self._known_until
        self._refresh()
        missed = self._listener.connect() or missed
        return missed and self.listening and time.monotonic() < self._known_until

    def _refresh(self) -> None:
        if time.monotonic() + REGISTERED_SECONDS / 2 < self._known_until:
            return
        try:
            self._register()
        except DatabaseUnavailable as error:
            self._listener.lose(str(error))

    def _register(self) -> None:
        parameters = {"queue": self._queue, "worker": self._worker, "seconds": REGISTERED_SECONDS}
        began = time.monotonic()
        if not self._catalog.database.run("waiter_register", parameters):
            self._catalog.check_exists(self._queue)
        self._known_until = began + REGISTERED_SECONDS
