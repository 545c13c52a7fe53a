"""What keeps a queue from being deleted, in words."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from dagster_sqlqueue.errors import QueueInUse

_MOST_COUNTED = 10_000
_UNKNOWN = "unknown"

IN_TRANSACTION: Final = "transaction"
"""The kind of obstacle that goes by itself: a transaction that is under way."""


class Obstacle(NamedTuple):
    """What is in the way of a deletion; a row of `delete_queue.sql`.

    Attributes:
        kind: what it is; of jobs, their state.
        number: how many there are, counted up to 10,000.
        named: the first of them; None where they are only counted.
    """

    kind: str
    number: int
    named: Sequence[str] | None


_JOBS = ("queued", "running", "held")
_OTHERS: dict[str, tuple[str, str]] = {
    "open batch": ("batches that are not published", "abandon them: sqlqueue batch abandon KEY"),
    "unmoved batch": (
        "batches whose files are not known to be in their place",
        "forget them: sqlqueue batch forget KEY --unmoved",
    ),
    "schedule": ("schedules", "remove them: sqlqueue schedule remove {queue} NAME"),
    "subscription": ("subscriptions", "remove them: sqlqueue unsubscribe TOPIC NAME"),
    "callback": (
        "callbacks that are put on it when other jobs have ended, which are",
        "wait for these jobs, or cancel them: sqlqueue cancel ID",
    ),
    "group": (
        "callbacks that are put on it when groups have ended, which are",
        "close them, and wait for their jobs: sqlqueue group close ID",
    ),
    "consumer": ("consumers", "stop them; one that died is forgotten a while later"),
    "run": ("drain runs of Dagster", "turn off the sensor, and let them end"),
    "step": (
        "the history of what people did with jobs",
        "it goes with these jobs, when they are trimmed or deleted: sqlqueue delete {queue} --all",
    ),
    IN_TRANSACTION: (
        "a transaction that enqueues on it, changes it or ends jobs of a group whose callback it gets",
        "let it end, and repeat",
    ),
}


def refusal(queue: str, found: Sequence[Obstacle]) -> QueueInUse | None:
    """Return the error that names what is in the way of a deletion; None: there is no such queue."""
    if any(obstacle.kind == _UNKNOWN for obstacle in found):
        return None
    jobs = {obstacle.kind: obstacle.number for obstacle in found if obstacle.kind in _JOBS}
    said = [_jobs(queue, jobs)] if jobs else []
    others = {obstacle.kind: obstacle for obstacle in found}
    said += [
        f"{what}{_named(others[kind])} ({remedy.format(queue=queue)})"
        for kind, (what, remedy) in _OTHERS.items()
        if kind in others
    ]
    return QueueInUse(f"queue {queue!r} was not deleted; in its way are: {'; '.join(said)}")


def _jobs(queue: str, numbers: dict[str, int]) -> str:
    least = "at least " if sum(numbers.values()) >= _MOST_COUNTED else ""
    counts = ", ".join(f"{numbers[state]:,} {state}" for state in _JOBS if state in numbers)
    ends = f"cancel them: sqlqueue cancel {queue} --all; sqlqueue purge {queue} deletes those that wait"
    return f"its jobs, {least}{counts} (work them off, or {ends})"


def _named(obstacle: Obstacle) -> str:
    if not obstacle.named:
        return ""
    more = obstacle.number - len(obstacle.named)
    return f": {', '.join(obstacle.named)}{f' and {more:,} more' if more > 0 else ''}"
