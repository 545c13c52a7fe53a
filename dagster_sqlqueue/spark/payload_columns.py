"""From a queue's payload model to the typed columns that the database takes out of the JSON."""

import types
from collections.abc import Callable, Mapping
from collections.abc import Sequence as AbstractSequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pydantic
from pydantic import BaseModel, Json, PlainSerializer, RootModel, TypeAdapter, WrapSerializer
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.payload.versions import versions_of
from dagster_sqlqueue.spark.kinds import ddl, struct_of

_DEFAULT_DECIMAL = "decimal(38,18)"
_MODEL, _ELEMENTS = "a model", "a list, set or dict"

# bool before int, datetime before date: the first that fits.
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double"),
    (str, "string"),
    (Decimal, _DEFAULT_DECIMAL),
    (datetime, "timestamp"),
    (date, "date"),
    *((kind, "string") for kind in (time, timedelta, UUID, bytes, Path, IPv4Address, IPv6Address)),
    (pydantic.SecretStr, "string"),
    (BaseModel, _MODEL),
    *((kind, _ELEMENTS) for kind in (Mapping, AbstractSequence, AbstractSet)),
)

_JSON: Any = Json  # a class, which type checkers take for what is in it
_JSON_KINDS = {"integer": "bigint", "number": "double", "boolean": "boolean", "object": "string", "array": "string"}
_TEXT_KINDS = {"date-time": "timestamp", "date": "date"}


