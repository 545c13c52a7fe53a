"""Fields that are not to be shown: which ones they are, and how what is shown does without their values. No I/O.

A field is recognised by its name, wherever in a payload it stands: what has the name of a sensitive field is redacted at any
depth, also where the model knows of no such field. That shows too little rather than too much, and needs no model: a tool
that knows the names alone, as the database keeps them for each queue, redacts as the library does.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema

from dagster_sqlqueue.payload import json_text

REDACTED: Final = "***"
"""What is shown in place of a sensitive value."""

KEYWORD: Final = "x-sensitive"
"""The keyword of a sensitive field in a JSON Schema."""

_SHORT = 4
"""Values of fewer characters are only found as whole words: they are parts of too many others."""


_CUT = re.compile(r"(\.\.\.|…)")
"""Where a text leaves something out, as pydantic's and Python's shortened values do: beside it may be a part of a value."""

_LONGEST_CUT = 200


class Sensitive:
    """Marks a field of a payload whose value is not to be shown: `password: Annotated[str, Sensitive()]`.

    `Field(json_schema_extra={"x-sensitive": True})` does the same. The value is stored as it is, and handlers get it;
    errors and the command line show `***`.
    """

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), KEYWORD: True}

    def __repr__(self) -> str:
        return "Sensitive()"


def names_in(model: type[BaseModel]) -> frozenset[str]:
    """The names of a model's sensitive fields, at any depth, with their aliases."""
    return _names_in(model)


@lru_cache(maxsize=256)
def _names_in(model: type[BaseModel]) -> frozenset[str]:
    found: set[str] = set()
    modes: tuple[JsonSchemaMode, ...] = ("validation", "serialization")
    for by_alias in (True, False):
        for mode in modes:
            schema = model.model_json_schema(by_alias=by_alias, mode=mode, schema_generator=_Lenient)
            found.update(_marked(schema, schema.get("$defs", {}), None, frozenset()))
    return frozenset(found)


class _Lenient(GenerateJsonSchema):
    """Writes a schema for any model; a type that has none in JSON may be anything."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass


def _marked(
    node: object, definitions: Mapping[str, object], name: str | None, seen: frozenset[tuple[str, str | None]]
) -> Iterator[str]:
    """The names of the fields that are marked, or have a marked part without a name of its own."""
    if isinstance(node, list):
        for part in node:
            yield from _marked(part, definitions, name, seen)
    if not isinstance(node, dict):
        return
    if node.get(KEYWORD) is True and name is not None:
        yield name
    reference = node.get("$ref")
    if isinstance(reference, str) and (reference, name) not in seen:
        target = definitions.get(reference.rpartition("/")[2])
        yield from _marked(target, definitions, name, seen | {(reference, name)})
    for keyword, part in node.items():
        if keyword == "properties":
            for field, schema in part.items():
                yield from _marked(schema, definitions, field, seen)
        elif keyword in ("patternProperties", "dependentSchemas"):
            yield from _marked(list(part.values()), definitions, name, seen)
        elif keyword in ("items", "prefixItems", "additionalProperties", "anyOf", "allOf", "oneOf"):
            yield from _marked(part, definitions, name, seen)


def redacted(value: Any, names: Collection[str]) -> Any:
    """A JSON value, with `***` in place of what stands under one of these names; null stays null."""
    match value:
        case Mapping():
            return {
                key: (part if part is None else REDACTED) if key in names else redacted(part, names)
                for key, part in value.items()
            }
        case list() | tuple():
            return [redacted(part, names) for part in value]
    return value


def redacted_text(text: str, names: Collection[str]) -> str:
    """JSON text, redacted in the same way; as it was when there are no names. What is nested too deeply to be searched
    is not shown at all.
    """
    if not names:
        return text
    value = json_text.read(text)
    return json.dumps(REDACTED if value == text else redacted(value, names), ensure_ascii=False)


def values_in(value: object, names: Collection[str], *, under: bool = False) -> set[str]:
    """The texts and numbers that stand under one of these names in a JSON value, as texts."""
    match value:
        case Mapping():
            parts = [values_in(part, names, under=under or key in names) for key, part in value.items()]
        case list() | tuple():
            parts = [values_in(part, names, under=under) for part in value]
        case str() if under and value:
            return {value}
        case int() | float() if under and not isinstance(value, bool):
            return {str(value)}
        case _:
            return set()
    return set().union(*parts)


def scrubbed(text: str, values: Collection[str]) -> str:
    """A text without these values, also where it quotes them as Python, JSON or a URL does, or the begin or end of one."""
    forms = {form for value in values for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value))}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= _SHORT:
            text = text.replace(form, REDACTED)
        else:
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", REDACTED, text)
    parts = _CUT.split(text)
    if len(parts) == 1:
        return text
    for place in range(0, len(parts), 2):
        for form in forms:
            if place < len(parts) - 1:
                parts[place] = _without_begin(parts[place], form)
            if place > 0:
                parts[place] = _without_begin(parts[place][::-1], form[::-1])[::-1]
    return "".join(parts)


def _without_begin(text: str, form: str) -> str:
    """A text that was cut, without the begin of a value at its end."""
    for length in range(min(len(form), len(text), _LONGEST_CUT), _SHORT - 1, -1):
        if text.endswith(form[:length]):
            return text[:-length] + REDACTED
    return text
