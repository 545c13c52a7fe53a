"""Payloads and results as JSON: validated by their model, upgraded, and such that the database can store them. No I/O."""

import inspect
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol, Self

import pydantic
from pydantic import BaseModel, JsonValue, RootModel, model_validator

from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion, UnreadablePayload
from dagster_sqlqueue.model.interrupts import is_interrupt
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload import json_text as stored_json
from dagster_sqlqueue.payload.redacted_text import fields
from dagster_sqlqueue.payload.storable import TOO_DEEP, not_stored, not_written, problem_of, unstorable
from dagster_sqlqueue.payload.versions import KEY, UNVERSIONED, Versions, versions_of

MAX_PAYLOAD_BYTES = 1_000_000
_UNREADABLE_CURE = "give the job one that can be read (replace_payload), or cancel it"


class Declared(Protocol):
    """What takes payloads of one model: a queue, or what another package has in front of one, such as a topic."""

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


def parse(spec: QueueSpec[Payload], text: str) -> Payload:
    """The payload as its model, upgraded if it is of an older version.

    Raises:
        UnknownVersion: its version is not known here, its upgrade failed, or what the upgrade made does not fit.
        UnreadablePayload: Python cannot read it, or its model breaks over it.
        InvalidPayload: it does not fit; the message names the fields.
    """
    model, versions = spec.payload, versions_of(spec.payload)
    if versions is None:
        try:
            return _validated(model, text)
        except pydantic.ValidationError as error:
            raise InvalidPayload(f"payload does not fit {model.__name__}: {fields(model, error, text)}") from None
    try:
        stored = stored_json.strictly(text)
    except UnreadablePayload as error:
        raise UnreadablePayload(f"the payload cannot be read: {error}; {_UNREADABLE_CURE}") from None
    current = json.dumps(versions.upgraded(stored))
    try:
        return _validated(model, current)
    except pydantic.ValidationError as error:
        problem = f"does not fit {model.__name__}: {fields(model, error, text, current)}"
        version = stored.get(KEY, UNVERSIONED)
        if version == versions.current:
            raise InvalidPayload(f"payload {problem}") from None
        raise UnknownVersion(
            f"the payload of version {version}, upgraded, {problem}; mend the upgrade, then release the job"
        ) from None


def _validated(model: type[Payload], text: str) -> Payload:
    """Raises:
    UnreadablePayload: see `parse`.
    pydantic.ValidationError: it does not fit.
    """
    try:
        # The annotation: pydantic's validators do not say what they make.
        made: Payload = (
            model.__pydantic_validator__.validate_json(text) if _by_pydantic(model) else model.model_validate_json(text)
        )
        return made
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        if first["type"] == "json_invalid" and not first["loc"]:
            # Of what is not read, nothing is quoted: where it is sensitive is not known.
            reason = str(first.get("ctx", {}).get("error", first["msg"]))
            raise UnreadablePayload(f"the payload cannot be read: {reason}; {_UNREADABLE_CURE}") from None
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise UnreadablePayload(
            f"{model.__name__} broke over the payload with {type(error).__name__}; mend it, then release the job"
        ) from error


def payload_text(spec: Declared, payload: object, row: int) -> str:
    """A payload as it is stored: JSON, with the version of its model where that has one.

    Args:
        spec: what takes it.
        payload: the model's instance, or a mapping that fits it.
        row: the number of its job, for messages.

    Raises:
        InvalidPayload: it does not fit, or cannot be stored; the message names the row and the field.
        UnknownVersion: it names a version that is not known here, or whose upgrade failed.
    """
    wanted = spec.payload
    versions = versions_of(wanted)
    try:
        # What most payloads are, first: to ask of a model, or of a mapping, whether it is one takes half as long as to
        # validate it.
        if type(payload) is wanted:
            model = payload
        else:
            if type(payload) is not dict:
                payload = _alike(spec, payload, row)
            if versions is not None and isinstance(payload, dict) and KEY in payload:
                payload = _current(wanted, versions, payload, row)
            model = _validated_object(wanted, payload) if type(payload) is dict else _as(wanted, payload)
        if _by_pydantic(type(model)):
            text = model.__pydantic_serializer__.to_json(model, by_alias=True, round_trip=True).decode()
        else:
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
        reason = problem_of(model) or (TOO_DEEP if "depth" in str(error) else str(error))
        raise InvalidPayload(f"row {row}: the payload cannot be written as JSON: {reason}") from None
    if problem := not_written(model, text) or not_stored(text):
        raise InvalidPayload(f"row {row}: the payload cannot be stored: {problem}")
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            f"row {row}: the payload has {size:,} bytes, the limit is {MAX_PAYLOAD_BYTES:,};"
            " store the data elsewhere and enqueue a reference to it"
        )
    return text


def without_row(error: InvalidInput) -> str:
    """Return what an error says about the first job, for a caller who gave no other: without the number of its row."""
    return str(error).removeprefix("row 0: ")


def _alike(spec: Declared, payload: object, row: int) -> object:
    """A payload that is no plain dict: a model of another kind is refused, a mapping of another kind becomes one."""
    if isinstance(payload, BaseModel) and not isinstance(payload, spec.payload):
        raise InvalidPayload(
            f"row {row}: the payload is a {type(payload).__name__}; {spec.label} takes {spec.payload.__name__}"
        )
    return dict(payload) if isinstance(payload, Mapping) and not isinstance(payload, dict) else payload


def _as(model: type[BaseModel], payload: object) -> BaseModel:
    return payload if isinstance(payload, model) else _validated_object(model, payload)


def _validated_object(model: type[BaseModel], payload: object) -> BaseModel:
    if not _by_pydantic(model):
        return model.model_validate(payload)
    made: BaseModel = model.__pydantic_validator__.validate_python(payload)
    return made


@lru_cache(maxsize=1_000)
def _by_pydantic(model: type[BaseModel]) -> bool:
    """Return whether a model is validated and written by pydantic's own methods. Then what they call is called itself: it
    takes half of their time, the other half being checks of arguments that are not given here.
    """
    names = ("model_validate", "model_validate_json", "model_dump_json")
    return all(inspect.getattr_static(model, name) is inspect.getattr_static(BaseModel, name) for name in names)


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


def object_text(what: str, value: object) -> str:
    """Return a JSON object to search for in payloads, as text; `{}` for none.

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


def json_text(what: str, value: object) -> str:
    """A value as JSON that the database can store.

    Args:
        what: what it is to the caller, for messages.
        value: of JSON's own kinds.

    Raises:
        InvalidInput: it cannot be written as JSON, or the database could not store it.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        problem = unstorable(value) if type(error) is ValueError and "not JSON compliant" in str(error) else None
        raise InvalidInput(f"the {what} cannot be written as JSON: {problem or error}") from None
    if ("\\u0000" in text or "\\ud" in text) and (problem := unstorable(value)):
        raise InvalidInput(f"the {what} cannot be stored: {problem}")
    return text


def result_text(result: object) -> str | None:
    """A handler's result as JSON; None for none.

    Raises:
        InvalidInput: it cannot be written as JSON, the database could not store it, or it is larger than a payload may be.
    """
    if result is None:
        return None
    text = json_text("result", result)
    size = len(text)  # json.dumps writes ASCII
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            f"the result has {size:,} bytes, the limit is {MAX_PAYLOAD_BYTES:,}; store the data elsewhere and give a"
            " reference to it as the result"
        )
    return text
