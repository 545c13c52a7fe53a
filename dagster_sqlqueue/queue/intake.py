"""The input of one enqueue call: check each job, and collect the jobs in chunks that are ready to be sent. No I/O."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from uuid_utils import uuid7

from dagster_sqlqueue.db.isolation import check_sees_ends
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload.serialization import payload_text
from dagster_sqlqueue.queue import validation

_PLAIN: NewJob[Any] = NewJob({})

OnBadRow: TypeAlias = Literal["raise", "skip"]

_CHUNK_ROWS = 2_000
_CHUNK_BYTES = 8_000_000
_STREAMED_ROWS = 250
"""Of a chunk that goes into a COPY which is open: the server works on it while the next one is checked."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A job that was left out: its row, counted from 0, and what is wrong with it."""

    row: int
    error: str


class NewRow(NamedTuple):
    """A job that was found in order: its columns, its row, as it was given, and whether its id is the producer's own."""

    columns: dict[str, Any]
    row: int
    job: NewJob[Any]
    named: bool

    @property
    def id(self) -> UUID:
        """The job's id."""
        found: UUID = self.columns["id"]
        return found

    @property
    def unique_key(self) -> str | None:
        """The job's unique key."""
        found: str | None = self.columns["unique_key"]
        return found

    @property
    def region(self) -> str | None:
        """The region that is to take the job."""
        found: str | None = self.columns["region"]
        return found

    @property
    def payload(self) -> str:
        """The job's payload."""
        found: str = self.columns["payload"]
        return found


class PlainRow(NamedTuple):
    """A job of which nothing was said but its payload, and that was found in order: what a COPY needs of it.

    Attributes:
        id_bytes: the id that was made for it.
        payload: as it is stored.
        row: its number.
    """

    id_bytes: bytes
    payload: str
    row: int

    @property
    def id(self) -> UUID:
        """The job's id."""
        return UUID(bytes=self.id_bytes)

    @property
    def region(self) -> None:
        """No region was named."""
        return None

    def whole(self) -> NewRow:
        """Return the same as a row with all of its columns."""
        return NewRow(validation.plain_values(self.id, self.payload), self.row, _PLAIN, False)


@dataclass(frozen=True, slots=True)
class Terms:
    """What `enqueue_terms.sql` says of a queue."""

    bucket_count: int
    max_attempts: int
    timeout_seconds: float | None
    now: datetime
    regions: Sequence[str]
    isolation: str
    timed: bool
    priorities: Sequence[int]

    def bucket(self, hash_: int, region: str | None) -> int:
        """Return the bucket of a job, by the rule of `enqueue.sql`."""
        if region is None:
            return hash_ % self.bucket_count
        own = [bucket for bucket, name in enumerate(self.regions) if name == region]
        return own[hash_ % len(own)]


def one_row(spec: QueueSpec[Payload], job: Any) -> NewRow | PlainRow:
    """The only job of an enqueue, checked: a `PlainRow` where nothing is said of it but its payload.

    Raises:
        InvalidPayload, InvalidInput: the message names the row.
    """
    return new_row(spec, job) if isinstance(job, NewJob) else plain_row(spec, job, 0)


def plain_row(spec: QueueSpec[Payload], payload: Any, row: int) -> PlainRow:
    """A payload, checked, as a job.

    Raises:
        InvalidPayload: the message names the row.
    """
    return PlainRow(uuid7().bytes, payload_text(spec, payload, row), row)


def new_row(spec: QueueSpec[Payload], job: Any, row: int = 0) -> NewRow:
    """A job, checked and ready to be sent.

    Raises:
        InvalidPayload, InvalidInput: the message names the row.
    """
    new = job if isinstance(job, NewJob) else NewJob(job)
    return NewRow(validation.values(spec, new, row), row, new, new.id is not None)


class _Row(Protocol):
    @property
    def payload(self) -> str: ...


RowT = TypeVar("RowT", bound=_Row)


