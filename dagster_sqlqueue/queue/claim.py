"""Claim jobs: one verb, five strategies, with the turns of keys and the limits of queues."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.db.execution import Row, Step
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.complete import FencedWrites
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.head_hints import buckets_of
from dagster_sqlqueue.queue.limits import Reservations
from dagster_sqlqueue.queue.odd_jobs import ROW_ERRORS, OddJobs
from dagster_sqlqueue.queue.strategies import (
    AT_ONCE,
    BUCKET,
    KEY,
    LEASE_NO,
    ORDER_NO,
    SUSPECT,
    pick,
    under_lease,
    without_suspects,
)

OnSpent: TypeAlias = Callable[[Sequence[ClaimedJob], Sequence[ClaimedJob], Sequence[ClaimedJob]], None]
"""Called with jobs that a claim met and did not hand out: sent to the dead letter, held, and cancelled."""

_PARK_AT_ONCE = 500
_ALONE = (Strategy.ASSIGN, Strategy.TOKEN)
"""Their statements are to stand each by itself: what decides a race is that the others see them at once."""


class Claims:
    """The verbs that claim jobs.

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
        self, request: ClaimRequest, *, settings: QueueSettings | None = None, on_spent: OnSpent | None = None
    ) -> list[ClaimedJob]:
        """Claim due jobs under a lease, by the queue's strategy: `SqlQueue.claim`.

        Args:
            request: the claim's arguments.
            settings: the queue's, as the caller knows them; None: as this process read them last. If they are not the
                current ones, these are read.
            on_spent: called with the jobs that were met and not handed out, because their last attempt was spent, or they
                were cancelled while they ran.
        """
        queue, hints = request.queue, request.hints
        settings = settings or self._catalog.last_seen(queue)
        odd: OddJobs | None = None
        while True:
            try:
                jobs, filled, again = self._claim(settings, request)
            except ROW_ERRORS as error:
                odd = odd or OddJobs(self.database, queue)
                if not odd.set_aside(error):
                    raise
                continue
            handed_out = self.without_spent(jobs, on_spent=on_spent)
            if handed_out:
                # Not before: what this claim has not reached yet may have been due earlier than what it buried.
                hints.took(settings.strategy, jobs, filled=filled)
                return handed_out
            revision = settings.revision
            settings = self._catalog.settings(queue)
            if not (jobs or again) and settings.revision == revision:
                # One that was left out, for its lease ran out, is to be found by the next claim.
                if not (settings.limited or request.joining):
                    hints.saw_all()
                return []

    def finish_and_claim(
        self,
        endings: Endings,
        request: ClaimRequest,
        *,
        settings: QueueSettings | None = None,
        on_spent: OnSpent | None = None,
    ) -> tuple[set[UUID], list[ClaimedJob]]:
        """End jobs and claim the next ones in one transaction, by `round_robin` and `fanout` in one round trip. Only for
        keys that take turns, and by the strategies `assign` and `token`, it takes two transactions.

        Args:
            endings: as for `finish`; at least one.
            request: the claim's arguments.
            settings: as for `claim`. If they are not the current ones, nothing is claimed.
            on_spent: as for `claim`.

        Returns:
            The ids whose ending was accepted; and the jobs that were claimed. None were: ask `claim` whether there are any.

        Raises:
            UnknownQueue: as for `claim`.
        """
        settings = settings or self._catalog.last_seen(request.queue)
        jobs = endings.jobs

        def one_after_the_other() -> tuple[set[UUID], list[ClaimedJob]]:
            accepted = self._writes.finish(endings)
            return accepted, self.claim(request, on_spent=on_spent)

        if settings.keyed or settings.strategy in _ALONE or any(job.order_no is not None for job in jobs):
            return one_after_the_other()
        step, filled = endings.step(), None
        try:
            if _claims_at_once(settings):
                ended, *_, rows = self.database.run_together(step, *self._next_claim(settings, request))
                found, filled = _claimed_at_once(settings, request, rows)
            else:
                ended, (found, _) = self.database.transact(
                    lambda executor: (executor.run(*step), self._claim_by_steps(executor, settings, request))
                )
        except ROW_ERRORS:
            # Nothing was written. Apart from each other they show which of the two it was.
            return one_after_the_other()
        claimed = self.without_spent(found, on_spent=on_spent)
        if claimed:
            request.hints.took(settings.strategy, claimed, filled=filled)
        if len(ended) == len(jobs):
            return {row[0] for row in ended}, claimed
        return self._writes.accepted(step, jobs, ended), claimed

    def claim_within(self, executor: Executor, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim due jobs as one step of a transaction: they are under a lease once it commits.

        Until then nothing is decided: rolled back, or lost by a failover, the claim never was, and the next one of the same
        job has the same `lease_no`. Pass neither the jobs nor their numbers on before the commit: the receiver could not
        distinguish the two claims.

        Args:
            executor: the `Database.transaction`.
            request: the claim's arguments.

        Raises:
            UnknownQueue: there is no such queue.
        """
        settings = self._catalog.settings(request.queue, executor=executor)
        jobs, _ = self._claim_by_steps(executor, settings, request)
        return self.without_spent(jobs, executor)

    def _next_claim(self, settings: QueueSettings, request: ClaimRequest) -> list[Step]:
        """Return the statements that claim in a transaction that has ended other jobs, for a queue whose keys take no
        turns.
        """
        parameters = claim_parameters(settings, request)
        if not settings.limited:
            return [(AT_ONCE[settings.strategy], parameters)]
        if reservation := self._reservations.reservation(settings, request):
            return [("claim_reserved", {**parameters, "reservation": reservation})]
        return [("limit_lock", {"queue": settings.name}), ("claim_limited", parameters)]

    def _claim(self, settings: QueueSettings, request: ClaimRequest) -> tuple[list[ClaimedJob], bool | None, bool]:
        """Claim once. Returns the jobs; whether there may be more, None where the hints have been informed; and if there are
        none, whether to try again, as some were parked, or others were quicker: a race that was lost is one that another
        has won.
        """
        by_token = settings.strategy is Strategy.TOKEN and not settings.limited
        deciding = settings.keyed or request.filter is not None
        if settings.strategy is Strategy.ASSIGN and not (deciding or settings.limited):
            jobs, again = self._claim_by_steps(self.database, settings, request)
            return jobs, None, again
        if deciding or not (by_token or _claims_at_once(settings)):
            jobs, again = self.database.transact(lambda executor: self._claim_by_steps(executor, settings, request))
            return jobs, None, again
        parameters = claim_parameters(settings, request)
        again = False
        if by_token:
            rows, again = self._mark(parameters)
        elif settings.limited:
            lock = {"queue": settings.name}
            rows = self.database.run_together(("limit_lock", lock), ("claim_limited", parameters))[-1]
        else:
            rows = self.database.run(AT_ONCE[settings.strategy], parameters)
        return *_claimed_at_once(settings, request, rows), again

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
        self, executor: Executor, settings: QueueSettings, request: ClaimRequest
    ) -> tuple[list[ClaimedJob], bool]:
        limit = self._allowance(executor, settings, request.limit) if settings.limited else request.limit
        if limit <= 0:
            return [], False
        most = max(limit, _PARK_AT_ONCE) if settings.keyed else limit
        if request.filter is not None:
            picked = request.filter.pick(executor, settings, buckets_of(settings, request.buckets), limit)
        else:
            picked = pick(executor, settings, request, most)
        fitting, parked = self._turns(executor, settings, picked) if settings.keyed and picked else (picked, [])
        rows = without_suspects(fitting[:limit], joining=request.joining)
        if request.filter is None:
            # Of what is left for the next claims, it is not known what is older in its buckets.
            cut = len(rows) < len(fitting)
            reached = [row[BUCKET] for row in (rows if cut else picked)]
            request.hints.found(settings.strategy, reached, filled=cut or len(picked) >= most or request.joining)
        if not rows:
            return [], bool(parked)
        granted = self._grant(executor, settings, rows, request)
        if settings.rate and granted:
            starts = {"queue": settings.name, "starts": len(granted), "rate_seconds": settings.rate.seconds}
            executor.run("rate_note", starts)
        alone = _alone(rows, request)
        jobs = under_lease(rows, granted, settings, alone=alone)
        return jobs, not jobs

    def _allowance(self, executor: Executor, settings: QueueSettings, limit: int) -> int:
        executor.run("limit_lock", {"queue": settings.name})
        rows = executor.run("limit_allowance", {"queue": settings.name, "revision": settings.revision, "limit": limit})
        return int(rows[0][0]) if rows else 0

    def _turns(
        self, executor: Executor, settings: QueueSettings, rows: Sequence[Row]
    ) -> tuple[list[Row], Sequence[Row]]:
        """Return the rows that may run, in their order, and what was parked; rows whose key another locks stay."""
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
        self, executor: Executor, settings: QueueSettings, rows: Sequence[Row], request: ClaimRequest
    ) -> dict[UUID, Any]:
        parameters = {
            "ids": [row[0] for row in rows],
            "lease_seconds": _lease_seconds(settings, request),
            "worker": request.worker,
            "limited": settings.max_running is not None,
            "alone": _alone(rows, request),
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
        """Return those claimed jobs that are to be handed out. The others are ended: the cancelled ones, and those whose
        last attempt is spent, which are held where they stop their key.

        Args:
            jobs: of one claim.
            executor: the transaction of the claim, where that is not over.
            on_spent: called with the others.
        """
        spent = [job for job in jobs if job.attempt > job.max_attempts and not job.cancel_requested]
        unwanted = [job for job in jobs if job.cancel_requested]
        if not spent and not unwanted:
            return jobs
        held = [job for job in spent if self._writes.stops_key(job)]
        dead = [job for job in spent if not self._writes.stops_key(job)]
        endings = [Ending(job, ArchiveState.CANCELLED, error="cancelled while it ran") for job in unwanted]
        endings += [Ending(job, ArchiveState.FAILED, error=_spent_error(job)) for job in dead]
        ended = self._writes.finish(Endings.of(endings), executor=executor)
        aside = self._writes.hold([(job, _spent_error(job)) for job in held], executor=executor)
        if on_spent is not None:
            accepted = [[job for job in met if job.id in ended] for met in (dead, unwanted)]
            on_spent(accepted[0], [job for job in held if job.id in aside], accepted[1])
        out = {job.id for job in (*spent, *unwanted)}
        return [job for job in jobs if job.id not in out]


def claim_parameters(settings: QueueSettings, request: ClaimRequest) -> dict[str, Any]:
    """Return the parameters of a statement that picks jobs and puts them under a lease."""
    return {
        "queue": settings.name,
        "revision": settings.revision,
        "limit": request.limit,
        "lease_seconds": _lease_seconds(settings, request),
        "worker": request.worker,
        "suspects": not request.joining,
        "single": not (request.joining or request.beside),
        **request.hints.search(settings, request.buckets),
    }


def _alone(rows: Sequence[Row], request: ClaimRequest) -> bool:
    """Return whether nothing runs beside what a claim takes, as `claim_round_robin.sql` decides it."""
    return len(rows) == 1 and not request.joining and (bool(rows[0][SUSPECT]) or not request.beside)


def _lease_seconds(settings: QueueSettings, request: ClaimRequest) -> float:
    return settings.lease_seconds if request.lease_seconds is None else request.lease_seconds


def _claims_at_once(settings: QueueSettings) -> bool:
    """Return whether one statement picks and grants, also one that makes sure of limits; for a queue without turns."""
    return settings.strategy in AT_ONCE and (settings.strategy is Strategy.ROUND_ROBIN or not settings.limited)


def _claimed_at_once(
    settings: QueueSettings, request: ClaimRequest, rows: Sequence[Row]
) -> tuple[list[ClaimedJob], bool]:
    """Return the jobs of a statement that chooses and grants; and whether there may be more: of a limit, and of a job that
    goes by itself, it is not known how many more it would have taken.
    """
    jobs = [ClaimedJob._make((*row, settings.name)) for row in rows]
    return jobs, len(jobs) >= request.limit or settings.limited or request.joining or (bool(jobs) and jobs[-1].alone)


def _spent_error(job: ClaimedJob) -> str:
    before = f"; the attempt before it: {job.error}" if job.error else ""
    return f"the lease ran out on the last of {job.max_attempts} attempts: its consumer died or hung{before}"
