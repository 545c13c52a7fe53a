"""What a job is: new, under a lease, in a handler's hands, waiting, ended. No I/O."""

import enum
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.numbers import is_number
from dagster_sqlqueue.model.queue import Payload

UniqueUntil: TypeAlias = Literal["end", "claim"]
"""How long a job holds its unique key: until it ends, or until it is claimed for the first time."""


class Mode(enum.StrEnum):
    """How a consumer keeps its jobs from others."""

    LEASED = "leased"
    """Under a lease, extended by a heartbeat; after a crash the job is due when the lease ends, and is claimed by itself."""
    TRANSACTIONAL = "transactional"
    """Locked in one transaction in which they are worked off and ended: faster for quick handlers, and what the handler
    writes through `job.connection` is committed with the job's end. A crash leaves the jobs as they were; the next
    consumer works off one by one those that may have been the cause."""


def mode_of(mode: str) -> Mode:
    """The mode of that name.

    Raises:
        InvalidInput: there is none.
    """
    if mode not in list(Mode):
        raise InvalidInput(f"mode is {mode!r}; it must be 'leased' or 'transactional'")
    return Mode(mode)


class ArchiveState(enum.StrEnum):
    """How a job ended. `FAILED` is the dead letter."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class NewJob(Generic[Payload]):
    """A job to be enqueued, with everything beside the payload that may be said about it.

    Args:
        payload: the model's instance, or a mapping that fits it.
        run_at: the moment it becomes due, with a time zone; None for at once.
        priority: 0 to 9, higher first.
        ordering_key: jobs with the same key share a bucket and, in a keyed queue, take turns.
        unique_key: at most one job of the queue holds it; a second one is ignored, or replaces what waits.
        unique_until: `end`: the key is held until the job ends, while it runs or is held too. `claim`: only as long as the
            job was never claimed. What is enqueued once it has begun is another job then, and is worked off after it; a job
            that goes back to its queue, for a retry say, or is redriven does not hold the key again.
        max_attempts: instead of the queue's.
        timeout_seconds: instead of the queue's.
        backoff: instead of the queue's.
        tags: words to find and filter by.
        region: the region whose buckets take it; None for any bucket.
        id: the job's id, for a producer that recognises the same job again; made if None.
    """

    payload: Payload | Mapping[str, Any]
    run_at: datetime | None = None
    priority: int = 0
    ordering_key: str | None = None
    unique_key: str | None = None
    unique_until: UniqueUntil = "end"
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    backoff: Backoff | None = None
    tags: Sequence[str] = ()
    region: str | None = None
    id: UUID | None = None


class ClaimedJob(NamedTuple):
    """A job under a lease, as the claim returned it: the payload still JSON text.

    `lease_no` is the fence: it goes with every write about the job, and handlers pass it on to systems that can check it.
    Not before the claim has committed, as those of consumers under leases have: a claim that is rolled back, or lost by a
    failover, gives its number to the next one.

    Attributes:
        due_at: when it had become due, by which its bucket is ordered.
        order_no: its place within its ordering key; None unless the queue is keyed and the job has a key.
        limited: whether the lease counts towards the `max_running` of the queue.
        cancel_requested: somebody asked for it to be cancelled while it ran.
        alone: whether it was claimed by itself, so that the attempt is spent if its consumer dies now.
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
    due_at: datetime
    tags: Sequence[str]
    order_no: int | None
    timeout_seconds: float | None
    backoff: Sequence[float] | None
    cancel_requested: bool
    limited: bool
    alone: bool
    queue: str

    @property
    def last_attempt(self) -> bool:
        """Whether a failure now ends in the dead letter."""
        return self.attempt >= self.max_attempts

    @property
    def turns(self) -> bool:
        """Whether the lease is one that others wait for: its writes go through the locks of its key and its limit."""
        return self.limited or self.order_no is not None


class InHand(Protocol):
    """What has a job in hand while a handler is at it."""

    def cancellation(self, job: ClaimedJob) -> threading.Event:
        """The event that says that somebody wants the job cancelled."""
        ...

    def connection(self) -> Any:
        """The connection of the job's own transaction; None where it has none."""
        ...

    def report(self, job: ClaimedJob, payload: Any, percent: float, message: str | None) -> None:
        """Take note of how far the job is."""
        ...


