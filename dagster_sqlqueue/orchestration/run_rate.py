"""The number of jobs for one run, by the measured rate of the latest runs."""

from dataclasses import dataclass

from dagster_sqlqueue.consumer.batch_size import MOST_MEASURED
from dagster_sqlqueue.orchestration.run_claims import run_worker
from dagster_sqlqueue.queue import SqlQueue

MEASURED_SECONDS = 10.0
"""How often the sensor measures while runs work the queue off."""
USUAL_JOBS = 5_000
"""The jobs for one run of a queue without a measurement."""
MOST_JOBS = 10_000
"""The most jobs for one run: a tick counts the backlog up to as many as all of its runs are worth."""

_RECENT_SECONDS = 3_600.0
_LATEST = 1_000


@dataclass(frozen=True, slots=True)
class RunRate:
    """The rate of a queue's runs.

    Attributes:
        jobs: the number of succeeded jobs.
        seconds: for how long runs worked on them, all runs together, without the time in which they waited for jobs.
    """

    jobs: int
    seconds: float

    @property
    def per_second(self) -> float:
        """How many jobs one run ends in a second."""
        return self.jobs / self.seconds

    def __str__(self) -> str:
        return f"{self.per_second:,.{1 if self.per_second < 100 else 0}f} jobs a second in a run"


def measured(queue: SqlQueue, name: str, *, batch_size: int | None) -> RunRate | None:
    """Measure the rate of the queue's runs by the latest jobs that they ended within an hour, live runs included; None: they
    ended none.

    Args:
        queue: where the queue is.
        name: the queue's.
        batch_size: of the runs' claims; None: by the handler's time. Jobs that were claimed together may have ended
            together, and one such batch does not give the time between two.
    """
    limit = max(_LATEST, 2 * (MOST_MEASURED if batch_size is None else batch_size) + 1)
    wanted = {"queue": name, "runs": run_worker(""), "seconds": _RECENT_SECONDS, "limit": limit}
    ((jobs, seconds),) = queue.database.run("run_rate", wanted)
    return RunRate(jobs, round(seconds, 3)) if jobs and seconds >= 0.001 else None


def jobs_in(rate: RunRate | None, seconds: float) -> int:
    """How many jobs a run ends in that time, 1 to `MOST_JOBS`; `USUAL_JOBS` where nothing was measured."""
    return USUAL_JOBS if rate is None else min(max(round(rate.per_second * seconds), 1), MOST_JOBS)