class Chunks(Generic[RowT]):
    """Takes the rows of one call, and hands them over in chunks: bounded in number and in bytes of payload.

    Args:
        check: makes a row of what the caller gave, and of its number, or raises InvalidInput.
        on_bad_row: `skip` collects what is wrong with bad rows in `rejected`; `raise` raises it.
        most_rows, most_bytes: of a chunk; it is full at the one or the other.
    """

    def __init__(
        self, check: Callable[[Any, int], RowT], on_bad_row: OnBadRow, most_rows: int, most_bytes: int
    ) -> None:
        self._check = check
        self._skip = on_bad_row == "skip"
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._rows: list[RowT] = []
        self._bytes = 0
        self._next = 0
        self.rejected: list[Rejected] = []

    def take(self, given: Any) -> list[RowT] | None:
        """Take the next row; returns a chunk when it is full.

        Raises:
            InvalidPayload, InvalidInput: it is not usable, and bad rows are not to be skipped; or the caller's transaction
                cannot take it, whether they are or not.
        """
        number = self._next
        self._next += 1
        try:
            row = self._check(given, number)
        except InvalidInput as error:
            if not self._skip:
                raise
            self.rejected.append(Rejected(number, str(error).removeprefix(f"row {number}: ")))
            return None
        self._rows.append(row)
        self._bytes += len(row.payload)
        return self.rest() if len(self._rows) >= self._most_rows or self._bytes >= self._most_bytes else None

    def rest(self) -> list[RowT]:
        """The rows that were taken and not handed over yet."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return rows


class _Jobs(Chunks[RowT]):
    """The jobs of one call, checked, in chunks that are ready to be sent.

    Args:
        spec: the queue.
        terms: what the database says of it.
        on_bad_row: see `Chunks`.
    """

    def __init__(self, spec: QueueSpec[Any], terms: Terms, on_bad_row: OnBadRow) -> None:
        super().__init__(self._new, on_bad_row, _CHUNK_ROWS, _CHUNK_BYTES)
        self._spec = spec
        self._terms = terms

    def _new(self, job: Any, number: int) -> RowT:
        raise NotImplementedError

    def _whole(self, job: Any, number: int) -> NewRow:
        row = new_row(self._spec, job, number)
        region = row.columns["region"]
        if region is not None and region not in self._terms.regions:
            raise InvalidInput(f"row {number}: {no_bucket(self._spec.name, region, self._terms.regions)}")
        if row.named:
            try:
                check_sees_ends(self._terms.isolation, f"row {row.row}: the job {row.id} has an id of its own")
            except InvalidInput:
                # The transaction is at fault, and not the row: to skip it would lose the job.
                self._skip = False
                raise
        return row


class JobChunks(_Jobs[NewRow]):
    """The jobs of one call, checked, with all of their columns."""

    def _new(self, job: Any, number: int) -> NewRow:
        return self._whole(job, number)


class PlainJobChunks(_Jobs[NewRow | PlainRow]):
    """The jobs of one call, checked; those of which nothing is said but their payload as `PlainRow`s."""

    def _new(self, job: Any, number: int) -> NewRow | PlainRow:
        if isinstance(job, NewJob):
            return self._whole(job, number)
        return plain_row(self._spec, job, number)

    def streamed(self, streamed: bool) -> None:
        """Say whether the last chunk went into a COPY that is still open: then the next ones are smaller."""
        self._most_rows = _STREAMED_ROWS if streamed else _CHUNK_ROWS


def no_bucket(queue: str, region: str | None = None, regions: Sequence[str] = ()) -> str:
    """Return the error about a region that has no bucket."""
    named = f"region is {region!r}, which has" if region is not None else "the region of a job has"
    others = f" ({', '.join(sorted(map(repr, set(regions))))})" if regions else ""
    return (
        f"{named} no bucket in queue {queue!r}; give it some with set_region, name a region that has{others}, or leave"
        " the region out"
    )


async def each(jobs: Any, change: Callable[[Any], Any] | None = None) -> AsyncIterator[Any]:
    """The elements of an iterable, asynchronous or not, each changed if it is said how."""
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield change(job) if change else job
    else:
        for job in jobs:
            yield change(job) if change else job
