"""How many jobs a run is worth, from how fast the latest runs ended theirs."""

from dataclasses import dataclass

from dagster_sqlqueue.consumer.batch_size import MOST_MEASURED
from dagster_sqlqueue.orchestration.giving_back import run_worker
from dagster_sqlqueue.queue import SqlQueue

MEASURED_SECONDS = 10.0
"""While a queue is worked off it is measured this often."""
USUAL_JOBS = 5_000
"""For a run of a queue of which nothing was measured yet."""
MOST_JOBS = 10_000
"""So many at most: a tick counts the backlog up to what is worth as many runs as there may be."""

_LOOKED_BACK_SECONDS = 3_600.0
_LATEST = 1_000


@dataclass(frozen=True, slots=True)
class RunRate:
    """What runs ended of a queue.

    Attributes:
        jobs: that succeeded.
        seconds: for which runs were at them, of all runs together; the time in which they waited for jobs does not count.
    """

    jobs: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Jobs that one run ends in a second."""
        return self.jobs / self.seconds

    def __str__(self) -> str:
        return f"{self.per_second:,.{1 if self.per_second < 100 else 0}f} jobs a second in a run"


def measured(queue: SqlQueue, name: str, *, batch_size: int | None) -> RunRate | None:
    """The rate of the queue's runs by the latest jobs that they ended within an hour, also of runs that are not over; None:
    there are none.

    Args:
        queue: where the queue is.
        name: the queue's.
        batch_size: of the runs' claims; None: by the handler's time. Jobs that were claimed together may have ended
            together, and one such batch says nothing about the time between two.
    """
    limit = max(_LATEST, 2 * (MOST_MEASURED if batch_size is None else batch_size) + 1)
    wanted = {"queue": name, "runs": run_worker(""), "seconds": _LOOKED_BACK_SECONDS, "limit": limit}
    ((jobs, seconds),) = queue.database.run("run_rate", wanted)
    return RunRate(jobs, round(seconds, 3)) if jobs and seconds >= 0.001 else None


def jobs_in(rate: RunRate | None, seconds: float) -> int:
    """How many jobs a run ends in that time, 1 to `MOST_JOBS`; `USUAL_JOBS` where nothing was measured."""
    return USUAL_JOBS if rate is None else min(max(round(rate.per_second * seconds), 1), MOST_JOBS)
