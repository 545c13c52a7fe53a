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
    """A reservation: its number, the buckets it covers, the token that proves whose it is, and the sensor that made it."""

    queue: str
    number: int
    buckets: tuple[int, ...]
    token: UUID
    sensor: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """A slot that nobody has given back.

    Attributes:
        slot: the reservation.
        run_id: of its run; None while that is not known.
        seconds: until it expires; negative: it has.
    """

    slot: Slot
    run_id: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """A bucket for which runs were asked, none of which has taken a job or found nothing to do so far.

    Attributes:
        starts: how many runs.
        seconds: how long ago the latest was asked for.
    """

    bucket: int
    starts: int
    seconds: float


def holdings(queue: SqlQueue, name: str, *, sensor: str = "") -> list[Holding]:
    """The slots that nobody has given back, by their number, also those that have expired."""
    rows = queue.database.run("slots", {"queue": name, "sensor": sensor})
    return [
        Holding(Slot(name, number, tuple(buckets), token, sensor), run_id, seconds)
        for number, token, buckets, run_id, seconds in rows
    ]


def taken(queue: SqlQueue, name: str, *, sensor: str = "") -> dict[int, tuple[int, ...]]:
    """The buckets of each slot that has not expired, by the slot's number."""
    return {
        holding.slot.number: holding.slot.buckets
        for holding in holdings(queue, name, sensor=sensor)
        if holding.seconds > 0
    }


def asked(queue: SqlQueue, name: str) -> dict[int, Asked]:
    """The buckets for which runs were asked in vain so far, or just now, by their number."""
    return {row[0]: Asked(*row) for row in queue.database.run("buckets_asked", {"queue": name})}


def served(queue: SqlQueue, name: str, buckets: Sequence[int] | None = None) -> None:
    """Note that what was asked for these buckets has come. None: for all of them."""
    wanted = None if buckets is None else sorted(buckets)
    queue.database.run("buckets_served", {"queue": name, "buckets": wanted})


def acquire(
    queue: SqlQueue,
    name: str,
    number: int,
    buckets: Sequence[int],
    *,
    seconds: float,
    sensor: str = "",
    due: Sequence[int] | None = None,
    shared: bool = False,
) -> Slot | None:
    """Reserve a slot until `seconds` from now, and note that its buckets with work were asked for; None when somebody else
    has it, or another slot of the sensor that covers a bucket of it.

    Args:
        queue: where the queue is.
        name: the queue's.
        number: of the slot.
        buckets: what the slot covers.
        seconds: until it expires.
        sensor: whose slots.
        due: the buckets that have work; None: all of them.
        shared: other slots may cover its buckets as well.
    """
    slot = Slot(name, number, tuple(buckets), uuid7(), sensor)
    asked = {"due": list(buckets if due is None else due), "shared": shared, "seconds": seconds}
    lock = ("slot_lock", {"queue": name, "sensor": sensor})
    reserve = ("slot_acquire", {**_of(slot), "buckets": list(buckets), **asked})
    return slot if queue.database.run_together(lock, reserve)[-1] else None


def extend(queue: SqlQueue, slot: Slot, *, seconds: float, run_id: str | None = None) -> tuple[int, ...] | None:
    """Keep a slot until `seconds` from now, and note whose it is. Gives the buckets that it covers by now; None when it, or
    a bucket of it, passed to somebody else.
    """
    rows = queue.database.run("slot_extend", {**_of(slot), "seconds": seconds, "run_id": run_id})
    return tuple(rows[0][0]) if rows else None


def widen(queue: SqlQueue, slot: Slot, buckets: Sequence[int]) -> bool:
    """Give a slot that is taken more buckets, which its run takes over within seconds; false when it has expired or passed
    to somebody else, or another slot of the sensor covers one of them.
    """
    lock = ("slot_lock", {"queue": slot.queue, "sensor": slot.sensor})
    return bool(queue.database.run_together(lock, ("slot_widen", {**_of(slot), "buckets": list(buckets)}))[-1])


def release(queue: SqlQueue, slot: Slot) -> bool:
    """Give a slot back; false when it was not ours any more."""
    return bool(queue.database.run("slot_release", _of(slot)))


def _of(slot: Slot) -> dict[str, object]:
    return {"queue": slot.queue, "sensor": slot.sensor, "slot": slot.number, "token": slot.token}
