"""Verbs that claim jobs and end them, for programs that process jobs without a `Consumer`."""

from collections.abc import Sequence
from uuid import UUID

from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.model.backoff import BackoffPolicy
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Retry, Snooze, check_reason
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.claim_request import ClaimRequest, check_lease_seconds, check_worker
from dagster_sqlqueue.queue.complete import Kept
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.head_hints import HeadHints


class LeaseVerbs(Verbs):
    """The public verbs of `Leases`."""

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
            worker: the name of the consumer, for people to read; unique for each start of a process.
            buckets: where to search, in this order; None for all of them.
            lease_seconds: how long the claim holds without a heartbeat; None for the queue's.
            hints: where earlier claims of the same consumer began; None: search from the very beginning, by `fanout` and
                `assign` for any jobs.
            filter: take only jobs that fit.

        Returns:
            The jobs. None at all: nothing is due in these buckets, or nothing may run now: the queue is paused, or its
            limits are reached.

        Raises:
            InvalidInput: an argument is out of range.
            UnknownQueue: there is no such queue.
        """
        request = ClaimRequest(queue, limit, check_worker(worker), buckets, lease_seconds, hints or HeadHints(), filter)
        return self.leases.claim(request.checked())

    def finish(self, endings: Sequence[Ending], *, executor: Executor | None = None) -> set[UUID]:
        """Move claimed jobs to the archive, each under its fence.

        Args:
            endings: the jobs and how each ended.
            executor: a `Database.transaction` to do it in together with other writes (exactly-once effect).

        Returns:
            The ids that were accepted; a job that is missing was refused, because its lease is not the current one.

        Raises:
            InvalidInput: a result cannot be stored as JSON, or `executor` is a transaction that does not see what others
                commit, and a job's key takes turns; nothing was written.
        """
        return self.leases.finish(Endings.of(endings), executor=executor)

    def complete(self, jobs: Sequence[ClaimedJob], *, executor: Executor | None = None) -> None:
        """End jobs as succeeded.

        Raises:
            LeaseLost: some were refused; the others are completed, unless `executor` is given and rolls back.
        """
        self.leases.complete(jobs, executor=executor)

    def fail(
        self, job: ClaimedJob, error: str, *, backoff: BackoffPolicy | None = None, after: float | None = None
    ) -> bool:
        """Report a failed attempt: due again after the backoff, or if it was the last, the dead letter; in an ordered
        queue that stops at poisoned jobs it is held instead.

        Args:
            job: as claimed.
            error: what went wrong, kept with the job.
            backoff: instead of the job's own or the queue's.
            after: seconds to wait instead.

        Returns:
            Whether the job will be tried again.

        Raises:
            LeaseLost: the write was refused.
        """
        return self.leases.fail(job, error, backoff=backoff, after=after)

    def requeue(
        self,
        jobs: Sequence[tuple[ClaimedJob, Retry | Snooze]],
        *,
        backoff: BackoffPolicy | None = None,
        executor: Executor | None = None,
    ) -> set[UUID]:
        """Give claimed jobs back to be due later: a retry spends the attempt, a snooze does not.

        Args:
            jobs: each with how it goes back.
            backoff: for retries that name no delay and have no backoff of their own; None for the queue's.
            executor: a transaction to do it in.

        Returns:
            The ids that were accepted.

        Raises:
            InvalidInput: as for `finish`, of the executor.
        """
        return self.leases.requeue(jobs, backoff=backoff, executor=executor).accepted

    def release(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Give back jobs that were claimed and not begun; they are due at once. Returns the ids that were accepted."""
        return self.leases.release(jobs)

    def hold(self, jobs: Sequence[tuple[ClaimedJob, str]], *, executor: Executor | None = None) -> set[UUID]:
        """Hold claimed jobs, each with the reason, no attempt spent. Returns the ids that were accepted.

        Raises:
            InvalidInput: a reason says nothing; or as for `finish`, of the executor.
        """
        for _, reason in jobs:
            check_reason(reason)
        return self.leases.hold(jobs, executor=executor)

    def heartbeat(self, jobs: Sequence[ClaimedJob], *, lease_seconds: float) -> Kept:
        """Extend leases, counted from now.

        A lease that ran out and was not claimed since is extended like any other, except where others may have begun in its
        place: under a limit, or in a keyed queue.

        Raises:
            InvalidInput: lease_seconds is not positive, or too long.
        """
        check_lease_seconds(lease_seconds)
        return self.leases.heartbeat(jobs, lease_seconds=lease_seconds)
