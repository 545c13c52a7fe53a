"""From what a caller hands in to the columns of an enqueue: validation, ids, buckets. No I/O."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TypeGuard
from uuid import UUID

import pydantic
from pydantic import BaseModel, JsonValue, RootModel, model_validator
from uuid_utils.compat import uuid7

from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion
from dagster_sqlqueue.model import NewJob
from dagster_sqlqueue.quoting import fields
from dagster_sqlqueue.settings import MAX_ATTEMPTS, MAX_DELAY_SECONDS, Backoff, Payload, QueueSpec
from dagster_sqlqueue.versions import KEY, UNVERSIONED, Versions, versions_of

_PLURALS = {
    "id": "ids",
    "hash": "hashes",
    "priority": "priorities",
    "run_at": "run_ats",
    "max_attempts": "max_attempts",
    "unique_key": "unique_keys",
    "ordering_key": "ordering_keys",
    "timeout_seconds": "timeouts",
    "backoff": "backoffs",
    "tags": "tags",
    "region": "regions",
    "payload": "payloads",
}

MAX_PAYLOAD_BYTES = 1_000_000
_KEY_LIMIT = 1_000
_KEY_BYTES = 2_500
"""What an entry of an index can hold: a third of a page, with the queue's name beside it."""
MOST_TAGS = 100
_MOST_DIGITS = 4_300
"""Of a whole number: what Python and pydantic read again by default."""
_LARGEST = 10**_MOST_DIGITS - 1
_TOO_DEEP = "it is nested too deeply, or holds itself; flatten it"
_LONG_NUMBER = re.compile(rf"\d{{{_MOST_DIGITS + 1}}}")


class Declared(Protocol):
    """What takes payloads of one model: a queue, or what a room puts before one."""

    @property
    def payload(self) -> type[BaseModel]:
        """The model."""
        ...

    @property
    def label(self) -> str:
        """What messages call it."""
        ...


class AnyObject(RootModel[dict[str, JsonValue]]):
    """The payload where no model is at hand: any JSON object."""

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not _is_finite(self.root):
            raise ValueError("NaN, Infinity and numbers beyond the range of a double are not JSON")
        return self


def _is_finite(value: JsonValue) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_is_finite, value.values()))
        case list():
            return all(map(_is_finite, value))
        case _:
            return True


def bucket_hash(job_id: UUID, ordering_key: str | None) -> int:
    """The number whose remainder is the bucket: from the ordering key where there is one, else from the id's random end.

    A key's hash is the first four bytes of its SHA-256, the top bit cleared: every database and language can compute it.
    """
    if ordering_key is None:
        return int.from_bytes(job_id.bytes[-4:]) & 0x7FFFFFFF
    return int.from_bytes(hashlib.sha256(ordering_key.encode()).digest()[:4]) & 0x7FFFFFFF


def stable_id(moment: datetime, text: str) -> UUID:
    """A job id that is always the same for the same thing, so that enqueuing the thing twice makes one job.

    Laid out as a version 7 UUID: 48 bits of the moment in milliseconds, by which ids sort, and 74 bits of the SHA-256
    of the text in place of the random ones.

    Args:
        moment: with a time zone; belongs to the thing (an event's time), never to the clock.
        text: what tells the thing from all others of that queue.
    """
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:10]) >> 6
    high, low = digest >> 62, digest & ((1 << 62) - 1)
    return UUID(int=int(moment.timestamp()) * 1000 << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)


def columns(spec: QueueSpec[Payload], jobs: Iterable[Any], first_row: int = 0) -> dict[str, list[Any]]:
    """The parallel arrays of an enqueue.

    Args:
        spec: the queue.
        jobs: `NewJob`s, or payloads alone.
        first_row: the number of the first job, for messages.

    Raises:
        InvalidPayload: a payload does not fit the model; the message names the row and the field.
        InvalidInput: anything else about a job is not usable; the message names the row.
    """
    return as_columns([values(spec, job, row) for row, job in enumerate(jobs, first_row)])


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The parallel arrays of jobs that were validated one by one."""
    return {plural: [row[single] for row in rows] for single, plural in _PLURALS.items()}


def values(spec: Declared, job: Any, row: int = 0) -> dict[str, Any]:
    """The columns of one job.

    Raises:
        InvalidPayload, InvalidInput: as for `columns`.
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
        "ordering_key": new.ordering_key,
        "timeout_seconds": None if new.timeout_seconds is None else float(new.timeout_seconds),
        "backoff": new.backoff and _array_text(astuple(new.backoff)),
        "tags": _array_text(new.tags) if new.tags else None,
        "region": new.region,
        "payload": _payload_text(spec, new.payload, row),
    }


