"""What JSON, or the database's JSON, does not have: found in payloads, results and texts before they are stored."""

import json
import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

_MOST_DIGITS = 4_300
"""Of a whole number: what Python and pydantic read again by default."""
_LARGEST = 10**_MOST_DIGITS - 1
_LONG_NUMBER = re.compile(rf"\d{{{_MOST_DIGITS + 1}}}")
KEY_LIMIT = 1_000
"""Of a key, in characters."""
_KEY_BYTES = 2_500
"""What an entry of an index can hold: a third of a page, with the queue's name beside it."""
TOO_DEEP = "it is nested too deeply, or holds itself; flatten it"


def not_stored(text: str) -> str | None:
    """What the database's JSON does not have of a payload that is JSON."""
    if "\\u0000" in text or (len(text) > _MOST_DIGITS and _LONG_NUMBER.search(text)):
        return unstorable(json.loads(text, parse_int=_number))
    return None


def not_written(model: BaseModel, text: str) -> str | None:
    """The first number of a model that JSON does not have, which its text has as null, or as a word.

    The search takes ten times as long as writing the payload: a text that cannot have one is spared it.
    """
    if not ("null" in text or "NaN" in text or "Infinity" in text or '"None":' in text):
        return None
    try:
        found = model.model_dump(by_alias=True)
        json.dumps(found, allow_nan=False, default=_elements)
    except (TypeError, ValueError, RecursionError):
        return _lost(found, json.loads(text, parse_int=_number), "")
    return None


def _elements(value: object) -> object:
    if isinstance(value, Iterator):
        # It was read when it was written.
        raise TypeError
    return list(value) if isinstance(value, set | frozenset | deque) else str(value)


def _lost(value: object, written: object, place: str) -> str | None:
    """The first number that JSON does not have, of a value, beside what was written of it: a serializer of the model's own
    may have written something else, and what is computed is not written.
    """
    if isinstance(value, Mapping | list) and isinstance(written, str):
        # A field that takes JSON as a text is written as one.
        try:
            written = json.loads(written)
        except ValueError:
            return None
    match value, written:
        case float(), None | float() | "NaN" | "Infinity" | "-Infinity":
            return unstorable(value, place)
        case Iterator(), list() if _may_lack_a_number(written):
            return f"{place or 'it'} is an iterator that gives a null, or a number that JSON does not have; send a list"
        case Mapping(), dict():
            if problem := next((found for name in value if (found := unstorable(name, place))), None):
                return problem
            twice = [key for key, times in Counter(map(_key, value)).items() if times > 1]
            if twice:
                return (
                    f"{place or 'it'} has the key {twice[0]!r} twice, as a text and as something else; keep one of them"
                )
            parts = [(name, part, written[key]) for name, part in value.items() if (key := _key(name)) in written]
        case list() | tuple() | set() | frozenset() | deque(), list() if len(value) == len(written):
            parts = [(index, part, written[index]) for index, part in enumerate(value)]
        case _:
            return None
    inside = f"{place}." if place else ""
    return next((found for name, part, now in parts if (found := _lost(part, now, f"{inside}{name}"))), None)


def _may_lack_a_number(written: object) -> bool:
    match written:
        case list():
            return any(map(_may_lack_a_number, written))
        case dict():
            return any(map(_may_lack_a_number, written.values()))
        case float():
            return not math.isfinite(written)
    return written in (None, "NaN", "Infinity", "-Infinity")


def _key(name: object) -> str:
    """A name of a mapping as it is written."""
    return name if isinstance(name, str) else str(next(iter(to_jsonable_python({name: 0}))))


def problem_of(model: BaseModel) -> str | None:
    """The first part of a model that JSON does not have."""
    try:
        return unstorable(model.model_dump(by_alias=True))
    except (RecursionError, ValueError):
        return TOO_DEEP


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


def key_problem(key: object) -> str | None:
    """What keeps a value from being a key, in words, and after a semicolon what to do where that is not plain; None when
    nothing does.
    """
    if not isinstance(key, str) or not 0 < len(key) <= KEY_LIMIT:
        return f"must be a text of 1 to {KEY_LIMIT:,} characters"
    if problem := unstorable_text(key):
        return f"{problem}; remove it"
    if not key.isascii() and len(key.encode()) > _KEY_BYTES:
        return f"has {len(key.encode()):,} bytes, the limit is {_KEY_BYTES:,}; use a digest of it"
    return None


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
