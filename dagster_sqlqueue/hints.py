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

from dagster_sqlqueue.model import ClaimedJob

SWEEP_SECONDS = 5.0
_FRESH_SECONDS = 1.0
_BEGINNING = ("NULL", "NULL")


class HeadHints:
    """What one consumer remembers between its claims.

    Args:
        sweep_seconds: how often a claim looks from the very beginning.
    """

    def __init__(self, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._sweep_seconds = sweep_seconds
        self._swept_at: float | None = None
        self._starts: dict[int, list[tuple[str, str]]] = {}
        self._texts: dict[int, str] = {}
        self.swept = False
        """Whether the last claim looked from the very beginning: only then "nothing found" means that nothing is there."""

    @property
    def fresh(self) -> bool:
        """Whether the last look from the very beginning is so recent that polling need not repeat it."""
        return self._swept_at is not None and time.monotonic() - self._swept_at < _FRESH_SECONDS

    def sweep_next(self) -> None:
        """Have the next claim look from the very beginning."""
        self._swept_at = None

    def array(self, buckets: Sequence[int]) -> list[str | None]:
        """The parameter `hints` of a claim from these buckets."""
        self.swept = self._swept_at is None or time.monotonic() - self._swept_at >= self._sweep_seconds
        if self.swept:
            self._swept_at = time.monotonic()
            return []
        return [self._texts.get(bucket) for bucket in buckets]

    def know(self, heads: Mapping[int, str]) -> None:
        """Take what the database knows of the buckets' heads: it serves where no claim of this consumer began."""
        known = {bucket: "{" + ",".join([moment] * 10) + "}" for bucket, moment in heads.items()}
        self._texts = known | {bucket: self._texts[bucket] for bucket in self._starts}

    def note(self, jobs: Sequence[ClaimedJob]) -> None:
        """Remember where the jobs of a claim, in the order in which they were due, began in each bucket and priority."""
        first = {(job.bucket, job.priority): job for job in reversed(jobs)}
        for (bucket, priority), job in first.items():
            starts = self._starts.setdefault(bucket, [_BEGINNING] * 10)
            starts[9 - priority] = (job.due_at.isoformat(), job.id.hex)
            self._texts[bucket] = "{" + ",".join(part for parts in zip(*starts, strict=True) for part in parts) + "}"
