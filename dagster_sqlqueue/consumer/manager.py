"""Grant jobs to workers: managers, for queues of the strategy `assign`.

Source: the manager/worker article. A manager lists what is executable (queued, or with a lease that ran out), shuffles, and
grants each job by compare-and-set; two managers run at once, and either may die: what a dead one had granted and not handed
over is executable again when its lease ends. Here the compare value is the lease number, not a time of last update, which
repeats where a clock is coarse.

A `Consumer` on such a queue needs no manager: it grants to itself. With managers, workers (`AssignedSource`) only ever take
what was granted to them, so that the managers alone decide which worker gets which job.
"""

import logging
import threading
from types import TracebackType
from typing import Protocol, Self

from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import Strategy
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.claim_request import MAX_BATCH
from dagster_sqlqueue.queue.head_hints import HeadHints

logger = logging.getLogger("dagster_sqlqueue")

_POLL_SECONDS = 0.1
_ALIVE_SECONDS = 30.0


class Manager:
    """Grants the jobs of one queue to the workers that ask for some. Run two for availability.

    Args:
        queue: where the queue is.
        name: the queue; its strategy is `assign`.
        lease_seconds: how long a grant holds without a heartbeat of the worker; None for the queue's.

    Attributes:
        hints: which buckets it has swept.

    Raises:
        UnknownQueue: there is no such queue.
        InvalidInput: its strategy is another one.
    """

    def __init__(self, queue: SqlQueue, name: str, *, lease_seconds: float | None = None) -> None:
        strategy = queue.settings(name).strategy
        if strategy is not Strategy.ASSIGN:
            raise InvalidInput(
                f"queue {name!r} has the strategy {str(strategy)!r}; a manager works for queues of the strategy 'assign'"
            )
        self._leases = queue.leases
        self._name = name
        self._lease_seconds = lease_seconds
        self.hints = HeadHints()

    def assign(self) -> int:
        """Grant jobs to every worker that wants some, once. Returns the number of jobs."""
        return self._leases.assign(self._name, lease_seconds=self._lease_seconds, hints=self.hints)

    def run(self, stopping: threading.Event, *, poll_seconds: float = _POLL_SECONDS) -> int:
        """Assign until the event is set. Returns the number of jobs granted; a database that is away is waited for."""
        granted = 0
        while not stopping.is_set():
            try:
                now = self.assign()
            except DatabaseUnavailable as error:
                logger.warning("manager of %s: %s", self._name, error)
                now = 0
            granted += now
            if not now:
                stopping.wait(poll_seconds)
        return granted


class Source(Protocol):
    """Where a consumer gets jobs from that it does not claim by itself."""

    def take(self, limit: int) -> list[ClaimedJob]:
        """Up to `limit` jobs under a lease; none: there are none now."""
        ...


class AssignedSource:
    """What managers grant to one worker: the `source` of a `Consumer` that takes nothing by itself.

    Args:
        queue: where the queue is.
        name: the queue.
        worker: the worker's name, unique for each start; shown with the jobs that it holds.

    Raises:
        UnknownQueue: there is no such queue.
    """

    def __init__(self, queue: SqlQueue, name: str, worker: str) -> None:
        queue.catalog.check_exists(name)
        self._leases = queue.leases
        self._name = name
        self._worker = worker
        self._asked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ask for nothing more, and give back what was granted and not taken."""
        self._leases.withdraw_worker(self._name, self._worker)
        self._leases.release(self._leases.take_assigned(self._name, self._worker, limit=MAX_BATCH))

    def take(self, limit: int) -> list[ClaimedJob]:
        """Up to `limit` jobs that were granted; none yet: the demand has been registered for the managers."""
        jobs = self._leases.take_assigned(self._name, self._worker, limit=limit)
        wanted = None if self._asked and not jobs else limit
        self._leases.register_demand(self._name, self._worker, wanted, seconds=_ALIVE_SECONDS)
        self._asked = True
        return jobs
