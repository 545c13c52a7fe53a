"""Where a consumer of the model remembers that its claims began."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tests.statemachine.jobs import ModelJob, Moment

Place: TypeAlias = tuple[Moment, UUID]
NIL = UUID(int=0)


@dataclass
class ModelHints:
    """For each bucket and priority the first job of the last claim there; and for buckets of which nothing is remembered,
    what the database knows. A claim that sweeps searches from the very beginning.
    """

    sweeps: bool = True
    starts: dict[tuple[int, int], Place] = field(default_factory=dict)
    known: dict[int, Place] = field(default_factory=dict)

    def fits(self, job: ModelJob) -> bool:
        """Whether a claim reads the job."""
        if self.sweeps:
            return True
        if job.bucket in {bucket for bucket, _ in self.starts}:
            start = self.starts.get((job.bucket, job.priority))
        else:
            start = self.known.get(job.bucket)
        return start is None or (job.at, job.id) >= start

    def note(self, taken: Sequence[tuple[int, int, Place]]) -> None:
        """Remember the first of each bucket and priority, of jobs in the order in which they were due."""
        for bucket, priority, place in reversed(taken):
            self.starts[bucket, priority] = place

    def know(self, heads: Mapping[int, Moment]) -> None:
        """Take what the database knows."""
        self.known = {bucket: (moment, NIL) for bucket, moment in heads.items()}


def places(jobs: Iterable[ModelJob], *, by_run_at: bool) -> list[tuple[int, int, Place]]:
    """Where these jobs are, before they are put under a lease. A claim that goes by a token knows when they were to run, and
    not when they became due.
    """
    if by_run_at:
        jobs = sorted(jobs, key=lambda job: (job.bucket, -job.priority, job.run_at, job.id))
    return [(job.bucket, job.priority, (job.run_at if by_run_at else job.at, job.id)) for job in jobs]
