"""Rows of a data frame as jobs: which columns say what, and each row checked as an enqueue checks it. No I/O."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pydantic
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload.redacted_text import fields
from dagster_sqlqueue.payload.serialization import MAX_PAYLOAD_BYTES, AnyObject
from dagster_sqlqueue.payload.versions import KEY, versions_of
from dagster_sqlqueue.queue import validation
from dagster_sqlqueue.spark.binary_values import NoText, as_texts, read_from
from dagster_sqlqueue.spark.payload_models import PayloadModel

WHOLE = ("tinyint", "smallint", "int", "bigint")

_OWN: Mapping[str, tuple[str, ...]] = {
    "id": ("string",),
    "priority": WHOLE,
    "run_at": ("timestamp",),
    "ordering_key": ("string",),
    "unique_key": ("string",),
    "unique_until": ("string",),
    "tags": ("array<string>",),
    "max_attempts": WHOLE,
    "timeout_seconds": (*WHOLE, "float", "double"),
    "region": ("string",),
}
"""The columns that say something about a job beside its payload, and the types they may have."""

_ALL = "*"
_LONG = re.compile(r"\d{10000}|[eE][-+]?\d{4}")
"""In a number: with fewer digits, the database holds it."""

Job = tuple[Mapping[str, Any], bool, Sequence[str]]


class JobRows:
    """How the rows of a data frame become jobs of a queue.

    Args:
        queue: its name.
        schema: the data frame's.
        payload_columns: the option `payloadColumns`: the columns that make up the payload, with commas between; `*` for all
            that say nothing else about the job; None: there is a column `payload`.
        model: that every payload must fit; None: any JSON object does.

    Raises:
        InvalidInput: a column is not known, is missing, or has a type that does not fit; the model is not to be had here.
    """

    def __init__(
        self, queue: str, schema: StructType, payload_columns: str | None, model: PayloadModel | None = None
    ) -> None:
        self._queue = queue
        self._model = model
        payload = self._spec().payload
        types = {field.name: field.dataType for field in schema.fields}
        if len(types) < len(schema.fields):
            raise InvalidInput(f"the data frame has two columns of one name: {', '.join(schema.names)}; rename one")
        self._parts = _payload_columns(payload_columns, list(types))
        if payload_columns is not None and payload_columns.strip() == _ALL:
            _check_clear(payload, types)
        for name in self._parts or ():
            _check_storable(name, types[name])
        for name, kind in types.items():
            if name in (self._parts or ()):
                continue
            if name == "payload" and self._parts is None:
                _check_payload(kind)
            elif name not in _OWN:
                raise InvalidInput(
                    f"column {name!r} says nothing about a job; there are payload, {', '.join(_OWN)}. Drop it, or make it"
                    " part of the payload with the option 'payloadColumns'"
                )
            elif (found := kind.simpleString()) not in _OWN[name]:
                raise InvalidInput(f"column {name!r} is of the type {found}; it must be {' or '.join(_OWN[name])}")
        # Whether a model has to be asked in which way it reads bytes.
        self._binary = any(isinstance(part, BinaryType) for kind in types.values() for part in _within(kind))
        self._own = [name for name in types if name in _OWN and name not in (self._parts or ())]

    def jobs(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[Job]:
        """Yield the jobs of a partition.

        Args:
            batches: its rows.
            partition: its number, for messages.

        Raises:
            InvalidInput, InvalidPayload: a row is not usable; the message names partition and row, counted from 0, the job's
                id where it has one, and of a payload that does not fit the fields.
        """
        row, spec = 0, self._spec()
        for batch in batches:
            for values in _rows(batch, partition, row):
                try:
                    job = self._job(spec, values, row)
                    columns = validation.values(spec, job, row)
                    if self._model is None and self._parts is None and isinstance(text := values["payload"], str):
                        columns["payload"] = _as_given(text, columns["payload"], row)
                    yield columns, job.id is not None, list(job.tags)
                except InvalidInput as error:
                    named = f" (job {job_id})" if "id" in self._own and (job_id := values["id"]) else ""
                    raise type(error)(f"partition {partition}, {error}{named}; nothing was enqueued") from None
                except Exception as error:  # of the model's own code
                    error.add_note(f"partition {partition}, row {row}; nothing was enqueued")
                    raise
                row += 1

    def _spec(self) -> QueueSpec[Any]:
        """Return the queue, with the model, which is not pickled along with the rest."""
        return QueueSpec(self._queue, self._model.load() if self._model else AnyObject)

    def _job(self, spec: QueueSpec[Any], values: Mapping[str, Any], row: int) -> NewJob[Any]:
        given = {name: values[name] for name in self._own if values[name] is not None}
        if "id" in given:
            given["id"] = _uuid(given["id"], row)
        if "tags" in given and None in given["tags"]:
            raise InvalidInput(f"row {row}: tags holds a NULL; a tag is a text")
        value = values["payload"] if self._parts is None else {name: values[name] for name in self._parts}
        if self._model is not None and self._binary and isinstance(value, dict):
            try:
                value = as_texts(value, spec.payload)
            except NoText as error:
                raise InvalidPayload(
                    f"row {row}: the payload does not fit {spec.payload.__name__} of {spec.label}: {error} is binary that is"
                    " not UTF-8, of which the model reads bytes; set val_json_bytes and ser_json_bytes in its model_config"
                    " to 'base64'"
                ) from None
        payload = _payload(value, row)
        if self._model is not None:
            payload = _fitted(spec, payload, value if isinstance(value, str) else json.dumps(payload), row)
        return NewJob(payload, **given)


def _payload_columns(option: str | None, names: Sequence[str]) -> list[str] | None:
    if option is None:
        if "payload" not in names:
            raise InvalidInput(
                "the data frame has no column 'payload'; make one, a JSON text or a struct, or name the columns that make it"
                " up with the option 'payloadColumns' ('*': all that say nothing else about the job)"
            )
        return None
    if option.strip() == _ALL:
        found = [name for name in names if name not in _OWN]
    else:
        found = [name.strip() for name in option.split(",")]
        if unknown := [name for name in found if name not in names]:
            raise InvalidInput(
                f"the option 'payloadColumns' names {unknown[0]!r}; the data frame has {', '.join(names)}"
            )
    if not found:
        raise InvalidInput("the option 'payloadColumns' leaves no column for the payload")
    return found


def _check_clear(payload: type[pydantic.BaseModel], names: Iterable[str]) -> None:
    """Check that no column is both a field of the payload, which might do without, and a setting of the job."""
    read = {given for name, field in payload.model_fields.items() for given in read_from(payload, name, field)}
    if both := [name for name in names if name in _OWN and name in read]:
        raise InvalidInput(
            f"column {both[0]!r} is a field of {payload.__name__} and a setting of the job: name the payload's columns in"
            f" the option 'payloadColumns' instead of {_ALL!r}; the others are settings"
        )


def _check_payload(kind: DataType) -> None:
    found = kind.simpleString()
    if found != "string" and not found.startswith(("struct<", "map<string,")):
        raise InvalidInput(
            f"column 'payload' is of the type {found}; it must be a JSON text, a struct, or a map of strings"
        )
    _check_storable("payload", kind)


def _check_storable(name: str, kind: DataType) -> None:
    never = (VariantType, CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
    for part in _within(kind):
        if isinstance(part, never) or (isinstance(part, MapType) and not isinstance(part.keyType, StringType)):
            raise InvalidInput(
                f"column {name!r} is of the type {kind.simpleString()}, which JSON cannot hold; cast it to string or a"
                " struct"
            )


def _within(kind: DataType) -> Iterator[DataType]:
    """Yield a type and those of the values in it."""
    yield kind
    match kind:
        case ArrayType():
            yield from _within(kind.elementType)
        case MapType():
            yield from _within(kind.valueType)
        case StructType():
            for field in kind.fields:
                yield from _within(field.dataType)


def _rows(batch: pa.RecordBatch, partition: int, first: int) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a batch as Python's values.

    Args:
        batch: the rows.
        partition: its number, for messages.
        first: the number of its first row.

    Raises:
        InvalidInput: Python has no such value: a date or timestamp outside of the years 1 to 9999, or text that is no UTF-8.
    """
    try:
        rows: Sequence[Mapping[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
        return rows
    except (OverflowError, ValueError) as error:
        for row in range(batch.num_rows):
            for name in batch.schema.names:
                try:
                    batch.column(name)[row].as_py(maps_as_pydicts="strict")
                except (OverflowError, ValueError) as found:
                    why = (
                        "text that is not UTF-8"
                        if isinstance(found, UnicodeDecodeError)
                        else f"a value that cannot be read ({found}): dates and timestamps lie within the years 1 to 9999"
                    )
                    raise InvalidInput(
                        f"partition {partition}, row {first + row}: column {name!r} holds {why}; nothing was enqueued"
                    ) from None
        raise InvalidInput(f"partition {partition}: the rows from {first} on cannot be read: {error}") from error


def _as_given(text: str, written: str, row: int) -> str:
    """Return a payload's text, which was checked, as it was given: its numbers may have more digits than Python's.

    Args:
        text: as given.
        written: as Python writes what it has read.
        row: for messages.
    """
    size = len(text.encode())
    if size > MAX_PAYLOAD_BYTES and list(map(Decimal, _numbers(text))) != list(map(Decimal, _numbers(written))):
        raise InvalidPayload(
            f"row {row}: the payload has {size:,} bytes, the limit is {MAX_PAYLOAD_BYTES:,}; shorten its numbers"
        )
    # Larger for its spaces and escapes alone; or with a number that the database does not have, for Python 0.
    odd = size > MAX_PAYLOAD_BYTES or (_LONG.search(text) and any(map(_LONG.search, _numbers(text))))
    return written if odd else text


def _numbers(text: str) -> list[str]:
    """Return the numbers of a JSON text that are not whole, as they are written."""
    found: list[str] = []
    json.loads(text, parse_float=found.append)
    return found


def _uuid(text: str, row: int) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"row {row}: id is {text[:100]!r}, which is no UUID") from None


def _payload(value: Any, row: int) -> Any:
    if value is None:
        raise InvalidPayload(f"row {row}: the payload is NULL; a payload is a JSON object, at least {{}}")
    if not isinstance(value, str):
        return _plain(value)
    try:
        return AnyObject.model_validate_json(value)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        raise InvalidPayload(
            f"row {row}: the payload is not a JSON object: {problem.removeprefix('Value error, ')}"
        ) from None


def _fitted(spec: QueueSpec[Any], payload: Any, text: str, row: int) -> pydantic.BaseModel:
    """Return a payload as its model, of the current version. It is read as JSON, so that a strict model takes a text
    for a date.
    """
    model: type[pydantic.BaseModel] = spec.payload
    versions = versions_of(model)
    stored = payload.root if isinstance(payload, AnyObject) else payload
    try:
        if versions is not None and KEY in stored:
            text = json.dumps(versions.upgraded(stored))
        fitted: pydantic.BaseModel = model.model_validate_json(text)
    except UnknownVersion as error:
        raise UnknownVersion(f"row {row}: {error}") from None
    except pydantic.ValidationError as error:
        raise InvalidPayload(
            f"row {row}: the payload does not fit {model.__name__} of {spec.label}: {fields(model, error, text)}"
        ) from None
    return fitted


def _plain(value: Any) -> Any:
    """Return a value as JSON has it. A decimal is a text: as a number it would lose digits."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list():
            return [_plain(part) for part in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if (offset := value.utcoffset()) and offset % timedelta(minutes=1):
            # Local mean time, before a zone had whole minutes: no offset of ISO 8601, and neither models nor reads take it.
            return value.astimezone(UTC).isoformat()
        case date():  # and datetime, which is one
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)
