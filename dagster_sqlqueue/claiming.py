"""Taking jobs out: one claim, five strategies, with the turns of keys and the limits of queues."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.ending import Ending, EndingVerbs
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.executors import Executor, Row
from dagster_sqlqueue.filters import ClaimFilter
from dagster_sqlqueue.hints import HeadHints
from dagster_sqlqueue.model import ArchiveState, ClaimedJob
from dagster_sqlqueue.settings import MAX_BUCKETS, MAX_DELAY_SECONDS, QueueSettings, Strategy, check_queue_name

MAX_BATCH = 10_000
_PARK_AT_ONCE = 500
_LONGEST_LOOK = 100_000
_PICKS = {
    Strategy.ROUND_ROBIN: "pick_round_robin",
    Strategy.TOKEN: "pick_round_robin",
    Strategy.FANOUT: "pick_fanout",
    Strategy.FIFO: "pick_fifo",
    Strategy.ASSIGN: "list_executable",
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What one claim asks for."""

    lanes: list[int]
    limit: int
    lease_seconds: float
    worker: str
    hints: HeadHints
    filter: ClaimFilter | None = None


class ClaimingVerbs(EndingVerbs):
    """How jobs are taken out of a queue."""

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
    ) -> list[ClaimedJob]:
        """Claim due jobs under a lease, by the queue's strategy.

        A job whose lease ran out on its last attempt is not handed out: it goes to the dead letter here, or in an ordered
        queue that stops at poisoned jobs it is held. One that was to be cancelled while it ran is cancelled.

        Args:
            queue: its name.
            limit: the most jobs to claim, 1 to 10,000.
            worker: who claims: unique for each start of a process, for people to read.
            buckets: where to look, in this order; None for all of them.
            lease_seconds: how long the claim holds without a heartbeat; None for the queue's.
            hints: where earlier claims of the same consumer began; None: look from the very beginning.
            filter: take only jobs that fit.

        Returns:
            The jobs. None at all: nothing is due in these buckets, or nothing may run now: the queue is paused, or its
            limits are reached.

        Raises:
            InvalidInput: an argument is out of range.
            UnknownQueue: there is no such queue.
        """
        check_queue_name(queue)
        _check(limit, lease_seconds, buckets)
        settings = self.last_seen(queue)
        hints = hints or HeadHints()
        while True:
            wanted = _wanted(settings, buckets, limit, lease_seconds, worker, hints, filter)
            jobs, again = self._claim(settings, wanted)
            handed_out = self._without_spent(jobs)
            if handed_out:
                # Not before: what this claim did not look at yet may have been due earlier than what it buried.
                if settings.strategy in _FROM_THE_HEAD:
                    hints.note(jobs)
                return handed_out
            revision = settings.revision
            settings = self.settings(queue)
            if not (jobs or again) and settings.revision == revision:
                return []

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
        _check(limit, lease_seconds, buckets)
        settings = self.settings(queue, executor=executor)
        wanted = _wanted(settings, buckets, limit, lease_seconds, worker, HeadHints(), None)
        jobs, _ = self._claim_by_steps(executor, settings, wanted)
        return self._without_spent(jobs, executor)

    def lock_due(
        self,
        executor: Executor,
        queue: str,
        *,
        limit: int,
        buckets: Sequence[int] | None = None,
        hints: HeadHints | None = None,
    ) -> list[ClaimedJob]:
        """Lock due jobs for the rest of a transaction, in which they are then worked off and ended: no lease is needed,
        and a crash leaves them as they were.

        Args:
            executor: the `Database.transaction`.
            queue: its name.
            limit: the most jobs to lock, 1 to 10,000.
            buckets: where to look, in this order; None for all of them.
            hints: as for `claim`.

        Raises:
            InvalidInput: an argument is out of range, or the queue's strategy, order or limits need leases.
            UnknownQueue: there is no such queue.
        """
        _check(limit, None, buckets)
        settings = self.last_seen(queue)
        if _needs_leases(settings):
            settings = self.settings(queue, executor=executor)
        hints = hints or HeadHints()
        jobs = self._lock_due(executor, settings, _wanted(settings, buckets, limit, None, "", hints, None))
        if not jobs and (now := self.settings(queue, executor=executor)).revision != settings.revision:
            jobs = self._lock_due(executor, now, _wanted(now, buckets, limit, None, "", hints, None))
        if self.last_seen(queue).strategy in _FROM_THE_HEAD:
            hints.note(jobs)
        return jobs

    def _lock_due(self, executor: Executor, settings: QueueSettings, wanted: _Wanted) -> list[ClaimedJob]:
        if why := _needs_leases(settings):
            raise InvalidInput(
                f"queue {settings.name!r} {why}, which needs leases: transactional mode cannot work it off"
            )
        # As they will be: nobody else can count an attempt or a lease before this transaction ends.
        rows = self._pick(executor, settings, wanted, wanted.limit)
        return [_under_lease(row, row[_LEASE_UNTIL], settings) for row in rows]

    def _claim(self, settings: QueueSettings, wanted: _Wanted) -> tuple[list[ClaimedJob], bool]:
        """The jobs; and whether to look again where there are none, because some were set aside, or others were quicker: a
        race that was lost is one that another has won.
        """
        at_once = settings.limited and settings.strategy is Strategy.ROUND_ROBIN
        deciding = settings.keyed or (settings.limited and not at_once) or wanted.filter is not None
        if settings.strategy is Strategy.ASSIGN and not deciding:
            return self._claim_by_steps(self.database, settings, wanted)
        if deciding or settings.strategy in (Strategy.FANOUT, Strategy.FIFO):
            return self.database.transact(lambda executor: self._claim_by_steps(executor, settings, wanted))
        lanes = _turned(wanted.lanes) if settings.strategy is Strategy.TOKEN else wanted.lanes
        parameters = {
            "queue": settings.name,
            "revision": settings.revision,
            "buckets": lanes,
            "hints": wanted.hints.array(lanes),
            "limit": wanted.limit,
            "lease_seconds": wanted.lease_seconds,
            "worker": wanted.worker,
        }
        again = False
        if settings.strategy is Strategy.TOKEN:
            rows, again = self._mark(parameters)
        elif at_once:
            lock = {"queue": settings.name}
            rows = self.database.run_together(("limit_lock", lock), ("claim_limited", parameters))
        else:
            rows = self.database.run("claim_round_robin", parameters)
        return [ClaimedJob._make((*row, settings.name)) for row in rows], again

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
        self, executor: Executor, settings: QueueSettings, wanted: _Wanted
    ) -> tuple[list[ClaimedJob], bool]:
        limit = self._allowance(executor, settings, wanted.limit) if settings.limited else wanted.limit
        if limit <= 0:
            return [], False
        if wanted.filter is not None:
            rows = wanted.filter.pick(executor, settings, wanted.lanes, limit)
        else:
            rows = self._pick(executor, settings, wanted, max(limit, _PARK_AT_ONCE) if settings.keyed else limit)
        parked: Sequence[Row] = []
        if settings.keyed and rows:
            rows, parked = self._turns(executor, settings, rows)
        rows = rows[:limit]
        if not rows:
            return [], bool(parked)
        granted = self._grant(executor, settings, rows, wanted)
        if settings.rate and granted:
            starts = {"queue": settings.name, "starts": len(granted), "rate_seconds": settings.rate.seconds}
            executor.run("rate_note", starts)
        jobs = [_under_lease(row, granted[row[0]], settings) for row in rows if row[0] in granted]
        return jobs, not jobs

    def _pick(self, executor: Executor, settings: QueueSettings, wanted: _Wanted, limit: int) -> Sequence[Row]:
        lanes = _turned(wanted.lanes) if settings.strategy is Strategy.FANOUT else wanted.lanes
        parameters = {
            "queue": settings.name,
            "revision": settings.revision,
            "buckets": lanes,
            "hints": wanted.hints.array(lanes),
            "limit": limit,
        }
        if settings.strategy is not Strategy.FIFO:
            return executor.run(_PICKS[settings.strategy], parameters)
        look = limit
        while rows := executor.run("pick_fifo", {**parameters, "look": look}):
            heads = rows[0][-1]
            if rows[0][0] is not None:
                return [row[:-1] for row in rows]
            if heads < look or look > _LONGEST_LOOK:
                break
            # Others hold everything that was looked at, and there is more behind it.
            look *= 4
        return []

    def _allowance(self, executor: Executor, settings: QueueSettings, limit: int) -> int:
        executor.run("limit_lock", {"queue": settings.name})
        rows = executor.run("limit_allowance", {"queue": settings.name, "revision": settings.revision, "limit": limit})
        return int(rows[0][0]) if rows else 0

    def _turns(
        self, executor: Executor, settings: QueueSettings, rows: Sequence[Row]
    ) -> tuple[list[Row], Sequence[Row]]:
        """The rows that may run, in their order, and what was parked; rows of keys that another decides about stay."""
        keyed = {row[0]: row[_KEY] for row in rows if row[_ORDER_NO] is not None}
        if not keyed:
            return list(rows), []
        queue = settings.name
        won = {row[0] for row in executor.run("key_try", {"queue": queue, "keys": sorted(set(keyed.values()))})}
        decided = [job for job, key in keyed.items() if key in won]
        turn = {row[0] for row in executor.run("key_turns", {"queue": queue, "ids": decided})} if decided else set()
        waiting = [job for job in decided if job not in turn]
        parked = executor.run("park", {"queue": queue, "ids": waiting}) if waiting else []
        if parked and settings.ordered:
            # One whose lease ran out need not be the first of its key: the first may have waited for it.
            executor.run("key_promote", {"queue": queue, "keys": sorted({keyed[row[0]] for row in parked})})
        return [row for row in rows if row[0] not in keyed or row[0] in turn], parked

    def _grant(
        self, executor: Executor, settings: QueueSettings, rows: Sequence[Row], wanted: _Wanted
    ) -> dict[UUID, Any]:
        parameters = {
            "ids": [row[0] for row in rows],
            "lease_seconds": wanted.lease_seconds,
            "worker": wanted.worker,
            "limited": settings.limited,
        }
        if settings.strategy is Strategy.ASSIGN:
            # In the order of the ids: two managers that want the same jobs wait for each other in one direction only.
            fences = sorted((row[0], row[_LEASE_NO]) for row in rows)
            parameters |= {"ids": [fence[0] for fence in fences], "lease_nos": [fence[1] for fence in fences]}
            parameters |= {"queue": settings.name, "revision": settings.revision}
            return dict(executor.run("grant_assign", parameters))
        return dict(executor.run("grant", parameters))

    def _without_spent(self, jobs: list[ClaimedJob], executor: Executor | None = None) -> list[ClaimedJob]:
        spent = [job for job in jobs if job.attempt > job.max_attempts and not job.cancel_requested]
        unwanted = [job for job in jobs if job.cancel_requested]
        if not spent and not unwanted:
            return jobs
        endings = [Ending(job, ArchiveState.CANCELLED, error="cancelled while it ran") for job in unwanted]
        endings += [
            Ending(job, ArchiveState.FAILED, error=_spent_error(job)) for job in spent if not self.stops_key(job)
        ]
        self.finish(endings, executor=executor)
        self.hold([(job, _spent_error(job)) for job in spent if self.stops_key(job)], executor=executor)
        out = {job.id for job in (*spent, *unwanted)}
        return [job for job in jobs if job.id not in out]


