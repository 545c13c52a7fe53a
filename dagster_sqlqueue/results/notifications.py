"""Notifications of ended jobs: one thread and one connection that listens, for all waits of a process.

A notification only ever shortens a wait: it may be lost, or never be sent. So each wait polls, too.
"""

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from uuid import UUID

from dagster_sqlqueue.db import forks
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.listener import RECONNECT_SECONDS, Listener

logger = logging.getLogger("dagster_sqlqueue")

IDLE_SECONDS = 30.0
"""How long the connection is kept for the next wait."""

_POLL_SECONDS = 5.0


class JobEndListener:
    """Notifies waits when their jobs end. May be used from any thread.

    Args:
        database: lends one connection, while there are waits and for half a minute after that.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._idle_since = 0.0
        self._closing = False
        self.begin_anew()
        forks.begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Have no waits, thread and connection, as in a forked process: those of its parent are not there."""
        self._lock = threading.Lock()
        self._watches: defaultdict[UUID, list[Callable[[], None]]] = defaultdict(list)
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None

    @property
    def listening(self) -> bool:
        """Whether notifications would be received."""
        listener = self._listener
        return listener is not None and listener.listening

    @contextlib.contextmanager
    def watch(self, ids: Collection[UUID], wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called, in the block, when a check is due: one of the jobs ended, or that may have been missed.

        Args:
            ids: the jobs.
            wake: called from another thread.
        """
        with self._lock:
            for id in ids:
                self._watches[id].append(wake)
            self._begin()
        try:
            yield
        finally:
            with self._lock:
                for id in ids:
                    # A process that was forked in the block has none.
                    with contextlib.suppress(ValueError):
                        self._watches[id].remove(wake)
                    if not self._watches[id]:
                        del self._watches[id]
                self._idle_since = time.monotonic()

    def close(self) -> None:
        """Stop listening. Running waits poll from time to time."""
        with self._lock:
            thread, listener = self._thread, self._listener
            self._closing = True
            if listener is not None:
                listener.wake()
        if thread is not None:
            thread.join()

    def _begin(self) -> None:
        if self._thread is None and not self._closing:
            self._listener = Listener(self._database, "ended_listen", "waiting for results")
            self._thread = threading.Thread(target=self._run, args=(self._listener,), name="sqlqueue-ends", daemon=True)
            self._thread.start()

    def _run(self, listener: Listener) -> None:
        try:
            while not self._over():
                if listener.connect():
                    # What ended before this connection listened was not heard.
                    self._wake_all()
                heard = listener.heard(_POLL_SECONDS if listener.listening else RECONNECT_SECONDS)
                for _, payload in heard or ():
                    self._wake(payload)
        except Exception:
            logger.exception("listening for the ends of jobs failed; waits poll instead")
        finally:
            with self._lock:
                if self._listener is listener:
                    self._listener = self._thread = None
            listener.close()

    def _over(self) -> bool:
        with self._lock:
            idle = not self._watches and time.monotonic() - self._idle_since > IDLE_SECONDS
            if idle or self._closing:
                self._listener = self._thread = None
            return idle or self._closing

    def _wake(self, payload: str) -> None:
        try:
            ended = UUID(payload)
        except ValueError:
            return
        with self._lock:
            wakes = list(self._watches.get(ended, ()))
        for wake in wakes:
            wake()

    def _wake_all(self) -> None:
        with self._lock:
            wakes = {wake for watch in self._watches.values() for wake in watch}
        for wake in wakes:
            wake()
