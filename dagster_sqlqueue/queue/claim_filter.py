"""Claim only some of a queue's jobs, by tags and payload, within a bound on the jobs read."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.payload.storable import unstorable_text
from dagster_sqlqueue.queue.head_hints import SWEEP_SECONDS


@dataclass(frozen=True, slots=True)
class _Place:
    """The job up to which none of its bucket fits; when that search began, and how long the scans took that came so far."""

    priority: int
    available_at: Any
    job: UUID
    begun_at: float
    seconds: float

    def serves(self, now: float) -> bool:
        """Whether the next scan may begin behind it: for as long as any head hint, or twice as long as it took to come here,
        where so many jobs do not fit that this is longer.
        """
        return now - self.begun_at < max(SWEEP_SECONDS, 2 * self.seconds)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a scan returns: the jobs that fit, the bucket of the last of them, and where it stopped at its bound."""

    ids: list[UUID]
    last_bucket: int | None
    bucket: int | None
    priority: int
    available_at: Any
    job: UUID


class ClaimFilter:
    """Which jobs a consumer takes.

    A claim reads no more than `scan` due jobs; what it did not reach, the next claims with the same object read, one bucket
    after the other, and after the last one they begin again. So give one consumer one filter object for its life.

    Args:
        tags: the job has all of these.
        payload: the payload contains this JSON, as `@>` of PostgreSQL sees it; a mapping, or its text.
        scan: the most due jobs that one claim reads.

    Raises:
        InvalidInput: the filter is not usable.
    """

    def __init__(
        self, *, tags: Sequence[str] = (), payload: Mapping[str, Any] | str | None = None, scan: int = 10_000
    ) -> None:
        # An iterator would be at its end after the check, and the filter take every job.
        usable = (
            isinstance(tags, Collection) and not isinstance(tags, str) and all(isinstance(tag, str) for tag in tags)
        )
        if not usable:
            raise InvalidInput(f"the filter's tags are {tags!r}; give a sequence of texts")
        for tag in tags:
            if problem := unstorable_text(tag):
                raise InvalidInput(f"the filter's tag {tag!r} {problem}; no job has it")
        if not is_whole(scan, 1, 1_000_000):
            raise InvalidInput(f"the filter's scan is {scan!r}; it must be 1 to 1,000,000 jobs a claim")
        self.tags = list(tags)
        self.payload = serialization.object_text("the filter", payload)
        self.scan = scan
        self._order: list[int] = []
        self._places: dict[int, _Place] = {}
        self._stopped_in: int | None = None
        self._skipped: set[int] = set()
        self._unread: set[int] = set()
        self._found = False

    def __repr__(self) -> str:
        return f"ClaimFilter(tags={self.tags}, payload={self.payload}, scan={self.scan})"

    def pick(self, executor: Executor, settings: QueueSettings, buckets: Sequence[int], limit: int) -> Sequence[Row]:
        """Lock the next jobs that fit, for a grant in the same transaction.

        Args:
            executor: the transaction.
            settings: the queue's.
            buckets: where to search. Each has its turn: a claim begins behind the bucket that has filled the one before.
            limit: the most jobs to lock.
        """
        self._arrange(buckets)
        wanted, begun_at = limit, time.monotonic()
        while True:
            found = self._scan(executor, settings, wanted)
            rows = executor.run("pick_ids", {"ids": found.ids, "limit": limit}) if found.ids else []
            if rows or len(found.ids) < wanted:
                break
            # Others hold all that was found so far, and there may be more behind it.
            wanted *= 4
        self._go_on(found, begun_at, filled=len(found.ids) >= wanted)
        self._found = bool(rows)
        return rows

    def finds(
        self, executor: Executor, settings: QueueSettings, buckets: Sequence[int], *, to_the_end: bool = False
    ) -> bool:
        """Return whether one of the next due jobs fits. Locks nothing, and remembers nothing.

        Args:
            executor: where the queue is.
            settings: the queue's.
            buckets: of which jobs.
            to_the_end: of all due jobs, not only of as many as one claim reads.
        """
        fresh = ClaimFilter(tags=self.tags, payload=self.payload, scan=self.scan)
        while True:
            fresh._arrange(buckets)
            found = fresh._scan(executor, settings, 1)
            if found.ids:
                return True
            fresh._go_on(found, 0.0, filled=False)
            if not (to_the_end and fresh.unfinished):
                return False

    @property
    def unfinished(self) -> bool:
        """Whether "nothing found" does not mean yet that nothing is there: of some buckets not all was read, or the last
        claim has found something.
        """
        return bool(self._unread) or self._found

    def sweep_next(self) -> None:
        """Have the next claims search each bucket from its very beginning."""
        self._places = {bucket: replace(place, begun_at=-math.inf) for bucket, place in self._places.items()}

    def _arrange(self, buckets: Sequence[int]) -> None:
        if set(self._order) != set(buckets):
            self._order, self._unread = list(dict.fromkeys(buckets)), set()
        self._unread = self._unread or set(buckets)
        now = time.monotonic()
        # Where a scan was stopped it goes on: else it would never come behind more jobs than its bound.
        self._places = {
            bucket: place
            for bucket, place in self._places.items()
            if bucket in self._order and (bucket == self._stopped_in or place.serves(now))
        }
        self._skipped &= self._places.keys()

    def _scan(self, executor: Executor, settings: QueueSettings, limit: int) -> _Found:
        places = [self._places.get(bucket) for bucket in self._order]
        row = executor.run(
            "scan_fitting",
            {
                "queue": settings.name,
                "revision": settings.revision,
                "buckets": self._order,
                "tags": self.tags,
                "payload": self.payload,
                "scan": self.scan,
                "limit": limit,
                "after_priorities": [place and place.priority for place in places],
                "after_ats": [place and place.available_at for place in places],
                "after_ids": [place and place.job for place in places],
            },
        )[0]
        return _Found(*row)

    def _go_on(self, found: _Found, begun_at: float, *, filled: bool) -> None:
        """Note how far a scan came.

        Args:
            found: its outcome.
            begun_at: the moment of `time.monotonic` before it.
            filled: whether it ended because it had found enough.
        """
        last = found.last_bucket if filled else found.bucket
        reached = self._order if last is None else self._order[: self._order.index(last)]
        self._unread.difference_update(set(reached) - self._skipped)
        self._skipped.difference_update(reached)
        for bucket in reached:
            self._places.pop(bucket, None)
        self._stopped_in = None if filled else last
        if last is None:
            return
        ahead = len(reached) + filled
        self._order = [*self._order[ahead:], *self._order[:ahead]]
        if filled:
            # Nothing before the place where its bucket began fits: it is kept for the bucket's next turn.
            self._skipped, self._unread = set(self._places), set(self._order)
            return
        seconds, before = time.monotonic() - begun_at, self._places.get(last)
        if before is not None:
            begun_at, seconds = before.begun_at, before.seconds + seconds
        self._places[last] = _Place(found.priority, found.available_at, found.job, begun_at, seconds)


def check_filter(filter: object) -> None:
    """Raise an error if what was given as a filter is neither one nor None.

    Raises:
        InvalidInput: the message says what to give.
    """
    if not (filter is None or isinstance(filter, ClaimFilter)):
        raise InvalidInput(f"filter is a {type(filter).__name__}; give a ClaimFilter(payload=…, tags=…), or None")
