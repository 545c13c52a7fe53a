"""Consumer slots: capacity that a sensor requested, with an expiry, so that each bucket gets one run at a time.

A slot only avoids needless runs. Two consumers on one bucket share its work, whatever the slots are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.queue import SqlQueue


@dataclass(frozen=True, slots=True)
class Slot:
    """A reservation: its number, the buckets it covers, the token that its run presents, and the sensor that made it."""

    queue: str
    number: int
    buckets: tuple[int, ...]
    token: UUID
    sensor: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """A slot that has not been released.

    Attributes:
        slot: the reservation.
        run_id: of its run; None: not known yet.
        seconds: until it expires; negative: it has.
        reserved_seconds: how long ago it was reserved.
        instance: the id of the Dagster instance whose tick reserved it; None: not known.
    """

    slot: Slot
    run_id: str | None
    seconds: float
    reserved_seconds: float
    instance: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A bucket whose requested runs have neither claimed a job nor found it empty so far.

    Attributes:
        starts: how many runs were requested.
        seconds: how long ago the latest was requested.
    """

    bucket: int
    starts: int
    seconds: float


def holdings(queue: SqlQueue, name: str, *, sensor: str = "") -> list[Holding]:
    """Read the slots that have not been released, by their number, also those that have expired."""
    rows = queue.database.run("slots", {"queue": name, "sensor": sensor})
    return [Holding(Slot(name, number, tuple(buckets), token, sensor), *rest) for number, token, buckets, *rest in rows]


def taken(queue: SqlQueue, name: str, *, sensor: str = "") -> dict[int, tuple[int, ...]]:
    """Read the buckets of each slot that has not expired, by the slot's number."""
    return {
        holding.slot.number: holding.slot.buckets
        for holding in holdings(queue, name, sensor=sensor)
        if holding.seconds > 0
    }


def asked(queue: SqlQueue, name: str) -> dict[int, Asked]:
    """Read the buckets whose requested runs have done nothing so far, by their number."""
    return {row[0]: Asked(*row) for row in queue.database.run("buckets_asked", {"queue": name})}


def served(queue: SqlQueue, name: str, buckets: Sequence[int] | None = None) -> None:
    """Record that the run requested for these buckets has come. None: for all of them."""
    wanted = None if buckets is None else sorted(buckets)
    queue.database.run("buckets_served", {"queue": name, "buckets": wanted})


def unserved(queue: SqlQueue, name: str, before: Collection[Asked]) -> None:
    """Take back that the run requested for these buckets has come: it gave all jobs back, as any other run would.

    Args:
        queue: where the queue is.
        name: the queue's.
        before: the buckets as they were before the run had come.
    """
    wanted = {"buckets": [asked.bucket for asked in before], "starts": [asked.starts for asked in before]}
    queue.database.run("buckets_unserved", {"queue": name, **wanted})


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
    instance: str | None = None,
) -> Slot | None:
    """Reserve a slot until `seconds` from now, and record the request for its buckets with work. Returns None if the slot is
    taken, or another slot of the sensor covers one of the buckets.

    Args:
        queue: where the queue is.
        name: the queue's.
        number: of the slot.
        buckets: what the slot covers.
        seconds: until it expires.
        sensor: the name of the sensor.
        due: the buckets that have work; None: all of them.
        shared: other slots may cover its buckets as well.
        instance: the id of the Dagster instance that is to run it; None: not known.
    """
    slot = Slot(name, number, tuple(buckets), uuid7(), sensor)
    asked = {"due": list(buckets if due is None else due), "shared": shared, "seconds": seconds}
    lock = ("slot_lock", {"queue": name, "sensor": sensor})
    reserve = ("slot_acquire", {**_of(slot), "buckets": list(buckets), **asked, "dagster_instance": instance})
    return slot if queue.database.run_together(lock, reserve)[-1] else None


def extend(queue: SqlQueue, slot: Slot, *, seconds: float, run_id: str | None = None) -> tuple[int, ...] | None:
    """Extend a slot until `seconds` from now, and record its run. Returns the buckets that it covers now; None if the slot,
    or one of its buckets, has passed to another run.
    """
    rows = queue.database.run("slot_extend", {**_of(slot), "seconds": seconds, "run_id": run_id})
    return tuple(rows[0][0]) if rows else None


def widen(queue: SqlQueue, slot: Slot, buckets: Sequence[int], *, shared: bool = False) -> bool:
    """Add buckets to a taken slot; its run takes them over within seconds. Returns false if the slot has expired or passed
    to another run, or covers one of the buckets, or another slot of the sensor does.

    Args:
        queue: where the slot is.
        slot: the slot.
        buckets: the new ones.
        shared: other slots may cover them as well.
    """
    lock = ("slot_lock", {"queue": slot.queue, "sensor": slot.sensor})
    added = ("slot_widen", {**_of(slot), "buckets": list(buckets), "shared": shared})
    return bool(queue.database.run_together(lock, added)[-1])


def release(queue: SqlQueue, slot: Slot) -> bool:
    """Release a slot; false if the token no longer holds it."""
    return bool(queue.database.run("slot_release", _of(slot)))


def forget(queue: SqlQueue, slot: Slot, *, run_id: str | None = None) -> bool:
    """Release a slot as if no run had been requested for it; false if another run has it, or the token no longer holds it.

    Args:
        queue: where the slot is.
        slot: the slot.
        run_id: of its run, which has not started; None: no run was created.
    """
    return bool(queue.database.run("slot_forget", {**_of(slot), "run_id": run_id}))


def _of(slot: Slot) -> dict[str, object]:
    return {"queue": slot.queue, "sensor": slot.sensor, "slot": slot.number, "token": slot.token}
