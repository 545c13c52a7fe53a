"""What a consumer knows of its queue: the settings, its buckets, their order in claims, and their heads."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from dagster_sqlqueue.consumer.bucket_order import BucketOrder
from dagster_sqlqueue.consumer.leased import PASSING, Work
from dagster_sqlqueue.consumer.presence import Presence
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim_ahead import may_claim_ahead
from dagster_sqlqueue.queue.claim_request import check_buckets
from dagster_sqlqueue.queue.head_hints import HeadHints
from dagster_sqlqueue.schema import migrations

_REFRESH_SECONDS = 5.0
_IDLE_REFRESH_SECONDS = 30.0
_PUT_OFF_SECONDS = 0.05


class QueueView:
    """One consumer's view of its queue, read again every five seconds, between two batches; less often while there are none.

    Args:
        work: what is worked off.
        catalog: the queues of the schema.
        bucket_order: the consumer's buckets.
        ask_buckets: which buckets they are by now; None: they stay.
        presence: the consumer's sign in transactional mode.
        hinted: whether the consumer claims by itself, and uses hints of where to begin.

    Attributes:
        bucket_order: the consumer's buckets, in the order of the next claim.
        hints: where its claims begin.
        settings: the queue's, as they were read last; None before that.
        shared: whether the queue's consumers share a limit, or the turns of keys; assumed before the settings are read.
        claimable_ahead: whether its jobs may be claimed ahead.
        refresh_at: the moment of `time.monotonic` at which it is to be read again.
    """

    def __init__(
        self,
        work: Work[Any],
        catalog: Catalog,
        bucket_order: BucketOrder,
        *,
        ask_buckets: Callable[[], Sequence[int]] | None,
        presence: Presence | None,
        hinted: bool,
    ) -> None:
        self._work = work
        self._catalog = catalog
        self.bucket_order = bucket_order
        self._ask_buckets = ask_buckets
        self._presence = presence
        self._hinted = hinted
        self.hints = HeadHints()
        self.settings: QueueSettings | None = None
        self.shared = True
        self.claimable_ahead = False
        self.refresh_at = 0.0

    def refresh(self) -> None:
        """Read everything again that others may have changed.

        Raises:
            UnknownQueue: the queue does not exist.
            SchemaMissing, SchemaTooOld, SchemaTooNew: the schema and this code do not work together, or not any more.
            DatabaseUnavailable: the database stayed away for longer than a lease.
        """
        for attempt in self._work.patiently():
            with attempt:
                # The schema may have been upgraded since, and not serve this code any more.
                migrations.check(self._catalog.database)
                settings = self._catalog.settings(self._work.spec.name)
        self.refresh_at = time.monotonic() + _REFRESH_SECONDS
        self._take_over(settings)
        if self._ask_buckets is not None:
            with contextlib.suppress(DatabaseUnavailable):
                self._cover(check_buckets(self._ask_buckets()))
        if self._presence is not None:
            for attempt in self._work.patiently():
                with attempt:
                    self._presence.note_and_find_suspects()
        if self._hinted:
            # Without new ones claims take longer, and nothing else.
            with contextlib.suppress(*PASSING):
                self._work.leases.note_sweep(self._work.spec.name)
                self.hints.know(self._work.leases.head_hints(self._work.spec.name))
        self.bucket_order.arrange(settings)

    @property
    def idle_seconds(self) -> float:
        """For how long a consumer that has nothing to do may go on without reading it again."""
        # The buckets that are assigned may change, and consumers in transactional mode watch each other.
        prompt = self._ask_buckets is not None or self._presence is not None
        return max(
            self.refresh_at - time.monotonic() + (0.0 if prompt else _IDLE_REFRESH_SECONDS - _REFRESH_SECONDS), 0.0
        )

    def put_off(self) -> None:
        """Have the next claim made first, if it is time to read it again: a job waits."""
        self.refresh_at = max(self.refresh_at, time.monotonic() + _PUT_OFF_SECONDS)

    def notice_new_settings(self) -> None:
        """Take over settings that a verb of this process has read since."""
        seen = self._catalog.last_seen(self._work.spec.name)
        if seen is not self.settings:
            self._take_over(seen)
            self.bucket_order.arrange(seen)

    def _take_over(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.shared = settings.limited or settings.keyed
        self.claimable_ahead = may_claim_ahead(settings)
        self._work.lease.follow(settings.lease_seconds)

    def _cover(self, buckets: Sequence[int]) -> None:
        self.bucket_order.cover(buckets)
        if self._presence is not None:
            self._presence.buckets = buckets
