"""Maintain the schema beside a consumer's work: checked once a minute, and done when it is due, by one process of all.

It has a thread and a connection of its own, so that no claim waits for it, and goes on in steps of a few thousand rows.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Final

import psycopg

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import AccessRefused, QueueError
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.maintenance import Maintenance
from dagster_sqlqueue.queue.odd_jobs import first_line

logger = logging.getLogger("dagster_sqlqueue")

CHECK_SECONDS: Final = 60.0
"""How often a process checks whether maintenance is due, however many consumers it has."""

_LEAVE_SECONDS = 5.0
"""How long a consumer that ends by itself waits for what it has begun: the next one begins with what is left."""

_checked_at: dict[tuple[str, str], float] = {}
"""When this process last checked, by the clock of `time.monotonic`, for each database and schema."""


class Upkeep:
    """What one consumer does for the schema.

    Args:
        database: where the queues are.
        allowed: whether it does anything.
        stopping: set when the consumer is to stop.
    """

    def __init__(self, database: Database, stopping: threading.Event, *, allowed: bool) -> None:
        self._database = database
        self._allowed = allowed
        self._stopping = stopping
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Allow checks in the block, at its start and by `check`, and end with it."""
        self._leaving.clear()
        self.check()
        try:
            yield
        finally:
            thread, self._thread = self._thread, None
            if thread is not None:
                if not self._stopping.is_set():
                    thread.join(_LEAVE_SECONDS)
                self._leaving.set()
                thread.join(_LEAVE_SECONDS)

    def check(self) -> None:
        """Begin maintenance if it is due, and if this process has not checked within the last minute."""
        if not self._allowed or (self._thread is not None and self._thread.is_alive()):
            return
        key, now = (self._database.where, self._database.schema), time.monotonic()
        if now - _checked_at.get(key, -CHECK_SECONDS) < CHECK_SECONDS:
            return
        _checked_at[key] = now
        try:
            due = self._database.run("maintenance_due", {})
        except AccessRefused:
            self._allowed = False
        except (psycopg.Error, QueueError) as error:
            logger.debug("whether maintenance of schema %s is due is not known: %s", key[1], first_line(error))
        else:
            if due:
                self._thread = threading.Thread(target=self._maintain, name="sqlqueue-upkeep", daemon=True)
                self._thread.start()

    def _maintain(self) -> None:
        """Maintain on a connection that is none of the pool's, which others wait for."""
        schema = self._database.schema
        try:
            with contextlib.closing(self._database.beside()) as database:
                done = Maintenance(Catalog(database)).maintain_if_due(
                    stopping=lambda: self._leaving.is_set() or self._stopping.is_set()
                )
        except AccessRefused:
            self._allowed = False
        except (psycopg.Error, QueueError) as error:
            logger.warning("maintenance of schema %s was left for the next time: %s", schema, first_line(error))
        except Exception:
            logger.exception("maintenance of schema %s failed", schema)
        else:
            if done.ran:
                logger.info("maintenance of schema %s: %s", schema, done)
