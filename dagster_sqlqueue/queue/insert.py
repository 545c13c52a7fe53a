"""What an enqueue says to the database, and what it makes of the answers. No I/O.

Each verb is a generator of requests that is sent the rows of each: the same one runs on a connection that blocks and on
one that is awaited.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.isolation import check_level, check_sees_ends
from dagster_sqlqueue.db.steps import CopyIn, Statement, Steps
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.ids import bucket_hash
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.queue.copy_rows import Packer
from dagster_sqlqueue.queue.intake import NewRow, PlainRow, Terms, no_bucket
from dagster_sqlqueue.queue.intake import Rejected as Rejected
from dagster_sqlqueue.queue.validation import as_columns

T = TypeVar("T")

COPY = "enqueue_copy"

OnConflict: TypeAlias = Literal["ignore", "replace"]

_COPY_FROM = 200
"""Jobs from which COPY is the quicker way. 100,000 jobs of 150 bytes, validated, in chunks, 2 cores, medians of rounds in
turns: 45,000 jobs/s against 35,200 with the arrays of `enqueue_many.sql`; of 100 jobs at once there is no difference."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What an enqueue of many jobs did. The numbers add up to the jobs that were given.

    Attributes:
        inserted: enqueued.
        duplicates: left out, because they were there already.
        replaced: gave their content to a job that waited under the same unique key.
        rejected: left out, because they are not usable; only with `on_bad_row="skip"`.
    """

    inserted: int
    duplicates: int
    replaced: int = 0
    rejected: list[Rejected] = field(default_factory=list)


class NoQueue(Exception):
    """The queue does not exist; `names` are those that do."""

    def __init__(self, names: Sequence[tuple[Any, ...]]) -> None:
        super().__init__()
        self.names = names


def check_choice(name: str, value: object, choices: Any) -> None:
    """Say so if an argument is none of its choices.

    Raises:
        InvalidInput: the message names them.
    """
    if value not in get_args(choices):
        allowed = " or ".join(repr(choice) for choice in get_args(choices))
        raise InvalidInput(f"{name} is {value!r}; it must be {allowed}")


def refusal(error: Exception, queue: str, region: str | None = None) -> Exception:
    """The error to raise for one of the driver: in plain words where an enqueue can cause it.

    Args:
        error: of the driver.
        queue: its name.
        region: the only one that the jobs name.
    """
    original = getattr(error, "orig", None) or error
    if isinstance(original, psycopg.errors.NotNullViolation) and original.diag.column_name == "bucket":
        return InvalidInput(no_bucket(queue, region))
    if isinstance(original, psycopg.errors.ForeignKeyViolation) and original.diag.constraint_name == "job_queue_fkey":
        return UnknownQueue(f"queue {queue!r} was removed while the job was being enqueued; nothing was enqueued")
    return error


def only_region(rows: Sequence[NewRow | PlainRow]) -> str | None:
    """The only region that jobs name; None if they name none, or several."""
    named = {row.region for row in rows if row.region is not None}
    return named.pop() if len(named) == 1 else None


def terms(queue: str) -> Steps[Terms]:
    """Read a queue's settings before many jobs are enqueued in this transaction, which keeps it from being deleted.

    Raises:
        NoQueue: it does not exist.
    """
    rows = yield Statement("enqueue_terms", {"queue": queue, "keep": True})
    if not rows:
        raise NoQueue((yield Statement("queues", {"name": None})))
    return Terms(*rows[0])


def seeing_ends(what: str) -> Steps[None]:
    """Go on only where the transaction sees what has ended until now: for what must not be done twice.

    Raises:
        InvalidInput: it does not; the message begins with `what`.
    """
    ((level,),) = yield Statement("isolation", {})
    check_sees_ends(level, what)


def in_one_statement(row: NewRow | PlainRow, on_conflict: OnConflict, *, joining: bool) -> bool:
    """Return whether `one` is a single statement, which needs no transaction of its own.

    Args:
        row: the job.
        on_conflict: what becomes of it if its unique key is taken.
        joining: whether it joins a caller's transaction, which must survive the error about a region without a bucket.
    """
    if isinstance(row, PlainRow):
        return True
    return on_conflict == "ignore" and not row.named and not (joining and row.columns["region"] is not None)


def one(queue: str, row: NewRow | PlainRow, on_conflict: OnConflict) -> Steps[UUID | None]:
    """Enqueue one job; returns the id of the job that holds its content, None for a duplicate.

    Raises:
        InvalidInput, NoQueue: nothing was written.
    """
    if isinstance(row, PlainRow):
        job_id = row.id
        parameters = {"queue": queue, "id": job_id, "hash": bucket_hash(job_id, None), "payload": row.payload}
        if not (yield Statement("enqueue_plain", parameters)):
            raise NoQueue((yield Statement("queues", {"name": None})))
        return job_id
    if row.named:
        yield from seeing_ends(f"the job {row.id} has an id of its own")
    if row.columns["region"] is not None:
        plain = "enqueue_in_region"
    else:
        plain = "enqueue" if row.columns["ordering_key"] is None else "enqueue_keyed"
    if on_conflict == "replace" and row.unique_key is not None:
        if (yield from _known(queue, [row])):
            return None
        landed = yield from _replace(queue, [row], kept=False)
        if row.id in landed.placed:
            return landed.placed[row.id]
        if row.id in landed.inserted:
            return row.id
    elif (yield Statement(plain, {"queue": queue, **row.columns})):
        return None if row.named and (yield Statement("drop_already_finished", {"ids": [row.id]})) else row.id
    if not (yield Statement("enqueue_terms", {"queue": queue, "keep": False})):
        raise NoQueue((yield Statement("queues", {"name": None})))
    return None


def many(
    queue: str,
    chunk: Sequence[NewRow | PlainRow],
    *,
    on_conflict: OnConflict,
    packer: Packer | None = None,
) -> Steps[Counter[str]]:
    """Enqueue a chunk of jobs; counts `inserted`, `duplicates` and `replaced`.

    Args:
        queue: its name.
        chunk: the jobs.
        on_conflict: what becomes of a job whose unique key is taken.
        packer: of the queue; None: the connection can take no COPY.

    Raises:
        InvalidInput: nothing of the chunk may stay.
    """
    if packer is not None and copyable(chunk):
        yield CopyIn(COPY, packer.blocks(chunk))
        return Counter(inserted=len(chunk))
    rows = [row.whole() if isinstance(row, PlainRow) else row for row in chunk]
    if on_conflict == "ignore" or not any(row.unique_key is not None for row in rows):
        return _counted(rows, Counter(), _Landed((yield from _insert(queue, rows, kept=True)), {}))
    known = yield from _known(queue, rows)
    unknown, alike = _last_of_each([row for row in rows if row.id not in known])
    counts = _counted(unknown, alike, (yield from _replace(queue, unknown, kept=True)))
    counts["duplicates"] += sum(row.id in known for row in rows)
    return counts


def copyable(chunk: Sequence[NewRow | PlainRow], *, joining: bool = False) -> bool:
    """Whether a chunk is for a COPY: it can take all of its jobs, and there are enough of them.

    Args:
        chunk: the jobs.
        joining: whether the COPY is open already, for which any number will do.
    """
    return (joining or len(chunk) >= _COPY_FROM) and not any(_may_meet(row) for row in chunk)


class _Landed(NamedTuple):
    """The ids that were inserted; and, by the ids that were not, the jobs that took their content."""

    inserted: set[UUID]
    placed: dict[UUID, UUID]


def _counted(rows: Sequence[NewRow], alike: Counter[str], landed: _Landed) -> Counter[str]:
    counts: Counter[str] = Counter()
    open_ids = set(landed.inserted)
    for row in rows:
        same = alike[row.unique_key] if row.unique_key is not None and row.unique_key in alike else 1
        if row.id in landed.placed:
            counts["replaced"] += same
        elif row.id in open_ids:
            open_ids.remove(row.id)
            counts["inserted"] += 1
            counts["replaced"] += same - 1
        else:
            counts["duplicates"] += same
    return counts


def _insert(queue: str, rows: Sequence[NewRow], *, kept: bool) -> Steps[set[UUID]]:
    """Insert jobs; returns the ids of those that were. `kept`: the transaction keeps the queue already."""
    columns = as_columns([row.columns for row in rows])
    inserted = {found[0] for found in (yield Statement("enqueue_many", {"queue": queue, "kept": kept, **columns}))}
    if named := [row.id for row in rows if row.named and row.id in inserted]:
        inserted -= {found[0] for found in (yield Statement("drop_already_finished", {"ids": named}))}
    return inserted


def _replace(queue: str, rows: list[NewRow], *, kept: bool) -> Steps[_Landed]:
    """Give the content to jobs that wait, insert the rest; and again for what came in between.

    What met a job that waited, and finds its key free now because that one was claimed, would be lost if it were left out.
    """
    placed = yield from _replace_waiting(queue, rows)
    inserted: set[UUID] = set()
    rest = [row for row in rows if row.id not in placed]
    while rest:
        inserted |= yield from _insert(queue, rest, kept=kept)
        left = [row for row in rest if row.unique_key is not None and row.id not in inserted]
        if left:
            placed |= yield from _replace_waiting(queue, left)
        left = [row for row in left if row.id not in placed]
        yield from _refuse_foreign(queue, left)
        rest = yield from _overtaken(queue, left)
    return _Landed(inserted, placed)


def _overtaken(queue: str, rows: Sequence[NewRow]) -> Steps[list[NewRow]]:
    """Of jobs that were neither inserted nor placed those that can be now: none that runs or is held has their key."""
    if not rows:
        return []
    keys = sorted({row.unique_key for row in rows if row.unique_key is not None})
    live = yield Statement("taken_unique_keys", {"queue": queue, "unique_keys": keys})
    taken = {key for key, _, state in live if state != LiveState.QUEUED}
    rest = [row for row in rows if row.unique_key not in taken]
    if not rest or not (yield Statement("enqueue_terms", {"queue": queue, "keep": False})):
        return []
    known = {found[0] for found in (yield Statement("known_ids", {"ids": [row.id for row in rest]}))}
    return [row for row in rest if row.id not in known]


def _known(queue: str, rows: Sequence[NewRow]) -> Steps[set[UUID]]:
    """The ids of jobs that were sent before, and are not to replace what has replaced them since."""
    named = [row for row in rows if row.named]
    known = (
        {found[0] for found in (yield Statement("known_ids", {"ids": [row.id for row in named]}))} if named else set()
    )
    yield from _refuse_foreign(queue, [row for row in named if row.id in known and row.unique_key is not None])
    return known


def _refuse_foreign(queue: str, rows: Sequence[NewRow]) -> Steps[None]:
    parameters = {"ids": [row.id for row in rows], "unique_keys": [row.unique_key for row in rows]}
    found = (yield Statement("conflicting_ids", {"queue": queue, **parameters})) if rows else []
    for job_id, their_queue, their_key in found:
        row = next(row for row in rows if row.id == job_id)
        raise InvalidInput(
            f"row {row.row}: id {job_id} belongs to a live job of queue {their_queue!r} with the unique key"
            f" {their_key!r}, not {row.unique_key!r}; leave the id out, or send the job under its own"
        )


def _replace_waiting(queue: str, rows: Sequence[NewRow]) -> Steps[dict[UUID, UUID]]:
    rows = [row for row in rows if row.unique_key is not None]
    if not rows:
        return {}
    keys = [row.unique_key for row in rows]
    turning = yield Statement("replace_keys", {"queue": queue, "unique_keys": keys})
    if turning:
        check_level((yield Statement("isolation", {}))[0][0], queue)
        yield Statement("key_wait", {"queue": queue, "keys": [found[0] for found in turning]})
    columns = as_columns([row.columns for row in rows])
    unused = ("hashes", "until_claims", "ordering_keys", "regions")
    parameters = {name: values for name, values in columns.items() if name not in unused}
    parameters["named"] = [row.named for row in rows]
    found = yield Statement("enqueue_replace", {"queue": queue, **parameters})
    # A job that was due held a place in its key's line; put off, it gives up the place to the next.
    left_lines = [row[2] for row in found if row[2] is not None]
    if left_lines:
        yield Statement("key_promote", {"queue": queue, "keys": left_lines})
    return {row[0]: row[1] for row in found}


def _last_of_each(rows: Sequence[NewRow]) -> tuple[list[NewRow], Counter[str]]:
    """One row for each unique key: what the first would be after all the others had replaced it."""
    merged: dict[object, NewRow] = {}
    alike: Counter[str] = Counter()
    for place, row in enumerate(rows):
        key = row.unique_key
        if key is None:
            merged[place] = row
            continue
        alike[key] += 1
        first = merged.get(key)
        if first is not None:
            kept = {name: first.columns[name] for name in ("id", "hash", "until_claim", "ordering_key", "region")}
            row = NewRow({**row.columns, **kept}, row.row, row.job, first.named)
        merged[key] = row
    keyed = [row for row in merged.values() if row.unique_key is not None]
    seen: dict[UUID, NewRow] = {}
    for row in keyed:
        other = seen.setdefault(row.id, row)
        if other is not row:
            raise InvalidInput(
                f"row {row.row}: id {row.id} is also the id of row {other.row}, whose unique key is"
                f" {other.unique_key!r} and not {row.unique_key!r}; give each job its own id, or none"
            )
    return list(merged.values()), alike


def _may_meet(row: NewRow | PlainRow) -> bool:
    """Whether a job may be there already, or takes turns with others: COPY can do neither."""
    if isinstance(row, PlainRow):
        return False
    return row.named or row.unique_key is not None or row.columns["ordering_key"] is not None
