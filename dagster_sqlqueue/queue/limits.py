"""Reserve a part of a queue's limits for several claims at once, so that not each of them has to count."""

import time
from typing import NamedTuple
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue.claim_request import ClaimRequest

_COUNTED_ON_SECONDS = 5.0
"""Half of what a reservation lasts in the database when it is not used."""
_ASKED_AGAIN_SECONDS = 1.0


class _Reserved(NamedTuple):
    """What is known of a reservation: its id, None when there was none to be had; for how many jobs; how long, by
    `time.monotonic`, this is believed.
    """

    id: UUID | None
    jobs: int
    until: float


class Reservations:
    """The reservations of the consumers of one process. One that is believed in too long costs a claim that finds nothing:
    what may run the database alone decides.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reserved: dict[tuple[str, str], _Reserved] = {}

    def reservation(self, settings: QueueSettings, request: ClaimRequest) -> UUID | None:
        """Return the id of the reservation that a claim counts against. None: the queue is too near to its limits."""
        consumer = (settings.name, request.worker)
        now = time.monotonic()
        held = self._reserved.get(consumer)
        if held is None:
            self._forget_unused(now)
        if held is None or now >= held.until or (held.id is not None and held.jobs < request.limit):
            held = self._ask(settings, request, now)
        if held.id is not None:
            held = _Reserved(held.id, held.jobs - request.limit, now + _COUNTED_ON_SECONDS)
        self._reserved[consumer] = held
        return held.id

    def _forget_unused(self, now: float) -> None:
        """Forget what is not believed any more: each consumer has a name of its own, and is not seen to end."""
        for consumer, held in list(self._reserved.items()):
            if now >= held.until:
                self._reserved.pop(consumer, None)

    def _ask(self, settings: QueueSettings, request: ClaimRequest, now: float) -> _Reserved:
        given = {"queue": settings.name, "revision": settings.revision, "limit": request.limit, "reservation": uuid7()}
        rows = self._database.run_together(("limit_lock", {"queue": settings.name}), ("limit_reserve", given))[-1]
        if not rows:
            return _Reserved(None, 0, now + _ASKED_AGAIN_SECONDS)
        return _Reserved(rows[0][0], rows[0][1], now + _COUNTED_ON_SECONDS)