_LEASE_NO, _LEASE_UNTIL, _KEY, _ORDER_NO = map(
    ClaimedJob._fields.index, ("lease_no", "lease_until", "ordering_key", "order_no")
)
_FROM_THE_HEAD = (Strategy.ROUND_ROBIN, Strategy.FIFO, Strategy.TOKEN)
"""Only where a batch is the oldest that was due, nothing is older than it."""


def check_buckets(buckets: Sequence[int]) -> Sequence[int]:
    """The buckets, if a claim may look there.

    Raises:
        InvalidInput: there are none, or one is out of range.
    """
    if not buckets or min(buckets) < 0 or max(buckets) >= MAX_BUCKETS:
        raise InvalidInput(
            f"buckets is {list(buckets)}; name at least one, each 0 to {MAX_BUCKETS - 1}, or give None for all"
        )
    return buckets


def _check(limit: int, lease_seconds: float | None, buckets: Sequence[int] | None) -> None:
    if not 1 <= limit <= MAX_BATCH:
        raise InvalidInput(f"limit is {limit}; a claim takes 1 to {MAX_BATCH:,} jobs")
    if lease_seconds is not None and not 0 < lease_seconds <= MAX_DELAY_SECONDS:
        raise InvalidInput(f"lease_seconds is {lease_seconds}; it must be positive, at most a hundred years")
    if buckets is not None:
        check_buckets(buckets)


