"""The head hint: where a claim begins its search, so that it need not step over the dead rows at the head.

Dead rows stay in the index while any old transaction could still see them. Every claim from the very beginning steps over
them, and a queue that lives on while a backup runs gets slower by the minute; measured, to a third of its rate. A hint is
only ever an optimisation: every few seconds a claim sweeps each bucket without one, and finds what was committed late.
A claim reaches as many buckets as it takes to fill it, so each has a time of its own at which it was swept. A strategy
without order takes the oldest jobs of a bucket that it sweeps: else they would wait for the luck of being chosen.

Source: the executor hint of the bucketed FIFO queue published for YugabyteDB, which takes the time of the last item that
was processed. Here it is the first job of the last batch, by due time and id, for each bucket and priority by itself: jobs
that one transaction enqueued are all due at the same moment.
"""

import math
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy

SWEEP_SECONDS = 5.0
_FRESH_SECONDS = 1.0
_BEGINNING = ("NULL", "NULL")
FROM_THE_HEAD = (Strategy.ROUND_ROBIN, Strategy.FIFO, Strategy.TOKEN)
"""Only where a batch is the oldest that was due, nothing is older than it."""
_ANYWHERE = (Strategy.FANOUT, Strategy.TOKEN)
"""A search of all buckets by these begins at a random one. Where buckets are given, so is their order."""
_UNORDERED = (Strategy.FANOUT, Strategy.ASSIGN)
"""These take any of a bucket's jobs, and its oldest ones when it is swept."""


def buckets_of(settings: QueueSettings, buckets: Sequence[int] | None) -> list[int]:
    """Return the buckets to search, in their order: these; for None all that the queue has."""
    return list(range(settings.claim_buckets) if buckets is None else buckets)


