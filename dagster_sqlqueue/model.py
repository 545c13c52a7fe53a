"""What a queue, a job and an outcome are. No I/O."""

import enum
import math
import random
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel

from dagster_sqlqueue.errors import InvalidInput

Payload = TypeVar("Payload", bound=BaseModel)
Json: TypeAlias = "dict[str, Any] | list[Any] | str | int | float | bool | None"

MAX_ATTEMPTS = 1_000_000
MAX_DELAY_SECONDS = 100 * 366 * 86_400.0
"""Leases, delays and backoffs end within the range of the database's timestamps."""

_QUEUE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class ArchiveState(enum.StrEnum):
    """How a job ended. `FAILED` is the dead letter."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits for its next attempt: `seconds * factor ** (attempt - 1)`, at most `max_seconds`.

    Args:
        seconds: after the first attempt.
        factor: 1.0 for a fixed delay.
        max_seconds: the upper bound.
        jitter: the share of the delay that is drawn at random, 0.0 to 1.0, so that jobs that failed together do not come
            back together.

    Raises:
        InvalidInput: a value out of range.
    """

    seconds: float = 5.0
    factor: float = 2.0
    max_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        usable = (
            0 <= self.seconds < math.inf
            and 0 <= self.max_seconds <= MAX_DELAY_SECONDS
            and 1 <= self.factor < math.inf
            and 0 <= self.jitter <= 1
        )
        if not usable:
            raise InvalidInput(
                f"{self} is not usable: seconds and max_seconds must not be negative, max_seconds at most a hundred years,"
                " factor at least 1, jitter 0 to 1"
            )

    def delay(self, attempt: int) -> float:
        """Seconds to wait after this attempt (1 is the first)."""
        try:
            full = min(self.seconds * self.factor ** max(attempt - 1, 0), self.max_seconds)
        except OverflowError:
            full = self.max_seconds if self.seconds else 0.0
        return full * (1 - self.jitter * random.random())


@dataclass(frozen=True, slots=True)
class QueueSpec(Generic[Payload]):
    """A queue as its owner declares it.

    Args:
        name: lower-case letters, digits and `_`, beginning with a letter, at most 63.
        payload: the pydantic model that every payload of the queue fits.
        bucket_count: independent lanes, 1 to 1024; as many consumers as buckets can claim without meeting each other.
        lease_seconds: how long a claim holds without a heartbeat.
        max_attempts: runs a job gets before it goes to the dead letter.
        backoff: the wait between attempts.

    Raises:
        InvalidInput: a value out of range.
    """

    name: str
    payload: type[Payload]
    bucket_count: int = 16
    lease_seconds: float = 60.0
    max_attempts: int = 5
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        check_queue_name(self.name)
        if not 1 <= self.bucket_count <= 1024:
            raise InvalidInput(f"bucket_count of queue {self.name!r} is {self.bucket_count}; it must be 1 to 1024")
        if not 0 < self.lease_seconds <= MAX_DELAY_SECONDS:
            raise InvalidInput(
                f"lease_seconds of queue {self.name!r} is {self.lease_seconds}; it must be positive, at most a hundred years"
            )
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise InvalidInput(
                f"max_attempts of queue {self.name!r} is {self.max_attempts}; it must be 1 to {MAX_ATTEMPTS:,}"
            )