def _needs_leases(settings: QueueSettings) -> str | None:
    """Why a queue cannot be worked off in transactional mode; None when it can."""
    if settings.keyed or settings.limited:
        return "is ordered or limited"
    if settings.strategy in (Strategy.ASSIGN, Strategy.TOKEN):
        return f"has the strategy '{settings.strategy}'"
    return None


def _wanted(
    settings: QueueSettings,
    buckets: Sequence[int] | None,
    limit: int,
    lease_seconds: float | None,
    worker: str,
    hints: HeadHints,
    filter: ClaimFilter | None,
) -> _Wanted:
    lanes = list(range(settings.lanes)) if buckets is None else list(buckets)
    lease = settings.lease_seconds if lease_seconds is None else lease_seconds
    return _Wanted(lanes, limit, lease, worker, hints, filter)


def _turned(lanes: list[int]) -> list[int]:
    start = random.randrange(len(lanes))
    return lanes[start:] + lanes[:start]


def _under_lease(row: Row, lease_until: Any, settings: QueueSettings) -> ClaimedJob:
    lease_no, attempt = row[3] + 1, row[4] + 1
    return ClaimedJob(
        *(*row[:3], lease_no, attempt, *row[5:7], lease_until, *row[8:-1], settings.limited, settings.name)
    )


def _spent_error(job: ClaimedJob) -> str:
    before = f"; the attempt before it: {job.error}" if job.error else ""
    return f"the lease ran out on the last of {job.max_attempts} attempts: its consumer died or hung{before}"
