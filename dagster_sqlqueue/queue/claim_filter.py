"""Claim only some of a queue's jobs, by tags and payload, within a bound on the jobs read."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from dagster_sqlqueue.db.executors import Executor, Row
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.payload.storable import unstorable_text

_Place: TypeAlias = tuple[int, int, Any, UUID]
"""Bucket, priority, available_at and id of a job."""


class ClaimFilter:
    """Which jobs a consumer takes.

    A claim reads no more than `scan` due jobs; what it did not reach, the next claim with the same object reads,
    and after the last job it begins again. So give one consumer one filter object for its life.

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
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise InvalidInput(f"the filter's tags are {tags!r}; give a sequence of texts")
        for tag in tags:
            if problem := unstorable_text(tag):
                raise InvalidInput(f"the filter's tag {tag!r} {problem}; no job has it")
        if not 1 <= scan <= 1_000_000:
            raise InvalidInput(f"the filter's scan is {scan}; it must be 1 to 1,000,000 jobs a claim")
        self.tags = list(tags)
        self.payload = serialization.object_text("the filter", payload)
        self.scan = scan
        self._after: _Place | None = None
        self._found = False

    def __repr__(self) -> str:
        return f"ClaimFilter(tags={self.tags}, payload={self.payload}, scan={self.scan})"

    def pick(self, executor: Executor, settings: QueueSettings, buckets: Sequence[int], limit: int) -> Sequence[Row]:
        """Lock the next jobs that fit, for a grant in the same transaction."""
        wanted = limit
        while True:
            ids, end = self._scan(executor, settings, buckets, wanted)
            rows = executor.run("pick_ids", {"ids": ids, "limit": limit}) if ids else []
            if rows or len(ids) < wanted:
                break
            # Others hold all that was found so far, and there may be more behind it.
            wanted *= 4
        if len(ids) < wanted:
            self._after = end
        self._found = bool(rows) or (self._found and self._after is not None)
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
            ids, fresh._after = fresh._scan(executor, settings, buckets, 1)
            if ids or fresh._after is None or not to_the_end:
                return bool(ids)

    def _scan(
        self, executor: Executor, settings: QueueSettings, buckets: Sequence[int], limit: int
    ) -> tuple[list[UUID], _Place | None]:
        """Return the next jobs that fit, and where the scan stopped at its bound; None: it reached the end."""
        bucket, priority, available_at, job = self._after or (None, None, None, None)
        ids, scanned, *last = executor.run(
            "scan_fitting",
            {
                "queue": settings.name,
                "revision": settings.revision,
                "buckets": sorted(buckets),
                "tags": self.tags,
                "payload": self.payload,
                "scan": self.scan,
                "limit": limit,
                "after_bucket": bucket,
                "after_priority": priority,
                "after_at": available_at,
                "after_id": job,
            },
        )[0]
        return ids, (last[0], last[1], last[2], last[3]) if scanned >= self.scan else None

    @property
    def unfinished(self) -> bool:
        """Whether "nothing found" does not mean yet that nothing is there: the last claim stopped at its bound, or the
        scan that it ended had found something.
        """
        return self._after is not None or self._found
