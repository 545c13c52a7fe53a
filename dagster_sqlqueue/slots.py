"""Consumer slots: capacity that somebody asked for, with an expiry, so that each bucket gets one run at a time.

A slot only saves starting consumers in vain. Two consumers on one bucket share its work, whatever the slots say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.queue import SqlQueue


@dataclass(frozen=True, slots=True)
class Slot:
    """A reservation: its number, the buckets it covers, and the token that proves whose it is."""

    queue: str
    number: int
    buckets: tuple[int, ...]
    token: UUID


def taken(queue: SqlQueue, name: str) -> dict[int, tuple[int, ...]]:
    """The buckets of each slot that is taken now, by the slot's number."""
    return {number: tuple(buckets) for number, buckets in queue.database.run("slots", {"queue": name})}


def acquire(queue: SqlQueue, name: str, number: int, buckets: Sequence[int], *, seconds: float) -> Slot | None:
    """Reserve a slot until `seconds` from now; None when somebody else has it."""
    slot = Slot(name, number, tuple(buckets), uuid7())
    parameters = {"queue": name, "slot": number, "token": slot.token, "buckets": list(buckets), "seconds": seconds}
    return slot if queue.database.run("slot_acquire", parameters) else None


def extend(queue: SqlQueue, slot: Slot, *, seconds: float) -> bool:
    """Keep a slot until `seconds` from now; false when it passed to somebody else."""
    parameters = {"queue": slot.queue, "slot": slot.number, "token": slot.token, "seconds": seconds}
    return bool(queue.database.run("slot_extend", parameters))


def release(queue: SqlQueue, slot: Slot) -> bool:
    """Give a slot back; false when it was not ours any more."""
    parameters = {"queue": slot.queue, "slot": slot.number, "token": slot.token}
    return bool(queue.database.run("slot_release", parameters))
