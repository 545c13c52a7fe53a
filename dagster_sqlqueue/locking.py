"""Taking jobs out for the length of a transaction: no lease, and a crash leaves them as they were."""

from collections.abc import Sequence

from dagster_sqlqueue.ending import Ending, EndingVerbs, locked_ending_step
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.executors import Executor, Transaction
from dagster_sqlqueue.hints import HeadHints
from dagster_sqlqueue.model import ClaimedJob
from dagster_sqlqueue.picking import (
    FROM_THE_HEAD,
    LEASE_UNTIL,
    Wanted,
    check_claim,
    pick,
    pick_step,
    under_lease,
    wanted_of,
)
from dagster_sqlqueue.settings import QueueSettings, Strategy


class LockingVerbs(EndingVerbs):
    """How jobs are taken out in transactional mode."""

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
        check_claim(limit, None, buckets)
        settings = self.last_seen(queue)
        if _needs_leases(settings):
            settings = self.settings(queue, executor=executor)
        hints = hints or HeadHints()
        jobs = self._lock_due(executor, settings, wanted_of(settings, buckets, limit, None, "", hints, None))
        if not jobs and (now := self.settings(queue, executor=executor)).revision != settings.revision:
            jobs = self._lock_due(executor, now, wanted_of(now, buckets, limit, None, "", hints, None))
        if self.last_seen(queue).strategy in FROM_THE_HEAD:
            hints.note(jobs)
        return jobs

    def finish_and_lock(
        self,
        transaction: Transaction,
        endings: Sequence[Ending],
        queue: str,
        *,
        limit: int,
        worker: str,
        buckets: Sequence[int] | None = None,
        hints: HeadHints | None = None,
    ) -> list[ClaimedJob]:
        """End jobs that the transaction locked, commit it, and lock the next ones in the transaction that follows: in one
        round trip, where the strategy finds them at the first look.

        Args:
            transaction: of `Database.transact` or `Database.transaction`.
            endings: as for `finish_locked`.
            queue: where to look for the next ones.
            limit: the most jobs to lock, 1 to 10,000.
            worker: who ends.
            buckets: where to look, in this order; None for all of them.
            hints: as for `claim`.

        Returns:
            What was locked. Nothing was: ask `lock_due` whether there is anything.

        Raises:
            InvalidInput, UnknownQueue: as for `finish_locked` and `lock_due`.
        """
        check_claim(limit, None, buckets)
        settings = self.last_seen(queue)
        hints = hints or HeadHints()
        wanted = wanted_of(settings, buckets, limit, None, worker, hints, None)
        ending = locked_ending_step(endings, worker)
        if settings.strategy is Strategy.FIFO or _needs_leases(settings):
            transaction.run_and_go_on(ending)
            return self.lock_due(transaction, queue, limit=limit, buckets=buckets, hints=hints)
        rows = transaction.run_and_go_on(ending, pick_step(settings, wanted, limit))
        jobs = [under_lease(row, row[LEASE_UNTIL], settings) for row in rows]
        if settings.strategy in FROM_THE_HEAD:
            hints.note(jobs)
        return jobs

    def _lock_due(self, executor: Executor, settings: QueueSettings, wanted: Wanted) -> list[ClaimedJob]:
        if why := _needs_leases(settings):
            raise InvalidInput(
                f"queue {settings.name!r} {why}, which needs leases: transactional mode cannot work it off"
            )
        # As they will be: nobody else can count an attempt or a lease before this transaction ends.
        rows = pick(executor, settings, wanted, wanted.limit)
        return [under_lease(row, row[LEASE_UNTIL], settings) for row in rows]


def _needs_leases(settings: QueueSettings) -> str | None:
    """Why a queue cannot be worked off in transactional mode; None when it can."""
    if settings.keyed or settings.limited:
        return "is ordered or limited"
    if settings.strategy in (Strategy.ASSIGN, Strategy.TOKEN):
        return f"has the strategy '{settings.strategy}'"
    return None
