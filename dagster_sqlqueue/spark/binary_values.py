"""Binary values of a data frame on their way into a payload's model. No I/O."""

import base64
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

Config = Mapping[str, Any]

_ENCODINGS: Mapping[str, Callable[[bytes], str]] = {
    "utf8": lambda value: value.decode(),
    "base64": lambda value: base64.urlsafe_b64encode(value).decode(),
    "hex": lambda value: value.hex(),
}
"""By the setting `val_json_bytes` of a model: what it reads bytes out of."""


class NoText(Exception):
    """Binary that is no text, for a model that reads bytes as the text in UTF-8; the message names the place."""


class _Alternative(NamedTuple):
    """One of the types that a value may have, and the settings by which it is validated."""

    kind: type
    arguments: tuple[Any, ...]
    metadata: Sequence[Any]
    config: Config


def as_texts(value: Any, model: type[BaseModel]) -> Any:
    """Return an object of a payload with texts in place of its binary values, such that the model reads the same bytes:
    as its `val_json_bytes` says, and each model in it as its own. Where the model has no bytes it is base64.

    Raises:
        NoText: binary is not UTF-8, and the model says nothing or `utf8`.
    """
    return _value(value, model, model.model_config, "")


def _value(value: Any, annotation: Any, config: Config, where: str) -> Any:
    match value:
        case bytes():
            return _text(value, annotation, config, where)
        case list():
            inner, config = _inside(annotation, config, Sequence)
            return [_value(part, inner, config, f"{where}.{n}") for n, part in enumerate(value)]
        case dict():
            found = list(_alternatives(annotation, (), config))
            if one := next((one for one in found if _members(one.kind) is not None), None):
                members, config = _members(one.kind) or {}, _config(one)
                return {
                    name: _value(part, members.get(name), config, f"{where}.{name}") for name, part in value.items()
                }
            inner, config = _inside(annotation, config, Mapping)
            return {name: _value(part, inner, config, f"{where}.{name}") for name, part in value.items()}
    return value


def _text(value: bytes, annotation: Any, config: Config, where: str) -> str:
    for one in _alternatives(annotation, (), config):
        for part in one.metadata:
            if isinstance(part, pydantic.EncodedStr):
                return part.encoder.encode(value).decode()
            value = part.encode(value) if isinstance(part, pydantic.EncodedBytes) else value
        if issubclass(one.kind, bytes | pydantic.SecretBytes):
            try:
                return _ENCODINGS[one.config.get("val_json_bytes", "utf8")](value)
            except UnicodeDecodeError:
                raise NoText(where.removeprefix(".")) from None
    return base64.b64encode(value).decode()


def _inside(annotation: Any, config: Config, sort: type) -> tuple[Any, Config]:
    """Return the type of what is in a list or a mapping; None: it is not known."""
    for one in _alternatives(annotation, (), config):
        if issubclass(one.kind, sort | set | frozenset if sort is Sequence else sort) and one.arguments:
            return one.arguments[-1 if sort is Mapping else 0], one.config
    return None, config


def _alternatives(annotation: Any, metadata: Sequence[Any], config: Config) -> Iterator[_Alternative]:
    if isinstance(annotation, FieldInfo):
        metadata, annotation = [*metadata, *annotation.metadata], annotation.annotation
    for alias in ("__supertype__", "__value__"):  # NewType, and type X = …
        if hasattr(annotation, alias):
            yield from _alternatives(getattr(annotation, alias), metadata, config)
            return
    origin, arguments = get_origin(annotation), get_args(annotation)
    found = origin or annotation
    if origin is Annotated:
        yield from _alternatives(arguments[0], [*metadata, *arguments[1:]], config)
    elif origin in (Union, types.UnionType):
        for part in arguments:
            yield from _alternatives(part, metadata, config)
    elif isinstance(found, type) and issubclass(found, RootModel):
        yield from _alternatives(found.model_fields["root"], metadata, found.model_config)
    elif isinstance(found, type):
        yield _Alternative(found, arguments, metadata, config)


@lru_cache(maxsize=1_000)
def _members(kind: type) -> Mapping[str, Any] | None:
    """Return the types of an object's members, by their names in the JSON; None: it is no type of objects with names."""
    if issubclass(kind, BaseModel):
        return {read: field for name, field in kind.model_fields.items() for read in read_from(kind, name, field)}
    if is_dataclass(kind):
        return get_type_hints(kind, include_extras=True)
    return None


def _config(one: _Alternative) -> Config:
    if issubclass(one.kind, BaseModel):
        return one.kind.model_config
    own: Config = getattr(one.kind, "__pydantic_config__", one.config)
    return own


def read_from(model: type[BaseModel], name: str, field: FieldInfo) -> Iterator[str]:
    """Yield the names of an object's members of which a model reads a field, or a part of it."""
    alias = field.validation_alias
    if alias is None or model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name"):
        yield name
    for given in alias.choices if isinstance(alias, pydantic.AliasChoices) else [alias]:
        if isinstance(given, pydantic.AliasPath):
            yield str(given.path[0])
        elif given is not None:
            yield given
