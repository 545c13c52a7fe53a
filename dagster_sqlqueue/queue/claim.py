"""Taking jobs out: one claim, five strategies, with the turns of keys and the limits of queues."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.db.executors import Executor, Row, Step
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy, check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.complete import Ending, FencedWrites, ending_step
from dagster_sqlqueue.queue.head_hints import HeadHints
from dagster_sqlqueue.queue.limits import Reservations
from dagster_sqlqueue.queue.odd_jobs import ROW_ERRORS, despite_odd_jobs
from dagster_sqlqueue.queue.strategies import (
    FROM_THE_HEAD,
    KEY,
    LEASE_NO,
    ORDER_NO,
    Wanted,
    check_claim,
    claim_parameters,
    pick,
    saw,
    under_lease,
    wanted_of,
    without_suspects,
)

OnSpent: TypeAlias = Callable[[Sequence[ClaimedJob], Sequence[ClaimedJob], Sequence[ClaimedJob]], None]
"""Told of jobs that a claim met and did not hand out: sent to the dead letter, held, and cancelled."""

_PARK_AT_ONCE = 500
_ALONE = (Strategy.ASSIGN, Strategy.TOKEN)
"""Their statements are to stand each by itself: what decides a race is that the others see them at once."""


class Claims:
    """How jobs are taken out of a queue.

    Args:
        catalog: the queues of the schema.
        writes: what ends the jobs whose attempts are spent, which are met and not handed out.
    """

    def __init__(self, catalog: Catalog, writes: FencedWrites) -> None:
        self.database = catalog.database
        self._catalog = catalog
        self._writes = writes
        self._reservations = Reservations(catalog.database)

    def claim(
        self,
        queue: str,
        *,
        limit: int,
        worker: str,
        buckets: Sequence[int] | None = None,
        lease_seconds: float | None = None,
        hints: HeadHints | None = None,
        filter: ClaimFilter | None = None,
        on_spent: OnSpent | None = None,
        joining: bool = False,
    ) -> list[ClaimedJob]:
        """Claim due jobs under a lease, by the queue's strategy: `SqlQueue.claim`. What was met and not handed out, because
        the last attempt was spent or it was cancelled while it ran, `on_spent` is told of. Jobs that are `joining` others,
        which their consumer has in hand already, are none whose lease ran out, and their attempts are not spent if it dies.
        """
        check_queue_name(queue)
        check_claim(limit, lease_seconds, buckets)
        settings = self._catalog.last_seen(queue)
        hints = hints or HeadHints()
        while True:
            wanted = wanted_of(settings, buckets, limit, lease_seconds, worker, hints, filter, joining)
            jobs, again = despite_odd_jobs(self.database, queue, partial(self._claim, settings, wanted))
            handed_out = self.without_spent(jobs, on_spent=on_spent)
            if handed_out:
                # Not before: what this claim did not look at yet may have been due earlier than what it buried.
                if settings.strategy in FROM_THE_HEAD:
                    hints.note(jobs)
                return handed_out
            revision = settings.revision
            settings = self._catalog.settings(queue)
            if not (jobs or again) and settings.revision == revision:
                # One that was left out, for its lease ran out, is to be found by the next claim.
                if not (settings.limited or joining):
                    hints.saw_all()
                return []

    def finish_and_claim(
        self,
        endings: Sequence[Ending],
        queue: str,
        *,
        limit: int,
        worker: str,
        buckets: Sequence[int] | None = None,
        lease_seconds: float | None = None,
        hints: HeadHints | None = None,
        on_spent: OnSpent | None = None,
    ) -> tuple[set[UUID], list[ClaimedJob]]:
        """End jobs and claim the next ones in one transaction, by `round_robin` in one round trip. Only for keys that take
        turns, and by the strategies `assign` and `token`, it takes two.

        Args:
            endings: as for `finish`; at least one.
            queue: where to claim.
            limit: the most jobs to claim, 1 to 10,000.
            worker: who claims.
            buckets: where to look, in this order; None for all of them.
            lease_seconds: how long the claim holds without a heartbeat; None for the queue's.
            hints: as for `claim`.
            on_spent: told of the jobs that were met and not handed out.

        Returns:
            The ids whose ending was accepted; and the jobs that were claimed. None were: ask `claim` whether there are any.

        Raises:
            InvalidInput, UnknownQueue: as for `finish` and `claim`.
        """
        settings = self._catalog.last_seen(queue)
        hints = hints or HeadHints()
        jobs = [ending.job for ending in endings]

        def one_after_the_other() -> tuple[set[UUID], list[ClaimedJob]]:
            accepted = self._writes.finish(endings)
            return accepted, self.claim(
                queue,
                limit=limit,
                worker=worker,
                buckets=buckets,
                lease_seconds=lease_seconds,
                hints=hints,
                on_spent=on_spent,
            )

        if settings.keyed or settings.strategy in _ALONE or any(job.order_no is not None for job in jobs):
            return one_after_the_other()
        check_claim(limit, lease_seconds, buckets)
        wanted = wanted_of(settings, buckets, limit, lease_seconds, worker, hints, None)
        step = ending_step(endings)
        try:
            if settings.strategy is Strategy.ROUND_ROBIN:
                ended, *_, rows = self.database.run_together(step, *self._next_claim(settings, wanted))
                found = self._claimed_at_once(settings, wanted, rows)
            else:
                ended, (found, _) = self.database.transact(
                    lambda executor: (executor.run(*step), self._claim_by_steps(executor, settings, wanted))
                )
        except ROW_ERRORS:
            # Nothing was written. Apart from each other they show which of the two it was.
            return one_after_the_other()
        claimed = self.without_spent(found, on_spent=on_spent)
        if settings.strategy in FROM_THE_HEAD:
            hints.note(claimed)
        return self._writes.accepted(step, jobs, ended, None), claimed

    def claim_within(
        self,
        executor: Executor,
        queue: str,
        *,
        limit: int,
        worker: str,
        buckets: Sequence[int] | None = None,
        lease_seconds: float | None = None,
    ) -> list[ClaimedJob]:
        """Claim due jobs as one step of a transaction: they are under a lease once it commits.

        Until then nothing is decided: rolled back, or lost by a failover, the claim never was, and the next one of the same
        job has the same `lease_no`. Neither the jobs nor their numbers may go to anybody before the commit, who could not
        tell the one claim from the other.

        Args:
            executor: the `Database.transaction`.
            queue: its name.
            limit: the most jobs to claim, 1 to 10,000.
            worker: for whom.
            buckets: where to look, in this order; None for all of them.
            lease_seconds: how long the claim holds without a heartbeat; None for the queue's.

        Raises:
            InvalidInput, UnknownQueue: as for `claim`.
        """
        check_claim(limit, lease_seconds, buckets)
        settings = self._catalog.settings(queue, executor=executor)
        wanted = wanted_of(settings, buckets, limit, lease_seconds, worker, HeadHints(), None)
        jobs, _ = self._claim_by_steps(executor, settings, wanted)
        return self.without_spent(jobs, executor)

    def _next_claim(self, settings: QueueSettings, wanted: Wanted) -> list[Step]:
        """The statements that claim in a transaction that has ended other jobs, for a queue whose keys take no turns."""
        parameters = claim_parameters(settings, wanted)
        if not settings.limited:
            return [("claim_round_robin", parameters)]
        if reservation := self._reservations.room(settings, wanted):
            return [("claim_reserved", {**parameters, "reservation": reservation})]
        return [("limit_lock", {"queue": settings.name}), ("claim_limited", parameters)]

    def _claim(self, settings: QueueSettings, wanted: Wanted) -> tuple[list[ClaimedJob], bool]:
        """The jobs; and whether to look again where there are none, because some were set aside, or others were quicker: a
        race that was lost is one that another has won.
        """
        at_once = settings.strategy is Strategy.ROUND_ROBIN
        deciding = settings.keyed or (settings.limited and not at_once) or wanted.filter is not None
        if settings.strategy is Strategy.ASSIGN and not deciding:
            return self._claim_by_steps(self.database, settings, wanted)
        if deciding or settings.strategy in (Strategy.FANOUT, Strategy.FIFO):
            return self.database.transact(lambda executor: self._claim_by_steps(executor, settings, wanted))
        parameters = claim_parameters(settings, wanted)
        again = False
        if settings.strategy is Strategy.TOKEN:
            rows, again = self._mark(parameters)
        elif settings.limited:
            lock = {"queue": settings.name}
            rows = self.database.run_together(("limit_lock", lock), ("claim_limited", parameters))[-1]
        else:
            rows = self.database.run("claim_round_robin", parameters)
        return self._claimed_at_once(settings, wanted, rows), again

    def _claimed_at_once(self, settings: QueueSettings, wanted: Wanted, rows: Sequence[Row]) -> list[ClaimedJob]:
        """The jobs of a statement that chooses and grants. Of a limit, and of a job that goes by itself, it is not known how
        many more it would have taken.
        """
        jobs = [ClaimedJob._make((*row, settings.name)) for row in rows]
        filled = len(jobs) >= wanted.limit or settings.limited or wanted.joining or any(job.alone for job in jobs[-1:])
        saw(settings, wanted.hints, [job.bucket for job in jobs], filled=filled)
        return jobs

    def _mark(self, parameters: dict[str, Any]) -> tuple[Sequence[Row], bool]:
        token = {"token": uuid7()}
        try:
            candidates = self.database.run("mark_token", {**parameters, **token})[0][0]
        except DatabaseUnavailable:
            # The answer got lost, and with it perhaps a mark that was made.
            if rows := self.database.run("marked_by_token", token):
                return rows, False
            raise
        rows = self.database.run("marked_by_token", token) if candidates else []
        return rows, bool(candidates and not rows)

    def _claim_by_steps(
        self, executor: Executor, settings: QueueSettings, wanted: Wanted
    ) -> tuple[list[ClaimedJob], bool]:
        limit = self._allowance(executor, settings, wanted.limit) if settings.limited else wanted.limit
        if limit <= 0:
            return [], False
        if wanted.filter is not None:
            rows = wanted.filter.pick(executor, settings, wanted.lanes, limit)
        else:
            rows = pick(executor, settings, wanted, max(limit, _PARK_AT_ONCE) if settings.keyed else limit)
        parked: Sequence[Row] = []
        if settings.keyed and rows:
            rows, parked = self._turns(executor, settings, rows)
        rows = without_suspects(rows[:limit], joining=wanted.joining)
        if not rows:
            return [], bool(parked)
        granted = self._grant(executor, settings, rows, wanted)
        if settings.rate and granted:
            starts = {"queue": settings.name, "starts": len(granted), "rate_seconds": settings.rate.seconds}
            executor.run("rate_note", starts)
        alone = len(rows) == 1 and not wanted.joining
        jobs = [under_lease(row, granted[row[0]], settings, alone=alone) for row in rows if row[0] in granted]
        return jobs, not jobs

    def _allowance(self, executor: Executor, settings: QueueSettings, limit: int) -> int:
        executor.run("limit_lock", {"queue": settings.name})
        rows = executor.run("limit_allowance", {"queue": settings.name, "revision": settings.revision, "limit": limit})
        return int(rows[0][0]) if rows else 0

    def _turns(
        self, executor: Executor, settings: QueueSettings, rows: Sequence[Row]
    ) -> tuple[list[Row], Sequence[Row]]:
        """The rows that may run, in their order, and what was parked; rows of keys that another decides about stay."""
        keyed = {row[0]: row[KEY] for row in rows if row[ORDER_NO] is not None and row[KEY] is not None}
        if not keyed:
            return list(rows), []
        queue = settings.name
        won = {row[0] for row in executor.run("key_try", {"queue": queue, "keys": sorted(set(keyed.values()))})}
        decided = [job for job, key in keyed.items() if key in won]
        turn = {row[0] for row in executor.run("key_turns", {"queue": queue, "ids": decided})} if decided else set()
        waiting = [job for job in decided if job not in turn]
        parked = executor.run("park_waiting", {"queue": queue, "ids": waiting}) if waiting else []
        if parked and settings.ordered:
            # One whose lease ran out need not be the first of its key: the first may have waited for it.
            executor.run("key_promote", {"queue": queue, "keys": sorted({keyed[row[0]] for row in parked})})
        return [row for row in rows if row[0] not in keyed or row[0] in turn], parked

    def _grant(
        self, executor: Executor, settings: QueueSettings, rows: Sequence[Row], wanted: Wanted
    ) -> dict[UUID, Any]:
        parameters = {
            "ids": [row[0] for row in rows],
            "lease_seconds": wanted.lease_seconds,
            "worker": wanted.worker,
            "limited": settings.limited,
            "alone": len(rows) == 1 and not wanted.joining,
        }
        if settings.strategy is Strategy.ASSIGN:
            # In the order of the ids: two managers that want the same jobs wait for each other in one direction only.
            fences = sorted((row[0], row[LEASE_NO]) for row in rows)
            parameters |= {"ids": [fence[0] for fence in fences], "lease_nos": [fence[1] for fence in fences]}
            parameters |= {"queue": settings.name, "revision": settings.revision}
            return dict(executor.run("grant_assign", parameters))
        return dict(executor.run("grant", parameters))

    def without_spent(
        self, jobs: list[ClaimedJob], executor: Executor | None = None, on_spent: OnSpent | None = None
    ) -> list[ClaimedJob]:
        """Of claimed jobs those that are to be handed out. The others are ended: those that were to be cancelled, and those
        whose last attempt is spent, which are held where they stop their key.

        Args:
            jobs: of one claim.
            executor: the transaction of the claim, where that is not over.
            on_spent: told of the others.
        """
        spent = [job for job in jobs if job.attempt > job.max_attempts and not job.cancel_requested]
        unwanted = [job for job in jobs if job.cancel_requested]
        if not spent and not unwanted:
            return jobs
        held = [job for job in spent if self._writes.stops_key(job)]
        dead = [job for job in spent if not self._writes.stops_key(job)]
        endings = [Ending(job, ArchiveState.CANCELLED, error="cancelled while it ran") for job in unwanted]
        endings += [Ending(job, ArchiveState.FAILED, error=_spent_error(job)) for job in dead]
        ended = self._writes.finish(endings, executor=executor)
        aside = self._writes.hold([(job, _spent_error(job)) for job in held], executor=executor)
        if on_spent is not None:
            accepted = [[job for job in met if job.id in ended] for met in (dead, unwanted)]
            on_spent(accepted[0], [job for job in held if job.id in aside], accepted[1])
        out = {job.id for job in (*spent, *unwanted)}
        return [job for job in jobs if job.id not in out]


def _spent_error(job: ClaimedJob) -> str:
    before = f"; the attempt before it: {job.error}" if job.error else ""
    return f"the lease ran out on the last of {job.max_attempts} attempts: its consumer died or hung{before}"
