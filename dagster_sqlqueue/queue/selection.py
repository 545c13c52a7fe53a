"""Which jobs an operator means, what was decided about them, and everything that can be known of one. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.ids import uuid_of
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.model.numbers import in_seconds, is_delay
from dagster_sqlqueue.payload.serialization import object_text
from dagster_sqlqueue.payload.storable import unstorable_text

LIVE_STATES = tuple(str(state) for state in LiveState)
ARCHIVE_STATES = tuple(str(state) for state in ArchiveState)
WAITING_STATES = (str(LiveState.QUEUED), str(LiveState.HELD))
DELETABLE_STATES = (*WAITING_STATES, *ARCHIVE_STATES)
REDRIVABLE_STATES = (str(ArchiveState.FAILED), str(ArchiveState.CANCELLED))
_CONDITIONS = ("tags", "payload", "ordering_key", "state", "error_contains", "since", "before")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which jobs of a queue: some by their ids, those that meet every condition given, or all of them.

    Args:
        ids: these jobs, as UUIDs or their texts; nothing else is given then.
        tags: the job has all of these.
        payload: the payload contains this JSON object, as `@>` of PostgreSQL sees it; a mapping, or its text.
        ordering_key: the job has this ordering key.
        state: `queued`, `running` or `held`; of ended jobs `succeeded`, `failed` or `cancelled`.
        error_contains: this text is part of the job's last error, in the same case.
        since: a live job was enqueued, an ended one ended, at this moment or later; with a time zone.
        before: the same, before this moment.
        all: every job; nothing else is given then.

    Raises:
        InvalidInput: a value is not usable, or nothing is selected: an empty selection is far more often a mistake than a
            wish to have every job.
    """

    ids: Sequence[UUID | str] | None = None
    tags: Sequence[str] = ()
    payload: Mapping[str, Any] | str | None = None
    ordering_key: str | None = None
    state: str | None = None
    error_contains: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    all: bool = False

    def __post_init__(self) -> None:
        conditions = [name for name in _CONDITIONS if getattr(self, name) not in (None, (), [])]
        kinds = [*(["ids"] if self.ids else []), *(["all=True"] if self.all else []), *conditions[:1]]
        if not kinds:
            raise InvalidInput(
                f"the selection names no jobs: give ids, a condition ({', '.join(_CONDITIONS)}), or all=True for every job"
            )
        if len(kinds) > 1:
            raise InvalidInput(
                f"the selection gives {' and '.join(kinds)} at once; give ids alone, conditions alone, or all=True alone"
            )
        put = object.__setattr__
        put(self, "ids", tuple(dict.fromkeys(map(job_id, _sequence("ids", self.ids)))) if self.ids else None)
        put(self, "tags", tuple(_text("tags", tag) for tag in _sequence("tags", self.tags)))
        put(self, "payload", None if self.payload is None else object_text("the selection's payload", self.payload))
        for name in ("ordering_key", "error_contains"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))
        if self.state is not None and self.state not in (*LIVE_STATES, *ARCHIVE_STATES):
            raise InvalidInput(
                f"the selection's state is {self.state!r}; it must be one of {', '.join((*LIVE_STATES, *ARCHIVE_STATES))}"
            )
        for name in ("since", "before"):
            if getattr(self, name) is not None:
                put(self, name, moment_in_utc(f"the selection's {name}", getattr(self, name)))

    @property
    def job_ids(self) -> list[UUID]:
        """The ids, if it names jobs by them."""
        return [job_id(value) for value in self.ids or ()]

    def states(self, possible: Iterable[str], verb: str) -> list[str]:
        """Return the states to search for, of those that a verb is about.

        Raises:
            InvalidInput: the selection asks for another state.
        """
        names = [str(state) for state in possible]
        if self.state is None:
            return names
        if self.state not in names:
            raise InvalidInput(
                f"{verb} applies to jobs that are {' or '.join(names)}; the selection asks for state={str(self.state)!r}"
            )
        return [str(self.state)]


