"""Verbs that claim jobs and end them, for programs that process jobs without a `Consumer`."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import BackoffPolicy
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Retry, Snooze, check_reason
from dagster_sqlqueue.model.queue import check_lease_seconds
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.claim_request import ClaimRequest, check_worker
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
            InvalidInput: an ending is not usable, or `executor` is a transaction that does not see what others commit, and
                a job's key takes turns; nothing was written.
        """
        return self.leases.finish(Endings.of(map(_ending, _several("endings", endings))), executor=executor)

    def complete(self, jobs: Sequence[ClaimedJob], *, executor: Executor | None = None) -> None:
        """End jobs as succeeded.

        Raises:
            InvalidInput: something among them is no claimed job; nothing was written.
            LeaseLost: some were refused; the others are completed, unless `executor` is given and rolls back.
        """
        self.leases.complete(_claimed(jobs), executor=executor)

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
            InvalidInput: an argument is not usable; nothing was written.
            LeaseLost: the write was refused.
        """
        (job,) = _claimed([job])
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
            InvalidInput: something among them is no claimed job with a `Retry` or `Snooze`; or as for `finish`, of the
                executor.
        """
        back = _pairs(jobs)
        for _, how in back:
            if not isinstance(how, Retry | Snooze):
                raise InvalidInput(f"a job is to go back by a {type(how).__name__}; give a Retry(…) or a Snooze(…)")
        return self.leases.requeue(back, backoff=backoff, executor=executor).accepted

    def release(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Give back jobs that were claimed and not begun; they are due at once. Returns the ids that were accepted.

        Raises:
            InvalidInput: something among them is no claimed job; nothing was written.
        """
        return self.leases.release(_claimed(jobs))

    def hold(self, jobs: Sequence[tuple[ClaimedJob, str]], *, executor: Executor | None = None) -> set[UUID]:
        """Hold claimed jobs, each with the reason, no attempt spent. Returns the ids that were accepted.

        Raises:
            InvalidInput: something among them is no claimed job with a reason, or a reason says nothing; or as for `finish`,
                of the executor.
        """
        aside = [(job, check_reason(reason)) for job, reason in _pairs(jobs)]
        return self.leases.hold(aside, executor=executor)

    def heartbeat(self, jobs: Sequence[ClaimedJob], *, lease_seconds: float) -> Kept:
        """Extend leases, counted from now.

        A lease that ran out and was not claimed since is extended like any other, except where others may have begun in its
        place: under a limit, or in a keyed queue.

        Raises:
            InvalidInput: lease_seconds is not positive, or too long; or something among the jobs is no claimed job.
        """
        check_lease_seconds(lease_seconds)
        return self.leases.heartbeat(_claimed(jobs), lease_seconds=lease_seconds)


def _several(name: str, given: Any) -> list[Any]:
    # One job, and one ending, can be iterated as well: they are tuples.
    if isinstance(given, ClaimedJob | Ending | str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput(f"{name} is a {type(given).__name__}; give a list")
    return list(given)


def _claimed(jobs: Any) -> list[ClaimedJob]:
    several = _several("jobs", jobs)
    for job in several:
        _check_claimed(job)
    return several


def _pairs(jobs: Any) -> list[tuple[ClaimedJob, Any]]:
    several = _several("jobs", jobs)
    for pair in several:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidInput(
                f"there is a {type(pair).__name__} among the jobs; give pairs of a job and what becomes of it"
            )
        _check_claimed(pair[0])
    return several


def _check_claimed(job: object) -> None:
    if not isinstance(job, ClaimedJob):
        raise InvalidInput(f"there is a {type(job).__name__} among the jobs; give each as `claim` returned it")


def _ending(ending: object) -> Ending:
    if not isinstance(ending, Ending):
        raise InvalidInput(f"there is a {type(ending).__name__} among the endings; give an Ending(job, state, …)")
    _check_claimed(ending.job)
    if ending.state not in list(ArchiveState):
        raise InvalidInput(
            f"the state of an ending is {ending.state!r}; it must be one of {', '.join(map(repr, map(str, ArchiveState)))}"
        )
    if not (ending.error is None or isinstance(ending.error, str)):
        raise InvalidInput(f"the error of an ending is {ending.error!r:.100}; give a text, such as str(error)")
    return ending._replace(state=ArchiveState(ending.state))
