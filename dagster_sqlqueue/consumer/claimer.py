"""Claim the jobs of one consumer: from where, how many, and the count of them."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from dagster_sqlqueue.consumer.failure_log import log_buried
from dagster_sqlqueue.consumer.hooks import ClaimHooks
from dagster_sqlqueue.consumer.idle import Idle
from dagster_sqlqueue.consumer.leased import PASSING, Work
from dagster_sqlqueue.consumer.manager import Source
from dagster_sqlqueue.consumer.queue_view import QueueView
from dagster_sqlqueue.consumer.same_process import Member
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.claim_ahead import SentClaim
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.lock import SentLock

LONGEST_BARRED_SECONDS = 60.0
"""How long a consumer waits, if its lease is not shorter, to claim by itself while another one of its process does."""


class Claimer:
    """Takes the jobs of one consumer, under leases or locked by a transaction, and counts those that are under leases.

    Args:
        work: what is worked off.
        view: what the consumer knows of the queue.
        filter: takes only jobs that fit.
        source: hands jobs out, so that none are claimed.
        on_claim: called by `announce`.
        hooks: around the claims.
        idle: the consumer's waits, which are notified of the first claim after one.
        member: the consumer among those of its process.

    Attributes:
        filled: whether the last batch has as many jobs as were asked for, so that there may be more.
        chosen: whether the jobs are chosen by more than their turn: by a filter, or by a source that hands them out.
    """

    def __init__(
        self,
        work: Work[Any],
        view: QueueView,
        *,
        filter: ClaimFilter | None,
        source: Source | None,
        on_claim: Callable[[Sequence[ClaimedJob]], None] | None,
        hooks: ClaimHooks,
        idle: Idle,
        member: Member,
    ) -> None:
        self._work = work
        self._view = view
        self._filter = filter
        self._source = source
        self._on_claim = on_claim
        self._hooks = hooks
        self._idle = idle
        self._member = member
        self.filled = False
        self.chosen = source is not None or filter is not None

    @property
    def wanted(self) -> int:
        """The number of jobs that the next claim asks for."""
        return self._work.size.shared() if self._view.shared else self._work.size.now

    def nothing_left(self, *, idle: bool) -> bool:
        """Return whether a claim that found nothing means that no job is due.

        Args:
            idle: whether the claim before it found nothing either.
        """
        if self._source is not None or self._idle.barred:
            return True
        if self._filter is not None:
            return not self._filter.unfinished
        return self._view.hints.swept or (idle and self._view.hints.fresh)

    def take(self) -> list[ClaimedJob]:
        """Claim the next batch under leases; a database that is away is waited for."""
        wanted = self.wanted
        jobs = self._claimed(wanted, joining=True) if self._has_company else []
        if not jobs and self._may_take_alone():
            jobs = self._claimed(wanted)
            self._keep_turn_for(jobs)
        self.filled = len(jobs) >= wanted
        self._first(jobs, wanted)
        self._count(jobs)
        self._turn(jobs)
        return jobs

    def take_for_slots(self, free: int, joining: bool) -> list[ClaimedJob]:
        """Claim jobs for so many free slots, beside which others may be begun; `joining` others under way, so that none is
        claimed whose lease ran out.
        """
        wanted = min(free, self.wanted)
        jobs = self._claimed(wanted, joining=joining, beside=True) if joining or self._may_take_alone() else []
        if not joining:
            self._keep_turn_for(jobs)
        self._first(jobs, wanted)
        self._count(jobs)
        self._turn(jobs)
        return jobs

    def finish_and_take(self, endings: Endings) -> tuple[set[UUID], list[ClaimedJob]]:
        """End jobs and claim the next batch. Returns the ids whose ending was accepted, and the batch."""
        wanted = self.wanted
        accepted, jobs = self._work.leases.finish_and_claim(
            endings,
            self._request(wanted, joining=self._has_company),
            settings=self._view.settings,
            on_spent=self._count_spent,
        )
        self.filled = len(jobs) >= wanted
        self._count(jobs)
        self._turn(jobs)
        return accepted, jobs

    def may_send_ahead(self, endings: Endings | None) -> bool:
        """Return whether the batch after the next one may be claimed, with these ends if there are any."""
        # One that takes a job at a time counts on each being the only one of its claim, whose attempt is spent if it dies.
        if self.chosen or not self._view.claimable_ahead or self.wanted < 2:
            return False
        return endings is None or all(job.order_no is None for job in endings.jobs)

    @property
    def divisible(self) -> bool:
        """Whether two claims can each have buckets of their own."""
        return self._view.bucket_order.divisible

    def buckets_except(self, others: Container[int]) -> list[int]:
        """Return the buckets to claim from, in turn, without the others."""
        return [bucket for bucket in self._view.bucket_order.order if bucket not in others]

    def send_ahead(self, channel: Channel, endings: Endings | None, buckets: Sequence[int]) -> SentClaim:
        """Send ends, if there are any, and a claim of the batch that is to follow those under lease.

        Args:
            channel: where.
            endings: the ends; None: none.
            buckets: where to claim from, as `buckets_except` has them.

        Raises:
            DatabaseUnavailable, psycopg.Error: see `Channel.send`.
        """
        settings = self._view.settings
        assert settings is not None, "a claim before the queue's settings were read"
        request = self._request(self.wanted, buckets=buckets, joining=True)
        # The answer says where the claim began. The one after it does not wait for that: it begins one bucket further.
        self._view.bucket_order.turn(after=self._view.bucket_order.order[0])
        return self._work.leases.send_claim_ahead(channel, endings, request, settings)

    def handed_out(self, sent: SentClaim, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
        """Return those jobs of a claim ahead that are to be worked on, and end the others. All are counted."""
        jobs = claimed
        for attempt in self._work.patiently():
            with attempt:
                jobs = self._work.leases.without_spent(claimed, on_spent=self._count_spent)
        sent.noted(claimed, jobs)
        self._count(jobs)
        return jobs

    def lock(self, transaction: Transaction) -> list[ClaimedJob]:
        """Lock a batch for the rest of the transaction."""
        wanted = self.wanted
        lock = self._work.leases.lock_due
        jobs = lock(transaction, self._request(wanted, joining=True)) if self._has_company else []
        if not jobs and self._may_take_alone():
            jobs = lock(transaction, self._request(wanted))
            self._keep_turn_for(jobs)
        self.filled = len(jobs) >= wanted
        self._first(jobs, wanted)
        self._turn(jobs)
        return jobs

    def finish_and_lock(self, transaction: Transaction, endings: Endings) -> list[ClaimedJob]:
        """End what the transaction has locked, commit, and lock the next batch in the transaction that follows."""
        request = self._request(self.wanted, joining=self._has_company)
        jobs = self._work.leases.finish_and_lock(transaction, endings, request, settings=self._view.settings)
        self.filled = len(jobs) >= request.limit
        self._turn(jobs)
        return jobs

    def send_lock(self, transaction: Transaction, endings: Endings | None = None) -> SentLock:
        """Ask for the lock of the next batch while another one is worked on. Pass the outcome to `locked`.

        Args:
            transaction: where.
            endings: what the transaction has locked, to be ended and committed before; None: nothing.

        Raises:
            psycopg.Error: the connection was lost.
        """
        settings = self._view.settings
        assert settings is not None, "a lock before the queue's settings were read"
        request = self._request(self.wanted, joining=self._has_company)
        # As for a claim ahead: the one after it begins one bucket further.
        self._view.bucket_order.turn(after=self._view.bucket_order.order[0])
        return self._work.leases.send_lock(transaction, request, settings, endings)

    def locked(self, sent: SentLock) -> list[ClaimedJob]:
        """Wait for a batch that was asked for."""
        jobs = sent.locked()
        self.filled = len(jobs) >= sent.limit
        return jobs

    def announce(self, jobs: Sequence[ClaimedJob]) -> None:
        """Call `on_claim` with a batch that is to be worked on now. Whatever it raises, or a hook around the claim has, the
        caller gives the jobs back.
        """
        self._hooks.complain()
        if jobs and self._on_claim is not None:
            self._on_claim(jobs)

    def _count(self, jobs: Sequence[ClaimedJob]) -> None:
        """Count a batch under leases."""
        if jobs:
            self._work.summary.claimed += len(jobs)
            self._work.summary.batches += 1

    def _first(self, jobs: Sequence[ClaimedJob], wanted: int) -> None:
        """Report a claim that was not made ahead, which may be the first after a wait, to the others that are to work."""
        if jobs and self._idle.waited:
            self._idle.took(len(jobs) >= wanted)

    @property
    def _has_company(self) -> bool:
        # Most are the only one of their process.
        return len(self._member.known) > 1 and self._source is None and self._member.has_company

    def _may_take_alone(self) -> bool:
        """Return whether a job may be claimed that counts as the only one of its process."""
        patience = min(self._work.lease.seconds, LONGEST_BARRED_SECONDS)
        self._idle.barred = self._source is None and not self._member.take_turn(patience)
        return not self._idle.barred

    def _keep_turn_for(self, jobs: Sequence[ClaimedJob]) -> None:
        if self._member.has_turn and not any(job.alone for job in jobs):
            self._member.pass_turn()

    def _claimed(self, limit: int, *, joining: bool = False, beside: bool = False) -> list[ClaimedJob]:
        """Claim; a database that is away is waited for, and so is what keeps a claim waiting for longer than a timeout."""
        try:
            return self._claim(limit, joining, beside)
        except PASSING as error:
            return self._work.once_back(error, partial(self._claim, limit, joining, beside))

    def _claim(self, limit: int, joining: bool, beside: bool) -> list[ClaimedJob]:
        if self._source is not None:
            return self._source.take(limit)
        request = self._request(limit, joining=joining, beside=beside)
        return self._work.leases.claim(request, settings=self._view.settings, on_spent=self._count_spent)

    def _request(
        self, limit: int, *, buckets: Sequence[int] | None = None, joining: bool = False, beside: bool = False
    ) -> ClaimRequest:
        work, view = self._work, self._view
        order = view.bucket_order.order if buckets is None else buckets
        lease = work.lease.seconds
        return ClaimRequest(work.spec.name, limit, work.worker, order, lease, view.hints, self._filter, joining, beside)

    def _turn(self, jobs: Sequence[ClaimedJob]) -> None:
        """Pass the buckets' turn on, after a claim that was not made ahead."""
        if jobs:
            self._view.bucket_order.turn(after=jobs[0].bucket)

    def _count_spent(
        self, dead: Sequence[ClaimedJob], held: Sequence[ClaimedJob], cancelled: Sequence[ClaimedJob]
    ) -> None:
        log_buried(dead, held)
        summary = self._work.summary
        summary.buried += len(dead) + len(held)
        summary.claimed += len(dead) + len(held) + len(cancelled)
        summary.failed += len(dead)
        summary.held += len(held)
        summary.cancelled += len(cancelled)
