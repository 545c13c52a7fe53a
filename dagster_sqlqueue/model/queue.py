"""What a queue is: its declaration, and its settings as the database has them. No I/O."""

import enum
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import BaseModel

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff, BackoffPolicy
from dagster_sqlqueue.model.numbers import is_seconds, is_whole

Payload = TypeVar("Payload", bound=BaseModel)

MAX_ATTEMPTS = 1_000_000
MAX_BUCKETS = 1_024
RETENTION_DAYS = 30
"""How long a queue keeps its finished jobs that does not say so itself."""
MAX_RETENTION_DAYS = 36_600
"""A hundred years: a day that lies before the database's calendar would end the maintenance of all queues."""

_QUEUE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Strategy(enum.StrEnum):
    """How a claim chooses its jobs: the five published designs."""

    FANOUT = "fanout"
    """Start at a random point of the key range, wrap around (Pachot, YugabyteDB): unordered, nobody meets."""
    FIFO = "fifo"
    """Merge the heads of all buckets (Thangamani, YugabyteDB): the one order across buckets."""
    ASSIGN = "assign"
    """List what is executable, shuffle, grant by compare-and-set on the lease number (the manager/worker article)."""
    ROUND_ROBIN = "round_robin"
    """One bucket after another, in batches (Goodman, CockroachDB)."""
    TOKEN = "token"
    """Mark rows with a unique token, then select by it (the MySQL message-queue series)."""


class PoisonPolicy(enum.StrEnum):
    """What an ordered queue does with a job that has failed for good at the head of its key."""

    DEAD_LETTER = "dead_letter"
    """To the dead letter; the key goes on with its next job."""
    STOP = "stop"
    """Held, and the key stops until somebody retries, cancels or releases the job."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `starts` jobs are claimed within any `seconds`, by the database's clock. The moment of a claim is the job's
    `started_at`, and the rate holds for every interval, wherever it begins.

    What is seen from outside comes later than the claim, and not always by as much: a claim is seen when it commits, and a
    handler begins when the claim has reached its consumer, behind the jobs of the same batch that go before. So somewhat
    more commits, or calls of a handler, than `starts` can meet in one interval. Where an outside service counts strictly,
    have the handler keep to its limit, or claim one job at a time and set the limit lower.

    A new rate knows the starts of twice the interval that held before: it holds in full after one interval of its own.

    Args:
        starts: at least 1.
        seconds: the interval, positive, at most a hundred years.

    Raises:
        InvalidInput: a value out of range.
    """

    starts: int
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if not is_whole(self.starts, 1) or not is_seconds(self.seconds):
            raise InvalidInput(
                f"{self} is not usable: starts must be a whole number of at least 1, seconds positive and at most a hundred"
                " years"
            )


@dataclass(frozen=True, slots=True)
class QueueSpec(Generic[Payload]):
    """A queue as its owner declares it.

    Args:
        name: lower-case letters, digits and `_`, beginning with a letter, at most 63.
        payload: the pydantic model that every payload of the queue fits.
        bucket_count: shares of its jobs, 1 to 1024; as many consumers as buckets can claim without meeting each other.
        lease_seconds: how long a claim holds without a heartbeat.
        max_attempts: runs a job gets before it goes to the dead letter.
        backoff: the wait between attempts; a function of one's own is the consumer's alone, the database keeps the
            default beside it.
        strategy: how a claim chooses; may be changed while consumers run.
        ordered: jobs with the same ordering key run one at a time, in the order in which they were enqueued, through
            retries, snoozes and redrives.
        on_poison: what becomes of a job of an ordered queue that failed for good.
        timeout_seconds: how long one job may take before its lease is not extended any more; None: as long as the consumer
            lets it, ten leases unless it says otherwise.
        max_running: live leases of the whole queue at any moment; None for no limit.
        max_running_per_key: live leases of one ordering key at any moment, and also the jobs of one key that stand in
            line: what bounds how long another key's job waits. None for no limit.
        rate: starts within an interval; None for no limit.
        retention_days: how many whole days finished jobs are kept, at most a hundred years; 0 for ever.

    Raises:
        InvalidInput: a value out of range.
    """

    name: str
    payload: type[Payload]
    bucket_count: int = 16
    lease_seconds: float = 60.0
    max_attempts: int = 5
    backoff: BackoffPolicy = field(default_factory=Backoff)
    strategy: Strategy | str = Strategy.ROUND_ROBIN
    ordered: bool = False
    on_poison: PoisonPolicy | str = PoisonPolicy.DEAD_LETTER
    timeout_seconds: float | None = None
    max_running: int | None = None
    max_running_per_key: int | None = None
    rate: RateLimit | None = None
    retention_days: int = RETENTION_DAYS

    def __post_init__(self) -> None:
        check_queue_name(self.name)
        if not (isinstance(self.payload, type) and issubclass(self.payload, BaseModel)):
            raise InvalidInput(
                f"payload of queue {self.name!r} is {self.payload!r:.100}; it must be a pydantic model, a class such as"
                " `class Reminder(BaseModel)`"
            )
        check_bucket_count(self.bucket_count, self.name)
        check_seconds("lease_seconds", self.lease_seconds, self.name)
        if not is_whole(self.max_attempts, 1, MAX_ATTEMPTS):
            raise InvalidInput(
                f"max_attempts of queue {self.name!r} is {self.max_attempts!r}; it must be 1 to {MAX_ATTEMPTS:,}"
            )
        if not (isinstance(self.backoff, Backoff) or callable(self.backoff)):
            raise InvalidInput(
                f"backoff of queue {self.name!r} is {self.backoff!r:.100}; it must be a Backoff, such as Backoff(seconds=5),"
                " or a function of the attempt"
            )
        if not (self.rate is None or isinstance(self.rate, RateLimit)):
            raise InvalidInput(
                f"rate of queue {self.name!r} is {self.rate!r:.100}; it must be a RateLimit, such as RateLimit(10, 60), or"
                " None"
            )
        if self.timeout_seconds is not None:
            check_seconds("timeout_seconds", self.timeout_seconds, self.name)
        for setting in ("max_running", "max_running_per_key"):
            value = getattr(self, setting)
            if value is not None and not is_whole(value, 1):
                raise InvalidInput(
                    f"{setting} of queue {self.name!r} is {value!r}; it must be a whole number of at least 1, or None"
                )
        if not is_whole(self.retention_days, 0, MAX_RETENTION_DAYS):
            raise InvalidInput(
                f"retention_days of queue {self.name!r} is {self.retention_days!r}; it must be a whole number of days, at"
                " most a hundred years, or 0 for ever"
            )
        object.__setattr__(self, "strategy", _one_of(Strategy, self.strategy, "strategy", self.name))
        object.__setattr__(self, "on_poison", _one_of(PoisonPolicy, self.on_poison, "on_poison", self.name))
        limited = self.ordered or self.max_running or self.max_running_per_key or self.rate
        if self.strategy is Strategy.TOKEN and limited:
            raise InvalidInput(
                f"queue {self.name!r} has the strategy 'token' and is ordered or limited: a token marks jobs before"
                " anybody can say how many may run; choose another strategy"
            )

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"queue {self.name!r}"