def check_queue_name(name: str) -> str:
    """The name, if a queue may have it.

    Raises:
        InvalidInput: it may not.
    """
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise InvalidInput(
            f"queue name {name!r} is not usable: 1 to 63 lower-case letters, digits or '_', beginning with a letter"
        )
    return name


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue as the database has it."""

    name: str
    bucket_count: int
    lease_seconds: float
    max_attempts: int
    backoff: Backoff


@dataclass(frozen=True, slots=True)
class NewJob(Generic[Payload]):
    """A job to be enqueued, with everything beside the payload that may be said about it.

    Args:
        payload: the model's instance, or a mapping that fits it.
        run_at: the moment it becomes due, with a time zone; None for at once.
        priority: 0 to 9, higher first.
        ordering_key: jobs with the same key share a bucket.
        unique_key: at most one live job of the queue has it; a second one is ignored.
        max_attempts: instead of the queue's.
        id: the job's id, for a producer that can tell the same job again; made if None.
    """

    payload: Payload | dict[str, Any]
    run_at: datetime | None = None
    priority: int = 0
    ordering_key: str | None = None
    unique_key: str | None = None
    max_attempts: int | None = None
    id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job under a lease, as the claim returned it: the payload still JSON text.

    `lease_no` is the fence: it goes with every write about the job, and handlers pass it on to systems that can check it.
    """

    id: UUID
    bucket: int
    priority: int
    lease_no: int
    attempt: int
    max_attempts: int
    created_at: datetime
    lease_until: datetime
    unique_key: str | None
    ordering_key: str | None
    payload: str
    error: str | None

    @property
    def last_attempt(self) -> bool:
        """Whether a failure now ends in the dead letter."""
        return self.attempt >= self.max_attempts


@dataclass(frozen=True, slots=True)
class Job(Generic[Payload]):
    """What a handler is given."""

    id: UUID
    queue: str
    payload: Payload
    lease_no: int
    attempt: int
    max_attempts: int
    priority: int
    created_at: datetime
    unique_key: str | None
    ordering_key: str | None
    error: str | None
    """The error of the attempt before, if there was one."""

    @property
    def last_attempt(self) -> bool:
        """Whether a failure now ends in the dead letter."""
        return self.attempt >= self.max_attempts


@dataclass(frozen=True, slots=True)
class Done:
    """The job succeeded. `result` is JSON, kept in the archive."""

    result: Json = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: again after `after` seconds (None: the queue's backoff), or the dead letter if it was the last."""

    error: str
    after: float | None = None

    def __post_init__(self) -> None:
        _check_text("Retry", self.error)
        if self.after is not None:
            _check_delay("Retry", self.after)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: again after `seconds`, and this attempt does not count."""

    seconds: float

    def __post_init__(self) -> None:
        _check_delay("Snooze", self.seconds)


@dataclass(frozen=True, slots=True)
class Reject:
    """The job can never succeed: the dead letter at once."""

    reason: str

    def __post_init__(self) -> None:
        _check_text("Reject", self.reason)


Outcome: TypeAlias = Done | Retry | Snooze | Reject


def _check_text(outcome: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{outcome} was given {text!r} as its reason; give a text, such as str(error)")


def _check_delay(outcome: str, seconds: object) -> None:
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_DELAY_SECONDS:
        raise InvalidInput(
            f"{outcome} was given {seconds!r} as its delay; give seconds, not negative and at most a hundred years"
        )


@dataclass(frozen=True, slots=True)
class Head:
    """The first job of one bucket and priority; `due_seconds` is how long it has been due (negative: not yet)."""

    bucket: int
    priority: int
    available_at: datetime
    due_seconds: float


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs a queue holds, counted up to `cap`: once the jobs that are due, and once all others together.

    `ready` equal to `cap` means "at least"; so does each of the others when their sum is equal to it.
    """

    ready: int
    running: int
    scheduled: int
    held: int
    cap: int

    @property
    def live(self) -> int:
        """All of them together."""
        return self.ready + self.running + self.scheduled + self.held


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that ended as failed."""

    id: UUID
    bucket: int
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    finished_at: datetime
    unique_key: str | None
    ordering_key: str | None
    payload: str
    error: str | None


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A live job as `peek` shows it, the payload JSON text."""

    id: UUID
    bucket: int
    priority: int
    state: str
    available_at: datetime
    attempt: int
    max_attempts: int
    created_at: datetime
    unique_key: str | None
    ordering_key: str | None
    payload: str
    error: str | None
