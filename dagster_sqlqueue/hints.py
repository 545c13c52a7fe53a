"""The head hint: where a claim begins to look, so that it need not step over the dead rows at the head.

Dead rows stay in the index while any old transaction could still see them. Every claim from the very beginning steps over
them, and a queue that lives on while a backup runs gets slower by the minute; measured, to a third of its rate. A hint is
only ever an optimisation: every few seconds a claim sweeps without one, and finds what was committed late.

Source: the executor hint of the bucketed FIFO queue published for YugabyteDB, which takes the time of the last item that
was processed. Here it is the first job of the last batch, by due time and id, for each bucket and priority by itself: jobs
that one transaction put on the queue are all due at the same moment.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from dagster_sqlqueue.model import ClaimedJob

SWEEP_SECONDS = 5.0
_FRESH_SECONDS = 1.0
_BEGINNING = ("-infinity", str(UUID(int=0)))
_NO_MOMENTS = ",".join([_BEGINNING[0]] * 10)
_NO_IDS = ",".join([_BEGINNING[1]] * 10)
_FROM_THE_BEGINNING = "{}"


class HeadHints:
    """What one consumer remembers between its claims.

    Args:
        sweep_seconds: how often a claim looks from the very beginning.
    """

    def __init__(self, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._sweep_seconds = sweep_seconds
        self._swept_at: float | None = None
        self._starts: dict[int, list[tuple[str, str]]] = {}
        self._known: dict[int, str] = {}
        self.swept = False
        """Whether the last claim looked from the very beginning: only then "nothing found" means that nothing is there."""

    @property
    def fresh(self) -> bool:
        """Whether the last look from the very beginning is so recent that polling need not repeat it."""
        return self._swept_at is not None and time.monotonic() - self._swept_at < _FRESH_SECONDS

    def sweep_next(self) -> None:
        """Have the next claim look from the very beginning."""
        self._swept_at = None

    def array(self, buckets: Sequence[int]) -> str:
        """The parameter `hints` of a claim from these buckets."""
        self.swept = self._swept_at is None or time.monotonic() - self._swept_at >= self._sweep_seconds
        if self.swept:
            self._swept_at = time.monotonic()
            return _FROM_THE_BEGINNING
        moments = (self._moments(bucket) for bucket in buckets)
        ids = (_ids(self._starts.get(bucket)) for bucket in buckets)
        return "{" + ",".join((*moments, *ids)) + "}"

    def know(self, heads: Mapping[int, str]) -> None:
        """Take what the database knows of the buckets' heads: it serves where no claim of this consumer began."""
        self._known = dict(heads)

    def _moments(self, bucket: int) -> str:
        if starts := self._starts.get(bucket):
            return ",".join(moment for moment, _ in starts)
        return ",".join([self._known[bucket]] * 10) if bucket in self._known else _NO_MOMENTS

    def note(self, jobs: Sequence[ClaimedJob]) -> None:
        """Remember where the jobs of a claim began, in each bucket and priority."""
        first: dict[tuple[int, int], tuple[datetime, UUID]] = {}
        for job in jobs:
            lane, place = (job.bucket, job.priority), (job.due_at, job.id)
            if lane not in first or place < first[lane]:
                first[lane] = place
        for (bucket, priority), (due_at, job_id) in first.items():
            starts = self._starts.setdefault(bucket, [_BEGINNING] * 10)
            starts[9 - priority] = (due_at.isoformat(), str(job_id))


def _ids(starts: Sequence[tuple[str, str]] | None) -> str:
    return ",".join(job_id for _, job_id in starts) if starts else _NO_IDS