def parse(spec: QueueSpec[Payload], text: str) -> Payload:
    """The payload as its model, upgraded if it is of an older version.

    Raises:
        UnknownVersion: its version is not known here, its upgrade failed, or what the upgrade made does not fit.
        InvalidPayload: it does not fit; the message names the fields.
    """
    model, versions = spec.payload, versions_of(spec.payload)
    if versions is None:
        try:
            return model.model_validate_json(text)
        except pydantic.ValidationError as error:
            raise InvalidPayload(f"payload does not fit {model.__name__}: {fields(model, error, text)}") from None
    stored = json.loads(text)
    current = json.dumps(versions.upgraded(stored))
    try:
        return model.model_validate_json(current)
    except pydantic.ValidationError as error:
        problem = f"does not fit {model.__name__}: {fields(model, error, text, current)}"
        version = stored.get(KEY, UNVERSIONED)
        if version == versions.current:
            raise InvalidPayload(f"payload {problem}") from None
        raise UnknownVersion(
            f"the payload of version {version}, upgraded, {problem}; mend the upgrade, then release the job"
        ) from None


def _payload_text(spec: Declared, payload: object, row: int) -> str:
    versions = versions_of(spec.payload)
    try:
        if isinstance(payload, BaseModel) and not isinstance(payload, spec.payload):
            raise InvalidPayload(
                f"row {row}: the payload is a {type(payload).__name__}; {spec.label} takes {spec.payload.__name__}"
            )
        if isinstance(payload, Mapping) and not isinstance(payload, dict):
            payload = dict(payload)
        if versions is not None and isinstance(payload, dict) and KEY in payload:
            payload = _current(spec.payload, versions, payload, row)
        model = payload if isinstance(payload, spec.payload) else spec.payload.model_validate(payload)
        text = model.model_dump_json(by_alias=True, round_trip=True)
        if versions is not None:
            text = _with_version(versions, model, text, row)
    except pydantic.ValidationError as error:
        raise InvalidPayload(
            f"row {row}: the payload does not fit {spec.payload.__name__} of {spec.label}:"
            f" {fields(spec.payload, error, payload)}"
        ) from None
    except (pydantic.errors.PydanticUserError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        reason = _problem(model) or (_TOO_DEEP if "depth" in str(error) else str(error))
        raise InvalidPayload(f"row {row}: the payload cannot be written as JSON: {reason}") from None
    if _suspicious(model, text) and (problem := _problem(model) or unstorable(json.loads(text, parse_int=_number))):
        raise InvalidPayload(f"row {row}: the payload cannot be stored: {problem}")
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            f"row {row}: the payload has {size:,} bytes, the limit is {MAX_PAYLOAD_BYTES:,};"
            " store the data elsewhere and enqueue a reference to it"
        )
    return text


def _current(model: type[Payload], versions: Versions, payload: dict[str, Any], row: int) -> Payload | dict[str, Any]:
    """A payload that names its version, as a current one. What an upgrade made is JSON, and validated as such."""
    try:
        made = versions.upgraded(payload)
    except UnknownVersion as error:
        raise UnknownVersion(f"row {row}: {error}") from None
    return made if payload[KEY] == versions.current else model.model_validate_json(json.dumps(made))


def _with_version(versions: Versions, model: BaseModel, text: str, row: int) -> str:
    if KEY in (model.model_extra or {}):
        raise InvalidPayload(
            f"row {row}: the payload has a field {KEY!r} of its own, which holds the version; rename it"
        )
    return f'{{"{KEY}":{versions.current}{"," if text != "{}" else ""}{text[1:]}'


def _suspicious(model: BaseModel, text: str) -> bool:
    """Whether a payload is worth a closer look, which takes ten times as long as writing it."""
    if "\\u0000" in text or (len(text) > _MOST_DIGITS and _LONG_NUMBER.search(text)):
        return True
    if not ("null" in text or "NaN" in text or "Infinity" in text):
        return False
    try:
        # A model writes a number that JSON lacks as null; this says whether one of the nulls is such.
        json.dumps(model.model_dump(mode="json"), allow_nan=False)
    except ValueError:
        return True
    return False


def _problem(model: BaseModel) -> str | None:
    try:
        return unstorable(model.model_dump(by_alias=True))
    except (RecursionError, ValueError):
        return _TOO_DEEP


def _number(digits: str) -> int:
    return _LARGEST + 1 if len(digits.lstrip("-")) > _MOST_DIGITS else 0