def check_selection(selection: object) -> None:
    """Raise an error if what was given as a selection is none, such as an id.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(selection, Selection):
        raise InvalidInput(
            f"the selection is {selection!r:.100}; give a Selection, such as Selection(ids=[…]), Selection(state='held') or"
            " Selection(all=True)"
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """What an operator's verb did.

    Attributes:
        changed: the jobs that were decided about.
        requested: running jobs that were asked to end; their handlers hear of it at the next heartbeat.
        skipped: the jobs of which nothing could be decided, each with the reason.
    """

    changed: list[UUID] = field(default_factory=list)
    requested: list[UUID] = field(default_factory=list)
    skipped: dict[UUID, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRow:
    """Everything about one job, live or ended.

    Attributes:
        state: `queued`, `running`, `held`, `succeeded`, `failed` or `cancelled`.
        available_at: queued: when it may be claimed; running: when its lease ends. None: it is not claimed now: it is held,
            waits for its key's turn, or ended.
        run_at: when it was to run.
        finished_at: when it ended; None for a live job.
        unique_until_claim: whether it holds its unique key only until it is claimed, and not until it ends.
        order_no: its place within its ordering key; None unless its queue is keyed.
        payload: JSON text.
        result: JSON text; None if there is none.
        error: of the last attempt that failed, or why it was held or cancelled.
        cancel_requested_at: when its cancellation was requested while it ran.
    """

    id: UUID
    queue: str
    state: str
    bucket: int
    priority: int
    attempt: int
    max_attempts: int
    lease_no: int
    created_at: datetime
    run_at: datetime
    available_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    claimed_by: str | None
    batch_id: UUID | None
    unique_key: str | None
    unique_until_claim: bool
    ordering_key: str | None
    order_no: int | None
    region: str
    timeout_seconds: float | None
    backoff: Sequence[float] | None
    tags: Sequence[str]
    payload: str
    result: str | None
    error: str | None
    cancel_requested_at: datetime | None

    @property
    def archived(self) -> bool:
        """Whether the job has ended."""
        return self.finished_at is not None

    @property
    def waits_for_turn(self) -> bool:
        """Whether it waits for others of its ordering key."""
        return self.state == LiveState.QUEUED and self.available_at is None


def delay_or_moment(name: str, until: object) -> tuple[float | None, datetime | None]:
    """Return when something is to be: seconds from now, or a moment in UTC; the other is None.

    Args:
        name: what the message calls it.
        until: a datetime, a timedelta or seconds.

    Raises:
        InvalidInput: it is none of these, or out of range.
    """
    if isinstance(until, datetime):
        return None, moment_in_utc(name, until)
    seconds = in_seconds(until)
    if not is_delay(seconds):
        raise InvalidInput(
            f"{name} is {until!r}; give a datetime with a time zone, or a timedelta or seconds from now, not negative and at"
            " most a hundred years"
        )
    return float(seconds), None


def moment_in_utc(what: str, moment: object) -> datetime:
    """The moment in UTC.

    Raises:
        InvalidInput: it is no datetime, has no time zone, or lies outside of the years 1 to 9999.
    """
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(f"{what} is {moment!r}; give a datetime with a time zone, such as datetime.now(UTC)")
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidInput(f"{what} is {moment!r}; in UTC it must lie within the years 1 to 9999") from None


def job_id(value: object) -> UUID:
    """The id of a job.

    Raises:
        InvalidInput: it is neither a UUID nor the text of one.
    """
    id = uuid_of(value)
    if id is None:
        raise InvalidInput(f"{value!r} is no job id; a job's id is a UUID, such as enqueue gave it")
    return id


def _sequence(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | set | frozenset):
        raise InvalidInput(f"the selection's {name} is {values!r}; give a sequence of texts")
    return tuple(values)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"the selection's {name} holds {value!r}; give a text that is not empty")
    if problem := unstorable_text(value):
        raise InvalidInput(f"the selection's {name} {problem}: no job has it")
    return value


EVERYTHING = Selection(all=True)
