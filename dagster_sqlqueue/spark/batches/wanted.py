"""What to seal, and the batch that was opened for it."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from dagster_sqlqueue.model.job import Mode

_BEGIN_SECONDS = 2.0
"""For how long a transactional batch is kept from others until its transaction keeps it: two round trips. One that begins
later finds the batch taken over, or keeps it from then on."""


class Opened(NamedTuple):
    """A batch that is being sealed."""

    id: UUID
    token: int
    sealed_at: datetime
    attempt: int
    error: str | None


class Wanted(NamedTuple):
    """Return what to seal, as the statements take it."""

    queue: str
    key: str
    owner: str
    filter: str
    mode: Mode
    lease_seconds: float
    backoff: list[float]

    def opening(self, mode: Mode) -> dict[str, Any]:
        """For the statements that open a batch, or take it over."""
        seconds = self.lease_seconds if mode is Mode.LEASED else min(self.lease_seconds, _BEGIN_SECONDS)
        return {**self._asdict(), "mode": str(mode), "lease_seconds": seconds}