def unstorable(value: object, place: str = "") -> str | None:
    """The first part of a value that JSON, or the database's JSON, does not have: where it is, and what."""
    inside = f"{place}." if place else ""
    match value:
        case str() if problem := unstorable_text(value):
            return f"{place or 'it'} {problem}; remove it"
        case float() if not math.isfinite(value):
            return f"{place or 'it'} is {value}, a number that JSON does not have; send None or leave it out"
        case int() if abs(value) > _LARGEST:
            return f"{place or 'it'} is a number of more than {_MOST_DIGITS:,} digits; send it as a text"
        case Mapping():
            parts = [
                (key, part) for name, part in value.items() for key, part in ((place, name), (f"{inside}{name}", part))
            ]
        case list() | tuple() | set() | frozenset():
            parts = [(f"{inside}{index}", part) for index, part in enumerate(value)]
        case _:
            return None
    return next((problem for key, part in parts if (problem := unstorable(part, key))), None)


def object_text(what: str, value: object) -> str:
    """A JSON object to look for in payloads, as text; `{}` for none.

    Args:
        what: what it is to the caller, for messages.
        value: a mapping, or its text.

    Raises:
        InvalidInput: it is not a JSON object, or no payload can hold it.
    """
    if value is None:
        return "{}"
    example = 'write it like {"country": "NZ"}'
    try:
        found = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(dict(found), allow_nan=False) if isinstance(found, Mapping) else None
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{what} {value!r} is not JSON: {error}; {example}") from None
    if text is None:
        raise InvalidInput(f"{what} {value!r} is not a JSON object; {example}")
    if ("\\u0000" in text or "\\ud" in text) and (problem := unstorable(found)):
        raise InvalidInput(f"{what} cannot be part of a job's: {problem}")
    return text


def result_text(result: object) -> str | None:
    """A handler's result as JSON; None for none.

    Raises:
        InvalidInput: it cannot be written as JSON, the database could not store it, or it is larger than a payload may be.
    """
    if result is None:
        return None
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the result cannot be written as JSON: {error}") from None
    if ("\\u0000" in text or "\\ud" in text) and (problem := unstorable(result)):
        raise InvalidInput(f"the result cannot be stored: {problem}")
    size = len(text)  # json.dumps writes ASCII
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            f"the result has {size:,} bytes, the limit is {MAX_PAYLOAD_BYTES:,}; store the data elsewhere and give a"
            " reference to it as the result"
        )
    return text


def unstorable_text(text: str) -> str | None:
    """What keeps a text out of the database, in words; None when nothing does."""
    if "\x00" in text:
        return "holds a NUL character, which the database cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is no character"
    return None


def storable_text(text: str) -> str:
    """The text without what would keep it out of the database."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _check(job: NewJob[Any], row: int) -> None:
    if job.id is not None and not isinstance(job.id, UUID):
        raise InvalidInput(f"row {row}: id is {job.id!r}; it must be a uuid.UUID")
    if not _whole(job.priority) or not 0 <= job.priority <= 9:
        raise InvalidInput(f"row {row}: priority is {job.priority!r}; it must be 0 to 9, higher runs first")
    if job.run_at is not None and (not isinstance(job.run_at, datetime) or job.run_at.utcoffset() is None):
        raise InvalidInput(f"row {row}: run_at is {job.run_at!r}; it must be a datetime with a time zone")
    if job.run_at is not None and not _in_utc(job.run_at):
        raise InvalidInput(f"row {row}: run_at is {job.run_at!r}; in UTC it must lie within the years 1 to 9999")
    most = job.max_attempts
    if most is not None and (not _whole(most) or not 1 <= most <= MAX_ATTEMPTS):
        raise InvalidInput(f"row {row}: max_attempts is {most!r}; it must be 1 to {MAX_ATTEMPTS:,}")
    limit = job.timeout_seconds
    if limit is not None and not (
        (_whole(limit) or isinstance(limit, float)) and 0 < limit <= MAX_DELAY_SECONDS  # NaN is not greater than 0
    ):
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


def _check_tags(tags: Collection[object], row: int) -> None:
    if len(tags) > MOST_TAGS:
        raise InvalidInput(f"row {row}: tags has {len(tags):,} words; a job may have {MOST_TAGS}")
    for tag in tags:
        if not isinstance(tag, str) or not 0 < len(tag) <= _KEY_LIMIT:
            raise InvalidInput(
                f"row {row}: tags must be texts of 1 to {_KEY_LIMIT:,} characters, and holds {tag!r:.100}"
            )
        if problem := unstorable_text(tag):
            raise InvalidInput(f"row {row}: a tag {problem}; remove it")


def _check_key(name: str, key: object, row: int) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_LIMIT:
        raise InvalidInput(f"row {row}: {name} must be a text of 1 to {_KEY_LIMIT:,} characters")
    if problem := unstorable_text(key):
        raise InvalidInput(f"row {row}: {name} {problem}; remove it")
    if not key.isascii() and len(key.encode()) > _KEY_BYTES:
        raise InvalidInput(
            f"row {row}: {name} has {len(key.encode()):,} bytes, the limit is {_KEY_BYTES:,}; use a digest of it"
        )


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


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
