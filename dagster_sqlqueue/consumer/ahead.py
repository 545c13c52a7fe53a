"""The batches of a consumer under leases: the next one is claimed with the ends of the one before, or ahead of them.

Ahead means that the batch after the next one is claimed while the next one is worked on. Two batches are under lease then:
the one in hand, and one that has not been begun. The server works while the handler does. Where the consumer has to wait for
the server nevertheless, one more is claimed on a connection of its own, so that one waits for the disk while the other is
worked on: three are under lease then. Each of the two claims has buckets of its own: of two at once from one bucket, the
one that is handed out first may get the later jobs.
"""

import math
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue.consumer.ahead_policy import AheadPolicy
from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.consumer.heartbeat import Heartbeat
from dagster_sqlqueue.consumer.hooks import ClaimHooks
from dagster_sqlqueue.consumer.leased import Work, finish_uncertain
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.claim_ahead import SentClaim
from dagster_sqlqueue.queue.endings import Endings

_MUCH = 0.25
"""The part of its time that a consumer waits for answers, from which on it has a second claim under way."""

VERB = "claim_ahead"
"""The name of the wait for an answer, for hooks."""

_UNCOLLECTED_SECONDS = 1.0
"""How long an answer waits for the consumer, which may be in a handler that hangs, until a thread receives it."""


class _UnderWay:
    """One claim that was sent, with ends.

    Attributes:
        channel: where it is sent.
        at: the moment of `time.monotonic` before it was sent.
        endings: the ends; None: there are none.
        sent: what was sent; None: that failed.
        received: whether there is an answer, or none will come.
        failed: whether it is not known what was done, or nothing was.
        filled: whether it claimed as many jobs as it was to.
        jobs: what it claimed, in the heartbeat's charge.
    """

    __slots__ = ("at", "channel", "endings", "failed", "filled", "jobs", "received", "sent")

    def __init__(self, channel: Channel, endings: Endings | None) -> None:
        self.channel = channel
        self.at = time.monotonic()
        self.endings = endings
        self.sent: SentClaim | None = None
        self.received = self.failed = self.filled = False
        self.jobs: list[ClaimedJob] | None = None


