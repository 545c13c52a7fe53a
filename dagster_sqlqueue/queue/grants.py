"""Grant jobs to workers, for queues of the strategy `assign`: the verbs of managers, and of the workers that they serve."""

from collections.abc import Sequence

from dagster_sqlqueue.db.executors import Executor, Transaction
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.claim import Claims
from dagster_sqlqueue.queue.claim_request import MAX_BATCH, ClaimRequest
from dagster_sqlqueue.queue.head_hints import HeadHints
from dagster_sqlqueue.queue.odd_jobs import despite_odd_jobs


class Grants:
    """The verbs of managers and of their workers.

    Args:
        claims: what claims the jobs to grant.
    """

    def __init__(self, claims: Claims) -> None:
        self.database = claims.database
        self._claims = claims

    def assign(self, queue: str, *, lease_seconds: float | None = None, hints: HeadHints | None = None) -> int:
        """Grant jobs to every worker of a queue that wants some, once. Returns the number of jobs.

        Args:
            queue: its name; its strategy is `assign`.
            lease_seconds: how long a grant holds without a heartbeat of the worker; None for the queue's.
            hints: what earlier calls of the same manager have swept; None: the oldest jobs are granted like any others.

        Raises:
            InvalidInput: `lease_seconds` is out of range.
        """

        def granted(transaction: Transaction) -> int:
            workers = transaction.run("wanting_workers", {"queue": queue})
            return sum(
                self._grant(transaction, queue, lease_seconds, hints or HeadHints(), *worker) for worker in workers
            )

        return despite_odd_jobs(self.database, queue, lambda: self.database.transact(granted))

    def register_demand(self, queue: str, worker: str, wanted: int | None, *, seconds: float) -> None:
        """Register that a worker is there, and how many jobs it wants, for the managers of its queue.

        Args:
            queue: its name.
            worker: the worker's name.
            wanted: how many jobs; None: as many as it wanted before.
            seconds: how long this holds.
        """
        demand = {"queue": queue, "worker": worker, "wanted": wanted, "seconds": seconds}
        self.database.run("register_demand", demand)

    def take_assigned(self, queue: str, worker: str, *, limit: int) -> list[ClaimedJob]:
        """Take up to `limit` jobs that managers granted to a worker, under the leases that they were granted with."""
        rows = self.database.run("take_assigned", {"queue": queue, "worker": worker, "limit": limit})
        return [ClaimedJob._make((*row, queue)) for row in rows]

    def withdraw_worker(self, queue: str, worker: str) -> None:
        """Withdraw a worker: managers grant it nothing any more."""
        self.database.run("withdraw_worker", {"queue": queue, "worker": worker})

    def _grant(
        self,
        transaction: Transaction,
        queue: str,
        lease_seconds: float | None,
        hints: HeadHints,
        worker: str,
        wanted: int,
    ) -> int:
        limit = min(wanted, MAX_BATCH)
        request = ClaimRequest(queue, limit, worker=worker, lease_seconds=lease_seconds, hints=hints).checked()
        jobs = self._claims.claim_within(transaction, request)
        if jobs:
            _deliver(transaction, queue, worker, jobs)
        return len(jobs)


def _deliver(executor: Executor, queue: str, worker: str, jobs: Sequence[ClaimedJob]) -> None:
    """Write granted jobs to the table from which the worker takes them."""
    executor.run(
        "deliver_grants",
        {
            "queue": queue,
            "worker": worker,
            "ids": [job.id for job in jobs],
            "lease_nos": [job.lease_no for job in jobs],
            "alone": any(job.alone for job in jobs),
        },
    )
