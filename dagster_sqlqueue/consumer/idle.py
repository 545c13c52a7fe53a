"""Wait while no job is due, or none may run."""

import contextlib
from collections.abc import Iterator
from typing import Any

from dagster_sqlqueue.consumer.leased import Work
from dagster_sqlqueue.consumer.queue_view import QueueView
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim_filter import ClaimFilter

_POLL_SECONDS = 0.2


class Idle:
    """The waits of one consumer.

    Args:
        work: what is worked off.
        catalog: the queues of the schema.
        view: what the consumer knows of the queue.
        claiming: whether the consumer claims by itself; if not, it is not notified.
        filter: takes only jobs that fit; None: all of its buckets.

    Attributes:
        waited: whether it waited since the last claim that found something: `took` is to be called for the next one.
        barred: whether the last claim took nothing by itself, because another consumer of this process has such a job.
    """

    def __init__(
        self, work: Work[Any], catalog: Catalog, view: QueueView, *, claiming: bool, filter: ClaimFilter | None
    ) -> None:
        self._work = work
        self._catalog = catalog
        self._view = view
        self._claiming = claiming
        self._filter = filter
        self.waited = False
        self.barred = False
        self._waiter: Waiter | None = None

    @contextlib.contextmanager
    def listening(self, linger_seconds: float) -> Iterator[None]:
        """Listen for notifications of new jobs while the block runs, if it may wait for them."""
        # Behind a pooler in transaction mode no notification arrives: the consumer polls.
        if linger_seconds <= 0 or not self._claiming or self._catalog.database.shared:
            yield
            return
        choosy = self._filter is not None
        with Waiter(self._catalog, self._work.spec.name, self._work.worker, choosy=choosy) as waiter:
            self._waiter = waiter
            try:
                yield
            finally:
                self._waiter = None

    def wake(self) -> None:
        """End the wait that is going on. May be called from any thread."""
        if (waiter := self._waiter) is not None:
            waiter.wake()

    def wait(self, seconds: float) -> None:
        """Wait until there may be something to do: a notification came, the next job is due, or it is time to poll.

        Args:
            seconds: how long at most.
        """
        self.waited = True
        if self._waiter is None:
            self._work.stopping.wait(max(min(seconds, _POLL_SECONDS), 0.0))
            return
        most = self._view.idle_seconds if self._waiter.listening else _POLL_SECONDS
        if self._waiter.wait(max(min(seconds, most), 0.0), self._view.bucket_order.buckets):
            # A job that was committed late may be due before where the next claim begins.
            self._view.hints.doubt()
            self._view.put_off()

    def took(self, filled: bool) -> None:
        """Say that the first claim after a wait found jobs, before they are worked on.

        Args:
            filled: as many as it was to, so that there may be more. Another consumer is notified, and that one notifies
                the next: so all that have nothing to do get to work.
        """
        self.waited = False
        if self._waiter is None:
            return
        self._waiter.busy()
        if filled:
            self._waiter.pass_on()

    def wait_if_limited(self) -> bool:
        """Wait a moment if jobs are due, of those that this consumer takes, that a limit, the turn of a key, or what another
        consumer of this process works on keeps from running. Returns whether some are.
        """
        settings = self._view.settings
        if not self._claiming or settings is None or settings.paused_at is not None:
            return False
        if not self._view.shared and not self.barred:
            return False
        due = False
        for attempt in self._work.patiently():
            with attempt:
                due = self._is_due(settings)
        if due:
            self._work.stopping.wait(_POLL_SECONDS)
        return due

    def _is_due(self, settings: QueueSettings) -> bool:
        leases, mine = self._work.leases, self._view.bucket_order.order
        if self._filter is not None:
            return self._filter.finds(leases.database, settings, mine, to_the_end=True)
        return any(head.due_seconds >= 0 and head.bucket in mine for head in leases.peek_heads(settings.name))