def check_lease_seconds(seconds: object) -> float:
    """The length of a lease, if one can be so long.

    Raises:
        InvalidInput: it is not positive, or longer than a hundred years.
    """
    if not is_seconds(seconds):
        raise InvalidInput(f"lease_seconds is {seconds!r}; it must be positive, at most a hundred years, in seconds")
    return float(seconds)


def check_spec(spec: object) -> None:
    """Raise an error if what was given as a queue is no `QueueSpec`, such as its name.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(spec, QueueSpec):
        raise InvalidInput(
            f"the queue was given as {spec!r:.100}; give its declaration, QueueSpec(name, model), whose model checks the"
            " payloads"
        )


Member = TypeVar("Member", bound=enum.StrEnum)


def _one_of(kind: type[Member], value: str, setting: str, queue: str) -> Member:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(
            f"{setting} of queue {queue!r} is {value!r}; it must be one of {', '.join(map(repr, map(str, kind)))}"
        ) from None


def check_seconds(setting: str, value: float, queue: str) -> float:
    """The value, if a queue may have it for that setting.

    Raises:
        InvalidInput: it is not positive, or longer than a hundred years.
    """
    if not is_seconds(value):
        raise InvalidInput(
            f"{setting} of queue {queue!r} is {value!r}; it must be positive, at most a hundred years, in seconds"
        )
    return value


def check_bucket_count(count: int, queue: str) -> int:
    """The count, if a queue may have so many buckets.

    Raises:
        InvalidInput: it may not.
    """
    if not is_whole(count, 1, MAX_BUCKETS):
        raise InvalidInput(f"bucket_count of queue {queue!r} is {count!r}; it must be 1 to {MAX_BUCKETS}")
    return count


def check_queue_name(name: object) -> str:
    """The name, if a queue may have it.

    Raises:
        InvalidInput: it may not.
    """
    if isinstance(name, QueueSpec):
        raise InvalidInput(f"the queue was given as its declaration; give its name, {name.name!r}")
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise InvalidInput(
            f"queue name {name!r} is not usable: 1 to 63 lower-case letters, digits or '_', beginning with a letter"
        )
    return name


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue as the database has it.

    Attributes:
        claim_buckets: how many buckets a claim reads: `bucket_count`, or more while buckets of a larger count still hold
            jobs.
        regions: the region of each bucket, by number.
        paused_at: since when it is paused; None: it is not.
        paused_until: when it goes on by itself; None: it does not, or is not paused.
        revision: grows with every change; a claim that knows an older one takes nothing.
        keyed: whether the jobs that share an ordering key take turns.
        limited: whether a limit holds for the queue as a whole.
    """

    name: str
    bucket_count: int
    strategy: Strategy
    ordered: bool
    on_poison: PoisonPolicy
    lease_seconds: float
    timeout_seconds: float | None
    max_attempts: int
    backoff: Backoff
    max_running: int | None
    max_running_per_key: int | None
    rate: RateLimit | None
    retention_days: int
    paused_at: datetime | None
    paused_until: datetime | None
    revision: int
    claim_buckets: int
    regions: tuple[str, ...]
    # Stored, because every claim reads them several times.
    keyed: bool = field(init=False)
    limited: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keyed", self.ordered or self.max_running_per_key is not None)
        object.__setattr__(self, "limited", self.max_running is not None or self.rate is not None)
