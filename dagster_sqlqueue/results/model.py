"""What can be known of a job from outside: its state, its progress, its result. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.outcome import Json
from dagster_sqlqueue.payload import json_text

_CLOCKS = timedelta(days=1)
"""By how much the clock of a producer, by which its ids are made, may be ahead of the database's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running job is, as its handler said.

    Attributes:
        percent: 0 to 100.
        message: what to show beside it.
        updated_at: when that was written.
    """

    percent: float
    message: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job is, or how it ended.

    Attributes:
        state: `queued`, `running`, `held`; or its end: `succeeded`, `failed`, `cancelled`.
        attempt: how many attempts have begun.
        finished_at: when it ended; None for a live job.
        result: what its handler left, as JSON is read; None if there is nothing.
        error: of the last attempt that failed, or why it was held or cancelled.
        progress: how far it is; None unless it runs and has said so since it last began.
    """

    id: UUID
    queue: str
    state: str
    attempt: int
    max_attempts: int
    finished_at: datetime | None
    result: Json
    error: str | None
    progress: Progress | None

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.finished_at is not None

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.state == ArchiveState.SUCCEEDED


def outcome_of(row: Sequence[Any]) -> JobOutcome:
    """The outcome in a row of `outcomes.sql`."""
    id, queue, state, attempt, max_attempts, finished_at, result, error, percent, message, noted_at = row
    return JobOutcome(
        id=id,
        queue=queue,
        state=state,
        attempt=attempt,
        max_attempts=max_attempts,
        finished_at=finished_at,
        result=None if result is None else json_text.read(result),
        error=error,
        progress=None if percent is None else Progress(percent, message, noted_at),
    )


def earliest_end(ids: Sequence[UUID]) -> str:
    """The moment, as the database reads it, before which none of these jobs is likely to have ended.

    A version 7 UUID begins with the time at which it was made. Where a producer makes such ids of anything else, a job may
    have ended before that, so a search that finds nothing goes further back.
    """
    made = [id.int >> 80 for id in ids if id.version == 7]
    try:
        return (datetime.fromtimestamp(min(made) / 1000, UTC) - _CLOCKS).isoformat()
    except (ValueError, OverflowError):
        return "-infinity"
