"""What a worker has done so far, and what happens to it: for whoever shows it."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

from dagster_sqlqueue.settling import DrainSummary

Tell: TypeAlias = Callable[..., None]
"""Called with the name of an event and facts about it as JSON values; from any thread."""

COUNTED = tuple(field.name for field in fields(DrainSummary) if field.name != "seconds")
"""The counts that can be added up, of several processes too."""


@dataclass(slots=True)
class Figures:
    """What was done for one queue.

    Attributes:
        queue: its name.
        counts: as in `DrainSummary`.
        last_error: the first line of what a handler raised or gave as its reason last; None: nothing.
    """

    queue: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    last_error: str | None = None

    @property
    def handled(self) -> int:
        """Jobs whose outcome was accepted."""
        return sum(self.counts[name] for name in ("succeeded", "retried", "snoozed", "failed", "held", "cancelled"))

    @classmethod
    def of(cls, queue: str, summary: DrainSummary, last_error: str | None) -> "Figures":
        """The figures of one consumer."""
        counts = asdict(summary)
        return cls(queue, {name: counts[name] for name in COUNTED}, last_error)


def added(parts: Iterable[list[Figures]], queues: Iterable[str]) -> list[Figures]:
    """The figures of several processes in one, in the order of the queues."""
    sums = {queue: Figures(queue) for queue in queues}
    for part in parts:
        for figures in part:
            into = sums[figures.queue]
            for name in COUNTED:
                into.counts[name] += figures.counts[name]
            into.last_error = figures.last_error or into.last_error
    return list(sums.values())


def first_line(text: Any) -> str:
    """The first line of an error, for a line of a display."""
    lines = str(text).strip().splitlines()
    return lines[0][:500] if lines else ""
