"""Send a claim and receive its answer later: beside the ends of a batch, before the next one is worked on.

The two go by connections of their own: neither waits for the other, and a server of several cores does both at once.
"""

import time
from collections.abc import Sequence
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Step
from dagster_sqlqueue.errors import DatabaseUnavailable, QueueError
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy
from dagster_sqlqueue.queue.claim import claim_parameters
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.complete import FencedWrites
from dagster_sqlqueue.queue.endings import Endings


class Channels:
    """The connections of one consumer that claims ahead, opened by the first `ClaimsAhead.send`.

    Args:
        database: where the queue is.

    Attributes:
        claims: for claims.
        ends: for ends.
    """

    def __init__(self, database: Database) -> None:
        self.claims = Channel(database)
        self.ends = Channel(database)

    def close(self) -> None:
        """Close them; what was sent and not answered may be committed all the same."""
        self.claims.close()
        self.ends.close()


class SentClaim:
    """What `ClaimsAhead.send` has sent: two transactions, each committed once `receive` has returned.

    Attributes:
        limit: the most jobs to claim.
    """

    def __init__(
        self,
        writes: FencedWrites,
        channels: Channels,
        endings: Endings | None,
        step: Step | None,
        request: ClaimRequest,
    ) -> None:
        self.limit = request.limit
        self._writes = writes
        self._channels = channels
        self._endings = endings
        self._step = step
        self._request = request
        self._asked_at = time.monotonic()
        self._ends_lost: psycopg.Error | QueueError | None = None

    def receive(self) -> int:
        """Wait for the answers. Returns the number of jobs that were claimed. May be called from any thread.

        Ends that failed are `ended`'s to say: whatever became of them, the jobs that were claimed are to be kept.

        Raises:
            psycopg.OperationalError: the connection was lost; jobs may be claimed, or not.
            psycopg.Error: the claim failed, and claimed nothing. In both cases those of the ends have ended, or not.
        """
        if self._step is not None:
            try:
                self._ended = self._channels.ends.receive()
            except (psycopg.Error, QueueError) as error:
                self._ends_lost = error
        self._claimed = self._channels.claims.receive()
        return self._claimed.rowcount

    def claimed(self) -> list[ClaimedJob]:
        """Return the claimed jobs, also those not to be handed out (`Claims.without_spent`). To be called once."""
        return [ClaimedJob._make((*row, self._request.queue)) for row in self._claimed.rows()]

    def noted(self, claimed: Sequence[ClaimedJob], handed_out: Sequence[ClaimedJob]) -> None:
        """Note for later claims where this one began, and how far it came.

        Args:
            claimed: the jobs that it claimed.
            handed_out: those of them that will be worked on.
        """
        hints = self._request.hints
        # Another claim has been sent since: its buckets are in another order.
        hints.saw_up_to([job.bucket for job in claimed], asked=self._request.buckets, asked_at=self._asked_at)
        hints.note(handed_out)

    def ended(self) -> set[UUID]:
        """Return the ids whose ending was accepted. To be called once.

        Raises:
            DatabaseUnavailable: it is not known; they may have ended all the same.
        """
        if self._step is None or self._endings is None:
            return set()
        jobs = self._endings.jobs
        if self._ends_lost is not None:
            raise DatabaseUnavailable(f"the answer to the ends of {len(jobs)} jobs got lost") from self._ends_lost
        return self._writes.accepted(self._step, jobs, self._ended.rows(), None)


class ClaimsAhead:
    """Claims for a consumer that is still at the jobs of the claim before.

    Args:
        writes: what ends jobs.
    """

    def __init__(self, writes: FencedWrites) -> None:
        self._writes = writes

    def send(
        self, channels: Channels, endings: Endings | None, request: ClaimRequest, settings: QueueSettings
    ) -> SentClaim:
        """Send ends, and a claim of jobs that join those that the consumer has.

        Args:
            channels: where to send; nothing is under way there.
            endings: as for `finish`, of jobs without a place in their key's line; None: only claim.
            request: the claim's arguments, `joining`, with buckets. Pass the outcome to its hints: `SentClaim.noted`.
            settings: the queue's, of which `may_claim_ahead` holds. If they are not the current ones, nothing is claimed.

        Raises:
            DatabaseUnavailable, psycopg.Error: see `Channel.send`; the jobs of the ends may have ended.
        """
        ending = None if endings is None else endings.step()
        claim = "claim_round_robin", claim_parameters(settings, request)
        try:
            if ending is not None:
                channels.ends.send(ending)
            channels.claims.send(claim)
        except BaseException:
            # Of the other one nobody would take the answer.
            channels.close()
            raise
        return SentClaim(self._writes, channels, endings, ending, request)


def may_claim_ahead(settings: QueueSettings) -> bool:
    """Return whether jobs of this queue may be claimed ahead: they have neither turns nor a limit, of which other consumers
    would have the less, and one statement claims them.
    """
    return settings.strategy is Strategy.ROUND_ROBIN and not settings.limited and not settings.keyed
