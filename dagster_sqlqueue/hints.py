"""The head hint: where a claim begins to look, so that it need not step over the dead rows at the head.

Dead rows stay in the index while any old transaction could still see them. Every claim from the very beginning steps over
them, and a queue that lives on while a backup runs gets slower by the minute; measured, to a third of its rate. A hint is
only ever an optimisation: every few seconds a claim sweeps without one, and finds what was committed late.

Source: the executor hint of the bucketed FIFO queue published for YugabyteDB, which takes the time of the last item that
was processed. Here it is the due time of the first job of the last batch, for each bucket and priority by itself.
"""

import time
from collections.abc import Sequence
from datetime import datetime

from dagster_sqlqueue.model import ClaimedJob

SWEEP_SECONDS = 5.0
_FRESH_SECONDS = 1.0
_NONE = "-infinity"
_FROM_THE_BEGINNING = "{}"


class HeadHints:
    """What one consumer remembers between its claims.

    Args:
        sweep_seconds: how often a claim looks from the very beginning.
    """

    def __init__(self, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._sweep_seconds = sweep_seconds
        self._swept_at: float | None = None
        self._starts: dict[int, list[str]] = {}
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
        nothing = [_NONE] * 10
        return "{" + ",".join(",".join(self._starts.get(bucket, nothing)) for bucket in buckets) + "}"

    def note(self, jobs: Sequence[ClaimedJob]) -> None:
        """Remember where the jobs of a claim began, in each bucket and priority."""
        first: dict[tuple[int, int], datetime] = {}
        for job in jobs:
            lane = (job.bucket, job.priority)
            if lane not in first or job.due_at < first[lane]:
                first[lane] = job.due_at
        for (bucket, priority), due_at in first.items():
            self._starts.setdefault(bucket, [_NONE] * 10)[9 - priority] = due_at.isoformat()
