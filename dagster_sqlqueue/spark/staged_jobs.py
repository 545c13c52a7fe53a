"""Jobs on their way from Spark tasks to a queue: staged by the tasks, enqueued by the driver in one transaction. No Spark.

A task may run twice, and its second run may compute other rows: so no task enqueues a job. It stages jobs under its
attempt, and the driver enqueues those of the attempts that Spark accepted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from uuid_utils.compat import uuid7

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import InvalidInput, QueueError
from dagster_sqlqueue.queue import SqlQueue, insert

_TYPES = (
    *("uuid", "int4", "uuid", "bool", "int4", "int2", "timestamptz", "int4", "text", "bool", "text", "float8"),
    *("text[]", "text", "jsonb"),
)


class StagedJobsLost(QueueError):
    """Jobs that tasks staged were removed: more than a day passed before the write ended and maintenance removed them,
    or the server crashed meanwhile. Nothing was enqueued; write again.
    """


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of a task has staged, and for which write."""

    write_id: UUID
    attempt: UUID
    jobs: int


@dataclass(frozen=True, slots=True)
class Written:
    """A write that was done.

    Attributes:
        jobs: enqueued; of a stream: by all its batches.
        duplicates: left out, because a live job had their id or unique key.
        repeats: how often a write of this name was repeated and left out.
        committed_at: when it was done; of a stream: its last batch.
        repeated: whether it had been done before, and nothing was written now.
    """

    jobs: int
    duplicates: int
    repeats: int
    committed_at: datetime
    repeated: bool = False


def stage(queue: SqlQueue, write_id: UUID, jobs: Iterable[tuple[Mapping[str, Any], bool, Sequence[str]]]) -> Staged:
    """Stage jobs as one attempt of a task, in one transaction and in constant memory.

    Args:
        queue: where to.
        write_id: the write that they are part of.
        jobs: of each its columns (see `dagster_sqlqueue.queue.validation.values`), whether its id is the producer's own,
            and its tags.

    Raises:
        AccessRefused: the user is no producer.
        DatabaseUnavailable: see the class.
    """
    attempt: UUID = uuid7()
    count = 0
    with queue.database.transaction() as transaction:
        connection = transaction.connection
        transaction.run("stage_attempt", {"attempt": attempt, "write_id": write_id})
        with (
            queue.database.errors.naming_schema("stage_copy", connection=connection),
            connection.cursor() as cursor,
            cursor.copy(statements.load("stage_copy", queue.database.schema).encode()) as copy,
        ):
            copy.set_types(_TYPES)
            for columns, named, tags in jobs:
                copy.write_row(_record(attempt, count, columns, named, tags))
                count += 1
    return Staged(write_id, attempt, count)


def commit(
    queue: SqlQueue,
    target: str,
    write_id: UUID,
    staged: Sequence[Staged],
    *,
    name: str | None = None,
    batch: int = 0,
) -> Written:
    """Enqueue the jobs that attempts have staged: all of them or, if it fails, none.

    Args:
        queue: where both are.
        target: the queue's name.
        write_id: the write.
        staged: the accepted attempts, in the order of their partitions.
        name: makes it happen once: a second one of the name, and of the same or an earlier batch, changes nothing.
        batch: its number under that name.

    Raises:
        InvalidInput: a job's region has no bucket.
        StagedJobsLost: see the class.
    """
    parameters = {
        "write_id": write_id,
        "queue": target,
        "name": name,
        "batch": batch,
        "accepted": [part.attempt for part in staged],
        "expected": sum(part.jobs for part in staged),
    }
    try:
        repeated, jobs, duplicates, committed_at = queue.database.run("write_commit", parameters)[0]
    except psycopg.errors.NoDataFound:
        raise StagedJobsLost(
            "jobs that were staged for this write are not there any more: it took longer than a day, or the server crashed"
            " meanwhile. Nothing was enqueued; write again"
        ) from None
    except psycopg.IntegrityError as error:
        raise insert.refusal(error, target) from None
    return Written(jobs, duplicates, 0, committed_at, repeated)


def drop(queue: SqlQueue, write_id: UUID) -> int:
    """Delete what was staged for a write; returns how many jobs that were."""
    found: int = queue.database.run("write_drop", {"write_id": write_id})[0][0]
    return found


def written(queue: SqlQueue, target: str, name: str) -> Written | None:
    """Return the result of a write, by its name; None if there was none, or 30 days have passed.

    Args:
        queue: where it is.
        target: the name of the queue that was written to.
        name: the option `writeName` of the write.

    Raises:
        AccessRefused: the user is neither a producer, an operator nor an observer.
    """
    rows = queue.database.run("write_known", {"queue": target, "name": name})
    return Written(*rows[0]) if rows else None


def check_name(name: str | None) -> str | None:
    """Return the name of a write, if it is usable.

    Raises:
        InvalidInput: it is empty, longer than 500 characters, or one that streams use.
    """
    if name is not None and (not 0 < len(name) <= 500 or "\x00" in name or name.startswith(STREAM)):
        raise InvalidInput(
            f"the option 'writeName' is {name[:100]!r}; it has 1 to 500 characters and does not begin with {STREAM!r}"
        )
    return name


STREAM = "stream/"
"""What the names of the writes of streams begin with."""


def _record(attempt: UUID, row: int, columns: Mapping[str, Any], named: bool, tags: Sequence[str]) -> tuple[Any, ...]:
    return (
        *(attempt, row, columns["id"], named, columns["hash"], columns["priority"], columns["run_at"]),
        *(columns["max_attempts"], columns["unique_key"], columns["until_claim"], columns["ordering_key"]),
        *(columns["timeout_seconds"], list(tags), columns["region"], Jsonb(columns["payload"], dumps=_as_is)),
    )


def _as_is(text: str) -> str:
    return text
