"""Columns of an asset's page from a payload's model. No I/O."""

import enum
import functools
import inspect
import operator
import types
import typing
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import dagster as dg
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

from dagster_sqlqueue.payload.redaction import REDACTED, names_in

SENSITIVE_TAG = "sqlqueue/sensitive"
"""The tag of columns of sensitive fields, and of fields that contain such."""

_SQL_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double precision"),
    (Decimal, "numeric"),
    (str, "text"),
    (bytes, "text"),
    (datetime, "timestamp with time zone"),
    (date, "date"),
    (time, "time"),
    (timedelta, "interval"),
    (UUID, "uuid"),
)
"""The SQL type to cast `payload ->> 'field'` to; a type stands before those that it derives from."""


def payload_columns(model: type[BaseModel]) -> dg.TableSchema | None:
    """Build the columns of a payload's fields, named as in the stored JSON; None for a model without named fields.

    A column's type is the SQL type of the field's text, or `jsonb`; its constraints give the Python type, a default, and
    whether the field is sensitive. Defaults of sensitive fields are left out.
    """
    if issubclass(model, RootModel) or not model.model_fields:
        return None
    hidden = names_in(model)
    return dg.TableSchema(columns=[_column(model, name, field, hidden) for name, field in model.model_fields.items()])


def _column(model: type[BaseModel], name: str, field: FieldInfo, hidden: frozenset[str]) -> dg.TableColumn:
    stored = field.serialization_alias or field.alias or name
    sensitive = bool({name, stored} & hidden)
    inside = sorted({part for held in _models_in(field.annotation) for part in names_in(held)})
    notes = [f"Python: {inspect.formatannotation(_unannotated(field.annotation), base_module=model.__module__)}"]
    if sensitive:
        notes.append(f"sensitive: shown as {REDACTED}")
    elif inside:
        notes.append(f"sensitive inside, shown as {REDACTED}: {', '.join(inside)}")
    elif not field.is_required() and isinstance(field.default, str | int | float):
        notes.append(f"default: {field.default!r}")
    return dg.TableColumn(
        stored,
        type=_sql_type(field.annotation),
        description=field.description,
        constraints=dg.TableColumnConstraints(nullable=type(None) in _members(field.annotation), other=notes),
        tags={SENSITIVE_TAG: ""} if sensitive or inside else None,
    )


def _sql_type(annotation: Any) -> str:
    found = {_sql_type_of(member) for member in _members(annotation) if member is not type(None)}
    return found.pop() if len(found) == 1 else "jsonb"


def _sql_type_of(member: Any) -> str:
    if not inspect.isclass(member):
        return "jsonb"
    if issubclass(member, enum.Enum):
        values = {_sql_type_of(type(choice.value)) for choice in member}
        return values.pop() if len(values) == 1 else "jsonb"
    return next((name for kind, name in _SQL_TYPES if issubclass(member, kind)), "jsonb")


def _members(annotation: Any) -> list[Any]:
    """The types of a value: the members of a union, and the types of a literal's values."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(annotation) for member in _members(part)]
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    return [annotation]


def _unannotated(annotation: Any) -> Any:
    """A type, or a union of types, without the metadata of `Annotated`."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _unannotated(parts[0])
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(_unannotated, parts))
    return annotation


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field's value may contain."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)