class Ahead:
    """Claims ahead for one consumer: a batch, or two.

    Args:
        work: what is worked off.
        heartbeat: keeps the leases, also those of jobs that have not been begun.
        claimer: how the consumer takes jobs.
        hooks: around the wait for an answer.
    """

    def __init__(
        self,
        work: Work[Any],
        heartbeat: Heartbeat,
        claimer: Claimer,
        hooks: ClaimHooks,
    ) -> None:
        self._work = work
        self._heartbeat = heartbeat
        self._claimer = claimer
        self._hooks = hooks
        # The second is opened when it is first used.
        self._channels = Channel(work.leases.database), Channel(work.leases.database)
        # Held to send or to receive: by the consumer, the thread that collects, or one that gives jobs back.
        self._lock = threading.Lock()
        self._may_send = False
        self._policy = AheadPolicy(work, claimer)
        # The one that was sent first comes first.
        self._under_way: list[_UnderWay] = []
        self._exchanged_at = 0.0
        self._next: list[ClaimedJob] = []
        self._until = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def _at_most(self, seconds: float) -> float:
        """Return so many seconds, or less where leases are short."""
        return min(seconds, self._work.lease.pace / 8)

    def open(self) -> None:
        """Allow claims until `stop` or `close`."""
        self._closing.clear()
        self._may_send = True

    def take(self, until: float) -> list[ClaimedJob]:
        """Return the next batch, in the heartbeat's charge, and claim the one after it if that is worth it. Empty: none due.

        Args:
            until: the moment of `time.monotonic` up to which another batch may be claimed before this one has ended.

        Raises:
            DatabaseUnavailable: the database stayed away for longer than a lease.
        """
        self._until = until
        while self._under_way and not self._next:
            self._exchange(None, go_on=False)
        if not self._next:
            self._next = self._claimer.take()
            self._heartbeat.hold(self._next)
        # If this raises something they are the next ones still, which `close` returns.
        self._claimer.announce(self._next)
        jobs, self._next = self._next, []
        if jobs and not self._under_way and self._in_time():
            self._begin(jobs)
        return jobs

    def finish(self, endings: Endings) -> set[UUID] | None:
        """End the last jobs of the batch in hand, and claim another batch with that if there may be one.

        Returns:
            The ids whose ending was accepted; None: the ends were sent, or done, and are counted here.

        Raises:
            DatabaseUnavailable: the answer got lost, or the database stayed away for longer than a lease.
        """
        if self._under_way:
            try:
                sent = self._exchange(endings, go_on=self._in_time())
            except BaseException:
                # They are the caller's to end again.
                for claim in self._under_way:
                    if claim.endings is endings:
                        claim.endings = None
                raise
            return None if sent else self._work.leases.finish(endings)
        if self._next or self._claimer.chosen or not self._in_time():
            return self._work.leases.finish(endings)
        accepted, self._next = self._claimer.finish_and_take(endings)
        self._heartbeat.hold(self._next)
        return accepted

    def _in_time(self) -> bool:
        return time.monotonic() < self._until and not self._work.stopping.is_set()

    def _begin(self, jobs: Sequence[ClaimedJob]) -> None:
        """Claim ahead beside these jobs, which are to be worked on now, if that is worth it."""
        # Nothing is to be beside a job that its consumer may have died of.
        if not self._claimer.filled or any(job.alone for job in jobs) or not self._worth(None):
            return
        with self._lock:
            if not self._may_send:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._collect, name="sqlqueue-ahead", daemon=True)
                self._thread.start()
            self._send(self._channels[0], None, self._buckets_beside(None))
            self._exchanged_at = time.monotonic()

    def _exchange(self, endings: Endings | None, *, go_on: bool) -> bool:
        """Receive the jobs that were claimed ahead, which are the next ones, and send ends with another claim, if any.

        Args:
            endings: how the jobs in hand end; None: nothing is to be sent.
            go_on: whether there may be another batch.

        Returns:
            Whether the ends were sent, or are done.
        """
        following: _UnderWay | None = None
        # Once no batch is to follow, nobody waits for one.
        with self._hooks.around(VERB) if self._may_send else nullcontext(), self._lock:
            last = self._under_way[0]
            waits = self._waited_for(last)
            if endings and go_on and self._may_send and last.filled:
                following = self._send_following(last, endings, waits=waits)
            elif len(self._under_way) > 1 and not (last.filled or last.failed):
                self._policy.poor_second()
            # The server is at work again by now: reading the rows is half of what a batch costs here.
            self._read(last)
            self._under_way.remove(last)
            # Known now, and not once the lock is released: the thread that collects may be receiving the answer then.
            unsent = following if following is not None and following.failed else None
        self._settle(last)
        if unsent is not None:
            self._finish_again(unsent)
        return following is not None

    def _waited_for(self, claim: _UnderWay) -> bool:
        """Receive an answer. Returns whether the wait for it was much of the time since the one before."""
        asked = time.monotonic()
        self._receive(claim)
        now = time.monotonic()
        since, self._exchanged_at = self._exchanged_at, now
        return now - asked >= _MUCH * (now - since)

    def _send_following(self, last: _UnderWay, endings: Endings, *, waits: bool) -> _UnderWay | None:
        """Send ends with the claim that follows one that was received, if that is worth it.

        Args:
            last: what was received.
            endings: the ends.
            waits: whether a second claim beside it has something to gain.
        """
        alone = len(self._under_way) == 1
        buckets = self._buckets_beside(last)
        two = self._claimer.divisible and self._policy.allows_second()
        # Of two, the one that is left is enough for a consumer that has become slower.
        if not buckets or not self._worth(endings) or not (alone or two):
            return None
        second = alone and waits and two
        # Before they are ended, so that no heartbeat extends them.
        self._heartbeat.let_go(endings.jobs)
        following = self._send(last.channel, endings, buckets[::2] if second else buckets)
        if second and not following.failed:
            (other,) = (channel for channel in self._channels if channel is not last.channel)
            self._send(other, None, self._buckets_beside(last), second=True)
        return following

    def _buckets_beside(self, last: _UnderWay | None) -> list[int]:
        """Return the buckets that no claim takes from which is under way, except this one, in turn."""
        sent = [claim.sent for claim in self._under_way if claim is not last]
        return self._claimer.buckets_except({bucket for one in sent if one is not None for bucket in one.buckets})

    def stop(self) -> None:
        """Claim no more, and have the heartbeat take charge of what is under way. May come from any thread."""
        with self._lock:
            self._may_send = False
            for claim in self._under_way:
                self._receive(claim)
                self._read(claim)

    def rest(self) -> None:
        """Close the connection while there is nothing to do."""
        with self._lock:
            if not self._under_way:
                for channel in self._channels:
                    channel.close()

    def close(self) -> list[ClaimedJob]:
        """Claim no more. Returns the jobs that were claimed and not taken.

        Raises:
            DatabaseUnavailable: as for `take`.
        """
        self._may_send = False
        try:
            jobs, self._next = self._next, []
            while self._under_way:
                self._exchange(None, go_on=False)
                jobs += self._next
                self._next = []
            return jobs
        finally:
            self._next = []
            self._closing.set()
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.join()
            for channel in self._channels:
                channel.close()

    def _worth(self, endings: Endings | None) -> bool:
        return self._policy.allows(endings, at_most=self._at_most(math.inf))

    def _send(
        self, channel: Channel, endings: Endings | None, buckets: Sequence[int], *, second: bool = False
    ) -> _UnderWay:
        """Send ends and a claim. An error is not raised: what became of the ends is for the caller to find out."""
        claim = _UnderWay(channel, endings)
        # Until it is known: an interrupt may come in between.
        claim.failed = claim.received = True
        self._under_way.append(claim)
        try:
            claim.sent = self._claimer.send_ahead(channel, endings, buckets)
        except (psycopg.Error, QueueError) as error:
            self._under_way.remove(claim)
            self._lost(error, second=second)
        else:
            claim.failed = claim.received = False
        return claim

    def _receive(self, claim: _UnderWay) -> None:
        """Wait for the answer, if it was not received yet."""
        if claim.received or claim.sent is None:
            return
        claim.failed = claim.received = True
        try:
            claim.filled = claim.sent.receive() >= claim.sent.limit
        except (psycopg.Error, QueueError) as error:
            self._lost(error)
        else:
            claim.failed = False

    def _lost(self, error: Exception, *, second: bool = False) -> None:
        self._policy.lost("a claim that was sent ahead got lost", error, second=second)

    def _read(self, claim: _UnderWay) -> None:
        """Put the jobs of an answer in the heartbeat's charge, if it was not done yet."""
        if claim.failed or claim.jobs is not None or claim.sent is None:
            return
        claim.jobs = claim.sent.claimed()
        self._heartbeat.hold(claim.jobs, since=claim.at)

    def _settle(self, claim: _UnderWay) -> None:
        """Make the jobs of an answer that are to be handed out the next ones, and count its ends."""
        work, claimed = self._work, claim.jobs
        if claim.failed or claim.sent is None or claimed is None:
            self._claimer.filled = False
            self._finish_again(claim)
            return
        self._claimer.filled = claim.filled
        # First of all: the heartbeat extends their leases, and whatever is raised from here on must not lose sight of them.
        self._next = claimed
        jobs = self._claimer.handed_out(claim.sent, claimed)
        if len(jobs) < len(claimed):
            self._next = jobs
            self._heartbeat.forget([job for job in claimed if not any(job is one for one in jobs)])
        if claim.endings:
            work.count_finished(claim.endings, claim.sent.ended())

    def _finish_again(self, claim: _UnderWay) -> None:
        """End jobs of which it is not known whether they have ended."""
        if claim.endings:
            finish_uncertain(self._work, claim.endings)

    def _collect(self) -> None:
        """Take answers that are left where they are, as their consumer is in a handler that takes longer than those before:
        there are leases to be kept, and a large answer holds its transaction open.
        """
        while not self._closing.wait(self._at_most(_UNCOLLECTED_SECONDS)):
            for claim in tuple(self._under_way):
                if claim.jobs is not None or time.monotonic() - claim.at < self._at_most(_UNCOLLECTED_SECONDS):
                    continue
                with self._lock:
                    if claim in self._under_way:
                        self._receive(claim)
                        self._read(claim)
