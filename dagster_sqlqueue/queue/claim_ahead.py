"""Send a claim and receive its answer later: with the ends of a batch, before the next one is worked on.

The two are one transaction, which waits for the disk once. On connections of their own, each with its commit, they cost a
server of two cores about a sixth more CPU.
"""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from uuid import UUID

from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.execution import Step
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue.claim import claim_parameters
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.complete import FencedWrites
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.strategies import AT_ONCE


class SentClaim:
    """What `ClaimsAhead.send` has sent: a transaction that is committed once `receive` has returned.

    Attributes:
        limit: the most jobs to claim.
        buckets: where it claims from, in this order.
    """

    def __init__(
        self,
        writes: FencedWrites,
        channel: Channel,
        endings: Endings | None,
        step: Step | None,
        settings: QueueSettings,
        request: ClaimRequest,
    ) -> None:
        self.limit = request.limit
        self.buckets: Sequence[int] = request.buckets or ()
        self._writes = writes
        self._channel = channel
        self._endings = endings
        self._step = step
        self._strategy = settings.strategy
        self._request = request
        self._asked_at = time.monotonic()

    def receive(self) -> int:
        """Wait for the answer. Returns the number of jobs that were claimed. May be called from any thread.

        Raises:
            psycopg.OperationalError: the connection was lost; all of it is done, or nothing.
            QueueError, psycopg.Error: a statement failed: nothing is claimed, and nothing has ended.
        """
        *ended, self._claimed = self._channel.receive()
        self._ended = ended[0] if ended else None
        return self._claimed.rowcount

    def claimed(self) -> list[ClaimedJob]:
        """Return the claimed jobs, also those not to be handed out (`Claims.without_spent`). To be called once."""
        with _no_collection():
            return [ClaimedJob._make((*row, self._request.queue)) for row in self._claimed.rows()]

    def noted(self, claimed: Sequence[ClaimedJob], handed_out: Sequence[ClaimedJob]) -> None:
        """Note for later claims where this one began, and how far it came.

        Args:
            claimed: the jobs that it claimed.
            handed_out: those of them that will be worked on.
        """
        # Another claim has been sent since: its buckets are in another order.
        hints, buckets = self._request.hints, [job.bucket for job in claimed]
        hints.found(self._strategy, buckets, filled=True, asked=self.buckets, asked_at=self._asked_at)
        hints.took(self._strategy, handed_out, filled=None)

    def ended(self) -> set[UUID] | None:
        """Return the ids whose ending was accepted; None: all were. To be called once."""
        if self._step is None or self._endings is None or self._ended is None:
            return set()
        if self._ended.rowcount == len(self._endings.jobs):
            return None
        return self._writes.accepted(self._step, self._endings.jobs, self._ended.rows())


class ClaimsAhead:
    """Claims for a consumer that is still at the jobs of the claim before.

    Args:
        writes: what ends jobs.
    """

    def __init__(self, writes: FencedWrites) -> None:
        self._writes = writes

    def send(
        self, channel: Channel, endings: Endings | None, request: ClaimRequest, settings: QueueSettings
    ) -> SentClaim:
        """Send ends, and a claim of jobs that join those that the consumer has.

        Args:
            channel: where to send; nothing is under way there.
            endings: as for `finish`, of jobs without a place in their key's line; None: only claim.
            request: the claim's arguments, `joining`, with buckets. Pass the outcome to its hints: `SentClaim.noted`.
            settings: the queue's, of which `may_claim_ahead` holds. If they are not the current ones, nothing is claimed.

        Raises:
            DatabaseUnavailable, psycopg.Error: see `Channel.send`; the jobs of the ends may have ended.
        """
        ending = None if endings is None else endings.step()
        claim = AT_ONCE[settings.strategy], claim_parameters(settings, request)
        channel.send(*([claim] if ending is None else [ending, claim]))
        return SentClaim(self._writes, channel, endings, ending, settings, request)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Let Python collect no garbage meanwhile, if it does.

    Thousands of objects are made here in a few milliseconds, and none of them is garbage. Collections in the midst of them
    find nothing, and take those jobs for old ones, through which only full collections go. These cost a batch of 1,000
    about a quarter of its consumer's CPU time, and more in a process with many modules.
    """
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def may_claim_ahead(settings: QueueSettings) -> bool:
    """Return whether jobs of this queue may be claimed ahead: they have neither turns nor a limit, of which other consumers
    would have the less, and one statement claims them.
    """
    return settings.strategy in AT_ONCE and not settings.limited and not settings.keyed