class Job(Generic[Payload]):
    """What a handler is given.

    Made by hand, as the test of a handler may do, it is never cancelled, and what is said of its progress is dropped.
    """

    # One is made for each job: what it says is read from the claim, and an event is made for those who ask for it.
    __slots__ = ("_cancellation", "_claimed", "_in_hand", "_payload")

    def __init__(
        self,
        id: UUID,
        queue: str,
        payload: Payload,
        lease_no: int,
        attempt: int,
        max_attempts: int,
        priority: int,
        created_at: datetime,
        unique_key: str | None,
        ordering_key: str | None,
        error: str | None,
        tags: Sequence[str] = (),
    ) -> None:
        self._claimed = ClaimedJob(
            *(id, 0, priority, lease_no, attempt, max_attempts, created_at, created_at, unique_key, ordering_key, ""),
            *(error, created_at, tags, None, None, None, False, False, False, queue),
        )
        self._payload = payload
        self._in_hand: InHand | None = None
        self._cancellation: threading.Event | None = None

    @classmethod
    def of(cls, claimed: ClaimedJob, payload: Payload, in_hand: InHand | None = None) -> Self:
        """The job that was claimed.

        Args:
            claimed: as it was.
            payload: what it was read as.
            in_hand: what has it in hand; None: nothing does.
        """
        made = cls.__new__(cls)
        made._claimed = claimed
        made._payload = payload
        made._in_hand = in_hand
        made._cancellation = None
        return made

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _SHOWN)
        return f"Job({shown})"

    @property
    def id(self) -> UUID:
        """The job's id, the same at each attempt."""
        return self._claimed.id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._claimed.queue

    @property
    def payload(self) -> Payload:
        """What is to be done, as the queue's model."""
        return self._payload

    @property
    def lease_no(self) -> int:
        """The fence: grows with each claim of the job."""
        return self._claimed.lease_no

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self._claimed.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts it has."""
        return self._claimed.max_attempts

    @property
    def priority(self) -> int:
        """0 to 9, higher first."""
        return self._claimed.priority

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return self._claimed.created_at

    @property
    def unique_key(self) -> str | None:
        """The key that it holds, or held, alone in its queue."""
        return self._claimed.unique_key

    @property
    def ordering_key(self) -> str | None:
        """The key whose jobs share a bucket and, in a keyed queue, take turns."""
        return self._claimed.ordering_key

    @property
    def error(self) -> str | None:
        """The error of the attempt before, if there was one."""
        return self._claimed.error

    @property
    def tags(self) -> Sequence[str]:
        """Words to find and filter by."""
        return self._claimed.tags

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report how far the job is, to those who read it or wait for it. May be called at any rate, from any
        thread: it is written twice a second at most, and what is said last before the job ends may be left out.

        In transactional mode nothing is written: the job's transaction shows nothing before it ends.

        Args:
            percent: 0 to 100.
            message: what to show beside it; stored up to 1,000 characters.

        Raises:
            InvalidInput: the percentage or the message is none.
            LeaseLost: another consumer has the job by now: drop the work.
        """
        if not is_number(percent, 0, 100):
            raise InvalidInput(f"progress is {percent!r}; give a number from 0 to 100")
        if message is not None and not isinstance(message, str):
            raise InvalidInput(f"the message of a progress is {message!r}; give a text, or None")
        if self._in_hand is not None:
            self._in_hand.report(self._claimed, self._payload, percent, message)

    @property
    def connection(self) -> Any:
        """In transactional mode the psycopg connection of the job's own transaction: what is written there is committed
        with the job's success, or not at all. Else None.
        """
        return None if self._in_hand is None else self._in_hand.connection()

    @property
    def last_attempt(self) -> bool:
        """Whether a failure now ends in the dead letter."""
        return self._claimed.last_attempt

    @property
    def cancellation(self) -> threading.Event:
        """Set, by a heartbeat, once somebody asked for the running job to be cancelled: return `Cancel()` then."""
        if self._cancellation is None:
            asked = self._in_hand
            self._cancellation = threading.Event() if asked is None else asked.cancellation(self._claimed)
        return self._cancellation

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the running job to be cancelled."""
        return self.cancellation.is_set()


_SHOWN = (
    *("id", "queue", "payload", "lease_no", "attempt", "max_attempts", "priority", "created_at", "unique_key"),
    *("ordering_key", "error", "tags"),
)


@dataclass(frozen=True, slots=True)
class Head:
    """The first job of one bucket and priority; `due_seconds` is how long it has been due (negative: not yet)."""

    bucket: int
    priority: int
    available_at: datetime
    due_seconds: float
    id: UUID


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs a queue holds: those that are due, counted up to `cap`, and all others, together counted up to the same
    or, where the caller gave one, up to a cap of their own.

    `ready` equal to `cap` means "at least"; so does each of the others when their sum is equal to theirs.
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