class HeadHints:
    """What one consumer remembers between its claims.

    Args:
        sweep_seconds: how often a claim searches a bucket from its very beginning.

    Attributes:
        swept: whether the last claim searched all its buckets from the very beginning: only then "nothing found" means
            that nothing is there.
    """

    def __init__(self, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._sweep_seconds = sweep_seconds
        self._swept_at: dict[int, float] = {}
        self._asked: Sequence[int] = ()
        self._asked_at = 0.0
        self._starts: dict[int, list[tuple[str, str]]] = {}
        self._texts: dict[int, str] = {}
        self._doubted = False
        self.swept = False

    @property
    def fresh(self) -> bool:
        """Whether the last buckets that were asked for were all swept so recently that polling need not repeat it."""
        if self._doubted or not self._asked:
            return False
        return not any(self._over(time.monotonic() - _FRESH_SECONDS, self._asked))

    def doubt(self) -> None:
        """Note that there is a job, so that a claim that finds none is not believed until all has been swept again."""
        self._doubted = True

    def sweep_next(self) -> None:
        """Have the next claims search each bucket from its very beginning."""
        self._swept_at = dict.fromkeys(self._swept_at, -math.inf)

    def search(self, settings: QueueSettings, buckets: Sequence[int] | None) -> dict[str, Any]:
        """Return the parameters `buckets`, `hints` and `from_head` of a claim from these buckets; None: from all. Call
        `found` with what it reached.
        """
        order = buckets_of(settings, buckets)
        if buckets is None and settings.strategy in _ANYWHERE:
            start = random.randrange(len(order))
            order = order[start:] + order[:start]
        return {"buckets": order, "hints": self.array(order), "from_head": self._from_head(settings, order)}

    def array(self, buckets: Sequence[int]) -> list[str | None]:
        """Return the parameter `hints` of a claim from these buckets, in this order."""
        self._asked, self._asked_at = buckets, time.monotonic()
        over = self._over(self._asked_at - self._sweep_seconds, buckets)
        self.swept = all(over)
        if self.swept:
            self._doubted = False
            return []
        return [None if old else self._texts.get(bucket) for bucket, old in zip(buckets, over, strict=True)]

    def took(
        self,
        strategy: Strategy,
        jobs: Sequence[ClaimedJob],
        *,
        filled: bool | None,
        asked: Sequence[int] | None = None,
        asked_at: float | None = None,
    ) -> None:
        """Note how far a claim came, and where its jobs began in each bucket.

        Args:
            strategy: the queue's.
            jobs: those that it took, in the order in which they were due.
            filled: as for `found`; None: how far it came is noted already, or not known.
            asked: as for `found`.
            asked_at: as for `found`.
        """
        if filled is not None:
            self.found(strategy, [job.bucket for job in jobs], filled=filled, asked=asked, asked_at=asked_at)
        if strategy in FROM_THE_HEAD:
            self.note(jobs)

    def found(
        self,
        strategy: Strategy,
        buckets: Collection[int],
        *,
        filled: bool,
        asked: Sequence[int] | None = None,
        asked_at: float | None = None,
    ) -> None:
        """Note how far a claim came, if it took something.

        Args:
            strategy: the queue's.
            buckets: those of the jobs that it took.
            filled: whether these are as many as it asked for, so that there may be more.
            asked: its buckets, in their order; None: those of the last claim.
            asked_at: the moment of `time.monotonic` at which it asked; None: that of the last claim.
        """
        if not buckets:
            return
        if not filled:
            self.saw(self._asked if asked is None else asked, asked_at=asked_at)
        elif strategy is Strategy.ASSIGN:
            # Those that were to be swept came first, one after the other, and then jobs of any others.
            over = self._to_sweep(self._asked if asked is None else asked, asked_at)
            if set(buckets) <= set(over):
                self.saw_up_to(buckets, asked=over, asked_at=asked_at)
            else:
                self.saw(over, asked_at=asked_at)
        elif strategy is Strategy.FIFO:
            # It reads all heads and takes the oldest: where it took none, it is not known where the next one begins.
            self.saw(buckets, asked_at=asked_at)
        else:
            self.saw_up_to(buckets, asked=asked, asked_at=asked_at)

    def saw(self, buckets: Iterable[int], *, asked_at: float | None = None) -> None:
        """Note that the last claim read the heads of these buckets; or one that had asked at that moment."""
        at = self._asked_at if asked_at is None else asked_at
        for bucket in buckets:
            if at - self._swept_at.get(bucket, -math.inf) >= self._sweep_seconds:
                self._swept_at[bucket] = at

    def saw_all(self) -> None:
        """Note that the last claim came to the end of all its buckets."""
        self.saw(self._asked)

    def saw_up_to(
        self, found: Collection[int], *, asked: Sequence[int] | None = None, asked_at: float | None = None
    ) -> None:
        """Note that a claim went through its buckets one after the other, up to the last one in which it found something.

        Args:
            found: the buckets of the jobs that it found.
            asked: its buckets, in their order; None: those of the last claim.
            asked_at: the moment of `time.monotonic` at which it asked; None: that of the last claim.
        """
        asked, among = self._asked if asked is None else asked, set(found)
        last = max((place for place, bucket in enumerate(asked) if bucket in among), default=-1)
        self.saw(asked[: last + 1], asked_at=asked_at)

    def _from_head(self, settings: QueueSettings, order: Sequence[int]) -> list[int]:
        """Of the buckets of the last claim those of which the oldest jobs are to be taken, by a strategy without order."""
        # Who remembers nothing would take the oldest at each claim, as all others who do not.
        unordered = settings.strategy in _UNORDERED and self._swept_at
        return self._to_sweep(order, None) if unordered else []

    def _to_sweep(self, asked: Sequence[int], asked_at: float | None) -> list[int]:
        """Of these buckets those that a claim was to sweep that asked at that moment; None: the last claim."""
        at = self._asked_at if asked_at is None else asked_at
        over = self._over(at - self._sweep_seconds, asked)
        return [bucket for bucket, old in zip(asked, over, strict=True) if old]

    def _over(self, moment: float, buckets: Sequence[int]) -> list[bool]:
        """Of each bucket whether it was swept at that moment the last time, or before."""
        return [self._swept_at.get(bucket, -math.inf) <= moment for bucket in buckets]

    def know(self, heads: Mapping[int, str]) -> None:
        """Take what the database knows of the buckets' heads: it serves where no claim of this consumer began."""
        known = {bucket: "{" + ",".join([moment] * 10) + "}" for bucket, moment in heads.items()}
        self._texts = known | {bucket: self._texts[bucket] for bucket in self._starts}

    def note(self, jobs: Sequence[ClaimedJob]) -> None:
        """Remember where the jobs of a claim began in each bucket and priority.

        Args:
            jobs: in the order in which they were due.
        """
        first = {(job.bucket, job.priority): job for job in reversed(jobs)}
        for (bucket, priority), job in first.items():
            starts = self._starts.setdefault(bucket, [_BEGINNING] * 10)
            starts[9 - priority] = (job.due_at.isoformat(), job.id.hex)
            self._texts[bucket] = "{" + ",".join(part for parts in zip(*starts, strict=True) for part in parts) + "}"
