"""Wait for jobs without polling all the time: by LISTEN, or a plain wait where that is not available.

A waiter that has nothing to do arms itself: the next job that is enqueued notifies it, and no other, on the channel of
its session. Then it polls once more, as a job that was committed at that moment has notified nobody; and again when the
transactions that were open at that moment have ended. A notification only ever shortens a wait: a job that was not
notified is found by the poll that follows within a second. Where many wait for all jobs of a queue, they share the polls:
each makes fewer of them, at moments of its own.
"""

import contextlib
import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from dagster_sqlqueue.db.driver_errors import TIMED_OUT
from dagster_sqlqueue.db.listener import RECONNECT_SECONDS, Listener
from dagster_sqlqueue.errors import AccessRefused, DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.odd_jobs import first_line

REGISTERED_SECONDS = 60.0
"""How long a waiter is known after it last said so."""

POLL_SECONDS = 1.0
"""How often a waiter polls by itself."""

_SHARING: Final = 4
_LAST_POLL_SECONDS: Final = 4.0
"""So many waiters of a queue poll once a second each; more of them as often together, each every few seconds at least."""

_FIRST_ARMED_SECONDS: Final = 4.0
_LAST_ARMED_SECONDS: Final = 60.0
"""For how long a waiter is armed: for longer and longer while no job comes. Producers step over rows that were taken for as
long, where an old transaction keeps them: one that is busy arms itself often, and is to leave few of them."""

_FIRST_PAUSE_SECONDS: Final = 0.002
_LAST_PAUSE_SECONDS: Final = 0.256
"""How soon to poll again while a transaction is open that may have searched a waiter before this one was armed: soon, as
it is about to commit; then less and less. One that stays open for longer has not searched yet."""


_SLOW_SECONDS: Final = 0.005
"""A poll that takes longer steps over dead rows, perhaps: then those of the next second begin at the head hints."""