def payload_schema(model: type[BaseModel]) -> str:
    """Return the model's fields as a schema in Spark's notation, for the option `payload`.

    Columns have the names of the fields in the JSON: their alias, if they have one. `str`, `UUID`, `time` and
    `timedelta` become string; `int` bigint; `float` double; `bool` boolean; `Decimal` decimal(38,18), or what its
    `max_digits` and `decimal_places` say; `date` date; `datetime` timestamp (one without a zone is taken for UTC), or both
    double where the model's `ser_json_temporal` makes numbers of them.
    Enums and literals are of the type of their values. Lists and sets become array, dicts map, models struct; the string of
    their JSON become those of `Any`, of a union of several types, or with serializers of their own, models that contain
    themselves, dataclasses, and `Json`. A field with a serializer of its own is a string, unless the serializer is annotated
    as returning `int`, `float` or `bool`.
    Any other type becomes what its JSON schema says, so that `AwareDatetime` is a timestamp and `HttpUrl` a string;
    `int | float` is double.

    Args:
        model: the queue's payload.

    Raises:
        InvalidInput: it is no model, has no fields, or a serializer of its own; or a field's type is none of these, such as
            a union of several.
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InvalidInput(f"the payload's model is {model!r:.100}; give a subclass of pydantic.BaseModel")
    if model.__pydantic_decorators__.model_serializers:
        raise InvalidInput(
            f"{model.__name__} has a serializer of its own, and is stored with the fields that this writes; name the"
            " columns, like: account string, n bigint"
        )
    if issubclass(model, RootModel) or not model.model_fields:
        raise InvalidInput(
            f"{model.__name__} has no fields of its own; name the columns, like: account string, n bigint"
        )
    columns: dict[str, str] = {}
    for name, field in model.model_fields.items():
        stored = field.serialization_alias or field.alias or name
        kind = _of_field(model, name, field, (model,))
        if kind is None:
            raise InvalidInput(
                f"{model.__name__}.{name} is {_shown(field)}, which no one type of column holds; name the columns instead,"
                f" like: {stored} string"
            )
        columns[stored] = kind
    return ddl(columns)


def stored_fields(model: type[BaseModel]) -> list[str] | None:
    """Return the names of the model's fields in the JSON; None: its payloads may have others, such as extra fields, those
    of an older version, or those that a serializer of its own writes.
    """
    if issubclass(model, RootModel) or model.model_config.get("extra") == "allow" or versions_of(model) is not None:
        return None
    if model.__pydantic_decorators__.model_serializers:
        return None
    return [field.serialization_alias or field.alias or name for name, field in model.model_fields.items()]


def _of_field(model: type[BaseModel], name: str, field: FieldInfo, within: tuple[type, ...]) -> str | None:
    decorators = model.__pydantic_decorators__.field_serializers.values()
    if own := next((one for one in decorators if name in one.info.fields or "*" in one.info.fields), None):
        said: Any = own.info.return_type
        return _written(_return_type(own.func) if said is PydanticUndefined else said)
    return _dumped(_kind(field.annotation, field.metadata, within) or _by_json_schema(field), within)


def _dumped(kind: str | None, within: tuple[type, ...]) -> str | None:
    """Return the type of a value in the JSON of the innermost model, which may write dates and moments as numbers."""
    settings = getattr(within[-1], "model_config", {}) if within else {}
    numbers = settings.get("ser_json_temporal", "iso8601") != "iso8601"
    return "double" if numbers and kind in _TEXT_KINDS.values() else kind


def _return_type(function: Callable[..., Any]) -> Any:
    """Return what a function is annotated as returning; `Any` if it is not, or if that cannot be looked up."""
    try:
        return get_type_hints(function, include_extras=True).get("return", Any)
    except (TypeError, NameError):
        return Any


def _written(annotation: Any) -> str:
    """Return the type of what a serializer writes; string, if it is not a number or a boolean, or may be anything."""
    kind = _by_annotation(annotation)
    return kind if kind in ("bigint", "double", "boolean") else "string"


def _object(model: type[BaseModel], within: tuple[type, ...]) -> str:
    """Return the struct of a model; string: its JSON has other fields, or there is no end to them."""
    own = issubclass(model, RootModel) or model.__pydantic_decorators__.model_serializers
    if own or not model.model_fields or model in within:
        return "string"
    members: dict[str, str] = {}
    for name, field in model.model_fields.items():
        kind = _of_field(model, name, field, (*within, model))
        if kind is None:
            return "string"
        members[field.serialization_alias or field.alias or name] = kind
    alike = len(set(map(str.lower, members))) < len(model.model_fields)
    return "string" if alike else struct_of(members)


def _elements(found: type, arguments: tuple[Any, ...], within: tuple[type, ...]) -> str:
    """Return the array or map of what is in a list, set or dict; string: that is of no one type."""
    mapping = issubclass(found, Mapping)
    if issubclass(found, tuple):
        arguments = arguments[:1] if arguments[1:] == (...,) else ()
    if len(arguments) != 1 + mapping or arguments[-1] is Any:
        return "string"
    inner = _dumped(_kind(arguments[-1], (), within) or _by_annotation(arguments[-1]), within)
    if inner is None:
        return "string"
    return f"map<string,{inner}>" if mapping else f"array<{inner}>"


def _kind(annotation: Any, metadata: AbstractSequence[Any] = (), within: tuple[type, ...] = ()) -> str | None:
    # Stored as text, whatever is in it.
    if annotation is _JSON or any(part is _JSON or isinstance(part, _JSON) for part in metadata):
        return "string"
    if serializers := [part for part in metadata if isinstance(part, PlainSerializer | WrapSerializer)]:
        # Of Any: if they do not say what they return, pydantic takes that for the type of the value.
        return _written(Annotated[(Any, *serializers)])
    if hasattr(annotation, "__supertype__"):  # NewType
        return _kind(annotation.__supertype__, metadata, within)
    if hasattr(annotation, "__value__"):  # type X = …
        return _kind(annotation.__value__, metadata, within)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0], [*metadata, *arguments[1:]], within)
    if origin in (Union, types.UnionType):
        return _common([_kind(part, metadata, within) for part in arguments if part is not type(None)])
    if origin is Literal:
        return _common([_kind(type(value)) for value in arguments if value is not None])
    if annotation is Any:
        return "string"
    found = origin or annotation
    if not isinstance(found, type):
        return None
    if issubclass(found, Enum):
        return _common([_kind(type(member.value)) for member in found])
    kind = next((name for base, name in _KINDS if issubclass(found, base)), None)
    if kind == _MODEL and issubclass(found, BaseModel):
        return _object(found, within)
    if kind == _ELEMENTS:
        return _elements(found, arguments, within)
    return _decimal(metadata) if kind == _DEFAULT_DECIMAL else kind


def _common(kinds: list[str | None]) -> str | None:
    return kinds[0] if kinds and len(set(kinds)) == 1 else None


def _by_json_schema(field: FieldInfo) -> str | None:
    return _by_annotation(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _by_annotation(annotation: Any) -> str | None:
    try:
        schema = TypeAdapter(annotation).json_schema(mode="serialization")
    except (PydanticUserError, PydanticUndefinedAnnotation):
        return None
    return _of_json(schema, schema.get("$defs", {}))


def _of_json(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> str | None:
    if "$ref" in schema:
        return _of_json(defined[schema["$ref"].removeprefix("#/$defs/")], defined)
    if parts := schema.get("anyOf", schema.get("oneOf")):
        kinds = [_of_json(part, defined) for part in parts if part.get("type") != "null"]
        return "double" if set(kinds) == {"bigint", "double"} else _common(kinds)
    if schema.get("type") == "string":
        return _TEXT_KINDS.get(schema.get("format", ""), "string")
    return _JSON_KINDS.get(schema.get("type", ""))


def _decimal(metadata: AbstractSequence[Any]) -> str:
    flat = [inner for part in metadata for inner in (part.metadata if isinstance(part, FieldInfo) else [part])]
    digits = next((value for part in flat if (value := getattr(part, "max_digits", None))), 38)
    places = next((value for part in flat if (value := getattr(part, "decimal_places", None)) is not None), None)
    # Without a number of places any of the digits may be behind the point.
    return f"decimal({digits},{places})" if places is not None and places <= digits <= 38 else _DEFAULT_DECIMAL


def _shown(field: FieldInfo) -> str:
    annotation = field.annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
