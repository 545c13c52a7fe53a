"""The counts and events of a worker, for its output and metrics."""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from dagster_sqlqueue.consumer.settlement import HANDLER_BOUNDS, DrainSummary

Report: TypeAlias = Callable[..., None]
"""Called with the name of an event and facts about it as JSON values; from any thread."""

COUNTED = tuple(field.name for field in fields(DrainSummary) if field.name != "seconds")
"""The counts that can be added up, of several processes too."""


@dataclass(slots=True)
class WorkerStats:
    """What was done for one queue.

    Attributes:
        queue: its name.
        counts: as in `DrainSummary`.
        last_error: the first line of what a handler raised or gave as its reason last, or of why its job was rejected for
            what it returned; None: nothing.
        in_flight: jobs in a handler.
        handler_seconds: how long handlers took for jobs, all together.
        spread: how many jobs took up to each of `HANDLER_BOUNDS` and longer than the one before it; last, those that took
            longer than all of them.
    """

    queue: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    last_error: str | None = None
    in_flight: int = 0
    handler_seconds: float = 0.0
    spread: list[int] = field(default_factory=lambda: [0] * (len(HANDLER_BOUNDS) + 1))

    @property
    def handled(self) -> int:
        """Jobs whose outcome was accepted."""
        return sum(self.counts[name] for name in ("succeeded", "retried", "snoozed", "failed", "held", "cancelled"))

    @classmethod
    def of(cls, queue: str, summary: DrainSummary, last_error: str | None, times: "HandlerTimes") -> "WorkerStats":
        """Return the stats of one consumer."""
        counts = {name: getattr(summary, name) for name in COUNTED}
        return cls(queue, counts, last_error, *times.now())

    def landed(self) -> "WorkerStats":
        """Return the same for a process that has ended."""
        return replace(self, in_flight=0)


class HandlerTimes:
    """How long one consumer's handler took for each of its jobs; for handlers in any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.in_flight = 0
        self.seconds = 0.0
        self.spread = [0] * (len(HANDLER_BOUNDS) + 1)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the block, which handles one job."""
        began = time.perf_counter()
        with self._lock:
            self.in_flight += 1
        try:
            yield
        finally:
            took = time.perf_counter() - began
            with self._lock:
                self.in_flight -= 1
                self.seconds += took
                self.spread[bisect_left(HANDLER_BOUNDS, took)] += 1

    def now(self) -> tuple[int, float, list[int]]:
        """Return the jobs in flight, the seconds of all jobs, and their spread, all of one moment."""
        with self._lock:
            return self.in_flight, self.seconds, list(self.spread)


def added(parts: Iterable[list[WorkerStats]], queues: Iterable[str]) -> list[WorkerStats]:
    """Add up the stats of several processes, in the order of the queues."""
    sums = {queue: WorkerStats(queue) for queue in queues}
    for part in parts:
        for stats in part:
            into = sums[stats.queue]
            for name in COUNTED:
                into.counts[name] += stats.counts[name]
            into.in_flight += stats.in_flight
            into.handler_seconds += stats.handler_seconds
            into.spread = [sum(pair) for pair in zip(into.spread, stats.spread, strict=True)]
            into.last_error = stats.last_error or into.last_error
    return list(sums.values())


def first_line(text: Any) -> str:
    """Return the first line of an error, for a line of a display."""
    lines = str(text).strip().splitlines()
    return lines[0][:500] if lines else ""
