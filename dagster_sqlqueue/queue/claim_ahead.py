"""Claims whose answer is taken later: sent together with the ends of a batch, before the next one is worked on."""

import time
from collections.abc import Sequence
from uuid import UUID

from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.executors import rows_of
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.complete import Ending, FencedWrites, ending_step
from dagster_sqlqueue.queue.head_hints import HeadHints, up_to
from dagster_sqlqueue.queue.strategies import Wanted, claim_parameters, wanted_of


class SentClaim:
    """What `ClaimsAhead.send` has sent: one transaction, that was committed once `receive` has returned.

    Attributes:
        endings: how jobs were to end.
        limit: the most jobs to claim.
    """

    def __init__(
        self,
        writes: FencedWrites,
        channel: Channel,
        settings: QueueSettings,
        endings: Sequence[Ending],
        wanted: Wanted,
    ) -> None:
        self.endings = endings
        self.limit = wanted.limit
        self._writes = writes
        self._channel = channel
        self._settings = settings
        self._wanted = wanted
        self._asked_at = time.monotonic()

    def receive(self) -> int:
        """Wait for the answer. Gives the number of jobs that were claimed. May come from any thread.

        Raises:
            psycopg.OperationalError: the connection was lost; all of it may be done, or nothing.
            psycopg.Error: a statement failed, and nothing was done.
        """
        *self._ended, self._claimed = self._channel.receive()
        return self._claimed.rowcount

    def claimed(self) -> list[ClaimedJob]:
        """The jobs that were claimed, also those not to be handed out (`Claims.without_spent`). To be called once."""
        return [ClaimedJob._make((*row, self._settings.name)) for row in rows_of(self._claimed)]

    def noted(self, claimed: Sequence[ClaimedJob], handed_out: Sequence[ClaimedJob]) -> None:
        """Note for the claims to come where this one began, and how far it came.

        Args:
            claimed: what it claimed.
            handed_out: those of them that are to be worked on.
        """
        hints = self._wanted.hints
        # Another one has been sent since: its buckets are in another order.
        hints.saw(up_to(self._wanted.lanes, [job.bucket for job in claimed]), asked_at=self._asked_at)
        hints.note(handed_out)

    def ended(self) -> set[UUID]:
        """The ids whose ending was accepted. To be called once.

        Raises:
            DatabaseUnavailable: what was refused could not be looked at; what was accepted has ended all the same.
        """
        if not self.endings:
            return set()
        jobs = [ending.job for ending in self.endings]
        return self._writes.accepted(ending_step(self.endings), jobs, rows_of(self._ended[0]), None)


class ClaimsAhead:
    """Claims for a consumer that is still at the jobs of the claim before.

    Args:
        catalog: the queues of the schema.
        writes: what ends jobs.
    """

    def __init__(self, catalog: Catalog, writes: FencedWrites) -> None:
        self._catalog = catalog
        self._writes = writes

    def may(self, queue: str, endings: Sequence[Ending] = ()) -> bool:
        """Whether jobs of this queue may be claimed ahead, together with these ends: they have no turns and no limit, of
        which others would have the less, and one statement takes them.
        """
        settings = self._catalog.last_seen(queue)
        if settings.strategy is not Strategy.ROUND_ROBIN or settings.limited or settings.keyed:
            return False
        return all(ending.job.order_no is None for ending in endings)

    def send(
        self,
        channel: Channel,
        endings: Sequence[Ending],
        queue: str,
        *,
        limit: int,
        worker: str,
        buckets: Sequence[int],
        lease_seconds: float,
        hints: HeadHints,
    ) -> SentClaim:
        """Send ends, and a claim of jobs that join those that the consumer has: none whose lease ran out, and their attempts
        are not spent if it dies.

        Args:
            channel: where to send; nothing is under way there.
            endings: as for `finish`; may be empty.
            queue: where to claim, see `may`.
            limit: the most jobs to claim.
            worker: who claims.
            buckets: where to look, in this order.
            lease_seconds: how long the claim holds without a heartbeat.
            hints: as for `claim`; `SentClaim.noted` tells them what came of it.

        Raises:
            InvalidInput: a result cannot be stored as JSON; nothing was sent.
            DatabaseUnavailable, psycopg.Error: see `Channel.send`.
        """
        settings = self._catalog.last_seen(queue)
        steps = [ending_step(endings)] if endings else []
        wanted = wanted_of(settings, buckets, limit, lease_seconds, worker, hints, None, joining=True)
        channel.send(*steps, ("claim_round_robin", claim_parameters(settings, wanted)))
        return SentClaim(self._writes, channel, settings, endings, wanted)