class Waiter:
    """Waits for jobs of one queue, for one consumer.

    As a context manager it registers and listens; the consumer claims by itself before each `wait`, and says when it has got
    something (`busy`).

    Args:
        catalog: the queues of the schema. The waiter takes one connection out of their pool for good, beside those that it
            allows.
        queue_name: the queue.
        worker: the name of the waiting consumer; unique for each start of a process.
        choosy: whether the consumer takes only some of the jobs of its buckets: then it is notified of each, in addition to
            another one.

    Raises:
        InvalidInput: the name is not that of a queue, or the worker is empty.
    """

    def __init__(self, catalog: Catalog, queue_name: str, worker: str, *, choosy: bool = False) -> None:
        if not worker:
            raise InvalidInput("worker is empty; give a name that is unique for each start of a process")
        self._catalog = catalog
        self._queue = check_queue_name(queue_name)
        self._worker = worker
        self._choosy = choosy
        self._listener = Listener(catalog.database, "waiter_listen", self._queue)
        self._known_until = 0.0
        self._buckets: list[int] | None = None
        self._armed_until = 0.0
        self._arm_for = _FIRST_ARMED_SECONDS
        self._poll_seconds = POLL_SECONDS
        self._hinted_until = 0.0
        # Notified of a job, and no claim was made since.
        self._owing = False
        # Until when due jobs are taken for some that cannot be claimed: a claim has tried.
        self._in_vain_until = 0.0

    def __enter__(self) -> Self:
        """Register and listen; what a database that is away does not allow now, the first `wait` tries again.

        Raises:
            UnknownQueue: there is no such queue.
            SchemaMissing, AccessRefused: see the classes.
        """
        try:
            self._stay_registered()
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
        """Stop listening and waiting. A job of which only this one was notified is passed on to another waiter."""
        self._disarm()
        if self._owing:
            self.pass_on()
        self._listener.close()
        self._known_until = 0.0
        # A user who may not leave could not register either.
        with contextlib.suppress(DatabaseUnavailable, AccessRefused, *TIMED_OUT):
            self._catalog.database.run("waiter_leave", {"queue": self._queue, "worker": self._worker})

    def wake(self) -> None:
        """End the wait that is going on, or the next one. May come from any thread."""
        self._listener.wake()

    def busy(self) -> None:
        """Say that there is work: producers are to wake others. Costs something only after a wait that was not notified."""
        self._in_vain_until = 0.0
        self._owing = False
        self._arm_for = _FIRST_ARMED_SECONDS
        self._disarm()
        if self._owing:
            self.pass_on()

    def pass_on(self) -> None:
        """Wake another waiter of the queue, if one has nothing to do: there are more jobs than this one takes."""
        self._owing = False
        self._listener.run("waiter_pass", {"queue": self._queue, "buckets": self._buckets})

    def wait(self, seconds: float, buckets: Sequence[int] | None = None) -> bool:
        """Wait until jobs were enqueued, or one has become due, the time is up, or `wake` is called.

        Args:
            seconds: how long at most. Making a lost connection again, which is tried at most once a second, may take
                longer: up to the database's connect_timeout.
            buckets: those from which jobs are taken; None: all.

        Returns:
            Whether to claim at once: a notification came, or a job is due, or one may have been missed, because the waiter
            had become unknown or has lost its connection: a claim shows whether the database is away. Jobs that are due and
            were not claimed after that cannot be, as those of a paused queue: they end no wait for a second.
        """
        deadline = time.monotonic() + seconds
        pause = _FIRST_PAUSE_SECONDS
        open_then: list[str] | None = []
        self._owing = False
        while True:
            if self._became_known():
                return True
            due_in: float | None = None
            listened = self.listening
            if listened:
                if self._arm(buckets):
                    pause, open_then = _FIRST_PAUSE_SECONDS, None
                due_in, open_then = self._poll(open_then)
                if due_in is not None and due_in <= 0:
                    now = time.monotonic()
                    if now >= self._in_vain_until:
                        self._in_vain_until = now + POLL_SECONDS
                        return True
                    due_in = self._in_vain_until - now
                else:
                    self._in_vain_until = 0.0
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            most = self._until_next_poll() if self.listening else RECONNECT_SECONDS
            if open_then and pause <= _LAST_PAUSE_SECONDS:
                most = pause
                pause *= 2
            else:
                open_then = []
            heard = self._listener.heard(min(left, most, *(() if due_in is None else (due_in,))))
            if heard is None:
                return False
            if self._concerned(heard) or (listened and not self.listening):
                return True

    def _concerned(self, heard: Sequence[tuple[str, str]]) -> bool:
        """Whether one of these notifications, each a channel and a payload, is about the queue."""
        about = [channel for channel, queue in heard if queue == self._queue]
        if any(channel != self._catalog.database.schema for channel in about):
            self._armed_until = 0.0
            self._owing = True
        return bool(about)

    def _arm(self, buckets: Sequence[int] | None) -> bool:
        """Be armed for the next seconds; returns whether it was not so until now, or for other buckets."""
        wanted = None if buckets is None else sorted(buckets)
        now = time.monotonic()
        if now + 2 * self._poll_seconds < self._armed_until and wanted == self._buckets:
            return False
        if self._armed_until:
            self._arm_for = min(2 * self._arm_for, _LAST_ARMED_SECONDS)
        self._buckets = wanted
        given = {"queue": self._queue, "buckets": wanted, "choosy": self._choosy, "seconds": self._arm_for}
        armed = self._listener.run("waiter_arm", given)
        self._armed_until = 0.0 if armed is None else now + self._arm_for
        self._poll_seconds = POLL_SECONDS
        if armed and wanted is None and not self._choosy:
            # Not for longer than a part of the time for which the others were seen: they may be at work by then.
            shared = min(armed[0][0] / _SHARING, self._arm_for / 4, _LAST_POLL_SECONDS)
            self._poll_seconds = max(shared, POLL_SECONDS)
        return bool(self._armed_until)

    def _until_next_poll(self) -> float:
        """In how many seconds to poll. Waiters that share the polls began at one moment, perhaps: they are to part."""
        if self._poll_seconds <= POLL_SECONDS:
            return POLL_SECONDS
        return self._poll_seconds * random.uniform(0.75, 1.25)

    def _disarm(self) -> None:
        """Be armed no longer. One whose row a job has taken owes it to another waiter."""
        armed, self._armed_until = time.monotonic() < self._armed_until, 0.0
        if armed and (found := self._listener.run("waiter_disarm", {"queue": self._queue})):
            self._owing = self._owing or not found[0][0]

    def _poll(self, open_then: list[str] | None) -> tuple[float | None, list[str]]:
        """In how many seconds the first job is due, and which of these transactions are open; None: all are asked for."""
        given = {"queue": self._queue, "buckets": self._buckets, "open": open_then}
        began = time.monotonic()
        if began < self._hinted_until:
            found = self._listener.run("waiter_poll_hinted", given)
        else:
            found = self._listener.run("waiter_poll", given)
            now = time.monotonic()
            self._hinted_until = began + POLL_SECONDS if now - began > _SLOW_SECONDS else 0.0
        return found[0] if found else (None, [])

    def _became_known(self) -> bool:
        """Stay known and listening; returns whether it was not so until now, and notifications may have been missed."""
        missed = time.monotonic() >= self._known_until
        self._stay_registered()
        if self._listener.connect():
            missed = True
            self._armed_until = 0.0
        return missed and self.listening and time.monotonic() < self._known_until

    def _stay_registered(self) -> None:
        if time.monotonic() + REGISTERED_SECONDS / 2 < self._known_until:
            return
        try:
            self._register()
        except (DatabaseUnavailable, *TIMED_OUT) as error:
            self._listener.lose(first_line(error))

    def _register(self) -> None:
        parameters = {"queue": self._queue, "worker": self._worker, "seconds": REGISTERED_SECONDS}
        began = time.monotonic()
        if not self._catalog.database.run("waiter_register", parameters):
            self._catalog.check_exists(self._queue)
        self._known_until = began + REGISTERED_SECONDS
