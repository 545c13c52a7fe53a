"""From a job that a caller hands in to the columns of an enqueue: checked, with its id and its bucket's number. No I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any, get_args
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.ids import bucket_hash
from dagster_sqlqueue.model.job import NewJob, UniqueUntil
from dagster_sqlqueue.model.numbers import is_delay, is_seconds, is_whole
from dagster_sqlqueue.model.queue import MAX_ATTEMPTS
from dagster_sqlqueue.payload.serialization import Declared, payload_text
from dagster_sqlqueue.payload.storable import KEY_LIMIT, key_problem, unstorable_text

_PLURALS = {
    "id": "ids",
    "hash": "hashes",
    "priority": "priorities",
    "run_at": "run_ats",
    "max_attempts": "max_attempts",
    "unique_key": "unique_keys",
    "until_claim": "until_claims",
    "ordering_key": "ordering_keys",
    "timeout_seconds": "timeouts",
    "backoff": "backoffs",
    "tags": "tags",
    "region": "regions",
    "payload": "payloads",
}

MOST_TAGS = 100


def check_timeout(timeout_seconds: object) -> None:
    """Raise an error if a caller cannot wait for so long.

    Raises:
        InvalidInput: it cannot; None is no limit.
    """
    if timeout_seconds is not None and not is_delay(timeout_seconds):
        raise InvalidInput(
            f"timeout_seconds is {timeout_seconds!r}; give seconds, not negative and at most a hundred years, or None"
        )


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The parallel arrays of jobs that were validated one by one."""
    return {plural: [row[single] for row in rows] for single, plural in _PLURALS.items()}


def values(spec: Declared, job: Any, row: int = 0) -> dict[str, Any]:
    """The columns of one job.

    Args:
        spec: the queue.
        job: a `NewJob`, or a payload alone.
        row: its number, for messages.

    Raises:
        InvalidPayload: the payload does not fit the model; the message names the row and the field.
        InvalidInput: anything else about the job is not usable; the message names the row.
    """
    new = job if isinstance(job, NewJob) else NewJob(job)
    _check(new, row)
    job_id = new.id or uuid7()
    return {
        "id": job_id,
        "hash": bucket_hash(job_id, new.ordering_key),
        "priority": new.priority,
        "run_at": new.run_at,
        "max_attempts": new.max_attempts,
        "unique_key": new.unique_key,
        "until_claim": new.unique_until == "claim",
        "ordering_key": new.ordering_key,
        "timeout_seconds": None if new.timeout_seconds is None else float(new.timeout_seconds),
        "backoff": new.backoff and _array_text(astuple(new.backoff)),
        "tags": _array_text(new.tags) if new.tags else None,
        "region": new.region,
        "payload": payload_text(spec, new.payload, row),
    }


def plain_values(job_id: UUID, payload: str) -> dict[str, Any]:
    """The columns of a job of which nothing is said but its payload, which was checked.

    Args:
        job_id: its id.
        payload: as it is stored.
    """
    columns: dict[str, Any] = dict.fromkeys(_PLURALS)
    said = {"id": job_id, "hash": bucket_hash(job_id, None), "priority": 0, "until_claim": False, "payload": payload}
    return columns | said


def _check(job: NewJob[Any], row: int) -> None:
    if job.id is not None and not isinstance(job.id, UUID):
        raise InvalidInput(f"row {row}: id is {job.id!r}; it must be a uuid.UUID")
    if not is_whole(job.priority, 0, 9):
        raise InvalidInput(f"row {row}: priority is {job.priority!r}; it must be 0 to 9, higher runs first")
    if job.run_at is not None and (not isinstance(job.run_at, datetime) or job.run_at.utcoffset() is None):
        raise InvalidInput(f"row {row}: run_at is {job.run_at!r}; it must be a datetime with a time zone")
    if job.run_at is not None and not _in_utc(job.run_at):
        raise InvalidInput(f"row {row}: run_at is {job.run_at!r}; in UTC it must lie within the years 1 to 9999")
    most = job.max_attempts
    if most is not None and not is_whole(most, 1, MAX_ATTEMPTS):
        raise InvalidInput(f"row {row}: max_attempts is {most!r}; it must be 1 to {MAX_ATTEMPTS:,}")
    limit = job.timeout_seconds
    if limit is not None and not is_seconds(limit):
        raise InvalidInput(f"row {row}: timeout_seconds is {limit!r}; it must be positive, at most a hundred years")
    if job.backoff is not None and not isinstance(job.backoff, Backoff):
        raise InvalidInput(f"row {row}: backoff is {job.backoff!r}; it must be a Backoff")
    if not isinstance(job.tags, Sequence | set | frozenset) or isinstance(job.tags, str | bytes):
        raise InvalidInput(f"row {row}: tags is {job.tags!r}; it must be a sequence of texts")
    if job.tags:
        _check_tags(job.tags, row)
    for name, key in (("unique_key", job.unique_key), ("ordering_key", job.ordering_key), ("region", job.region)):
        if key is not None:
            _check_key(name, key, row)
    if job.unique_until not in get_args(UniqueUntil):
        raise InvalidInput(f"row {row}: unique_until is {job.unique_until!r}; it must be 'end' or 'claim'")
    if job.unique_until == "claim" and job.unique_key is None:
        raise InvalidInput(f"row {row}: unique_until is 'claim', and there is no unique_key; give one")


def _check_tags(tags: Collection[object], row: int) -> None:
    if len(tags) > MOST_TAGS:
        raise InvalidInput(f"row {row}: tags has {len(tags):,} words; a job may have {MOST_TAGS}")
    for tag in tags:
        if not isinstance(tag, str) or not 0 < len(tag) <= KEY_LIMIT:
            raise InvalidInput(
                f"row {row}: tags must be texts of 1 to {KEY_LIMIT:,} characters, and holds {tag!r:.100}"
            )
        if problem := unstorable_text(tag):
            raise InvalidInput(f"row {row}: a tag {problem}; remove it")


def _check_key(name: str, key: object, row: int) -> None:
    if problem := key_problem(key):
        raise InvalidInput(f"row {row}: {name} {problem}")


def _array_text(values: Iterable[object]) -> str:
    """The literal of a SQL array: an array of arrays must not be ragged, so these travel as texts."""
    quoted = (str(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def _in_utc(moment: datetime) -> bool:
    try:
        moment.astimezone(UTC)
    except (OverflowError, ValueError):
        return False
    return True
