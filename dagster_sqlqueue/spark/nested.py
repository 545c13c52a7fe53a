"""Lists and objects of the payload as columns: their JSON, parsed by the task that reads it.

The values in them are cast by the rules by which the database casts the columns of single values; dates and timestamps are
taken in their ISO form only.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dagster_sqlqueue.spark import kinds

_WHOLE = re.compile(kinds.WHOLE)
_NUMBER = re.compile(kinds.NUMBER)
_MOMENT = re.compile(f"{kinds.DAY}([T ]{kinds.TIME}{kinds.ZONE})?")
_FINE = re.compile(r"\.[0-9]{7,9}")
"""A fraction of a second that has to be rounded."""
_YES, _NO = ("t", "true", "y", "yes", "on", "1"), ("f", "false", "n", "no", "off", "0")
_SPECIAL = ("nan", "infinity", "-infinity")
_LONGEST = 400
_EXACT = Context(prec=1_000)

inside = lru_cache(maxsize=1_000)(kinds.inside)


class Unfit(Exception):
    """A value is not of its type."""


class _Digits(str):
    """A number as it is written."""

    __slots__ = ()


def parsed(texts: pa.Array, field: pa.Field, kind: str, *, lenient: bool) -> pa.Array:
    """Return a column of JSON texts as lists or objects.

    Args:
        texts: the JSON.
        field: the name and type of the column.
        kind: the same type, by the name that this package has for it.
        lenient: whether a value that is not of its type is NULL, and so is not what it is part of.

    Raises:
        Unfit: a value is not of its type.
    """
    return pa.array([parse(text, kind, lenient=lenient) for text in texts.to_pylist()], field.type)


def parse(text: str | None, kind: str, *, lenient: bool) -> Any:
    """Return one; None of a NULL, in the database or in JSON.

    Raises:
        Unfit: a value is not of its type; the message names the place and the type.
    """
    if text is None:
        return None
    try:
        return _value(json.loads(text, parse_float=_Digits, parse_int=_Digits), kind, "", lenient)
    except RecursionError:
        # Python's parser, and what shows a value, stop at a depth that the database takes.
        if lenient:
            return None
        raise Unfit(f"it is nested too deeply for {kind}") from None


def _value(value: Any, kind: str, where: str, lenient: bool) -> Any:
    if value is None:
        return None
    if not kinds.is_nested(kind):
        found = _single(value, kind)
    else:
        sort, types = inside(kind)
        if sort == "array" and isinstance(value, list):
            return [_value(one, types[""], f"{where}[{n}]", lenient) for n, one in enumerate(value)]
        if sort == "map" and isinstance(value, dict):
            return [(name, _value(one, types[""], f"{where}.{name}", lenient)) for name, one in value.items()]
        if sort == "struct" and isinstance(value, dict):
            return {name: _value(value.get(name), one, f"{where}.{name}", lenient) for name, one in types.items()}
        found = None
    if found is None and not lenient:
        shown = _json(value)
        raise Unfit(f"{where.removeprefix('.') or 'it'} is {shown[:80]}{'…' * (len(shown) > 80)}, which is not {kind}")
    return found


def _single(value: Any, kind: str) -> Any:
    """Return a value as a type that is not nested; None: it is not of it."""
    text = value if isinstance(value, str) else _json(value)
    if kind == "string":
        return str(text)
    try:
        if kind in kinds.BITS:
            most = 1 << kinds.BITS[kind]
            whole = int(text) if _WHOLE.fullmatch(text) else most
            return whole if -most <= whole < most else None
        if kind == "boolean":
            word = text.strip().lower()
            return True if word in _YES else False if word in _NO else None
        if kind == "date":
            return date.fromisoformat(text) if re.fullmatch(kinds.DAY, text) else None
        if kind == "timestamp":
            return _moment(text) if _MOMENT.fullmatch(text) else None
        return _number(text, kind)
    except (ValueError, OverflowError, ArithmeticError):
        return None


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(
        text[:10] + text[10:].upper().replace(" Z", "Z").replace(" +", "+").replace(" -", "-")
    )
    if fine := _FINE.search(text):
        # Python cuts what is less than a microsecond; the database rounds.
        found = found.replace(microsecond=0) + timedelta(microseconds=round(float(fine[0]) * 1_000_000))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _number(text: str, kind: str) -> Any:
    if text.strip().lower() in _SPECIAL:
        return float(text) if kind in kinds.LEAST_AND_MOST else None
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        return None
    exact = Decimal(text.strip())
    if kind in kinds.LEAST_AND_MOST:
        least, most = map(Decimal, kinds.LEAST_AND_MOST[kind])
        return float(exact) if not exact or least <= abs(exact) <= most else None
    precision, scale = kinds.digits(kind)
    rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    return rounded if abs(rounded) < Decimal(10) ** (precision - scale) else None


def _json(value: Any) -> str:
    """Return a value's JSON as the database writes it."""
    if isinstance(value, _Digits):
        return str(value)
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {_json(one)}" for name, one in value.items())
            + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    return json.dumps(value, ensure_ascii=False)
