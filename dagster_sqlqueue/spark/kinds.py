"""The types of columns: Spark's name, the database's, which texts can be cast, and how a schema is written."""

import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.literals import literal

PLAIN = {
    "string": "text",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
}
"""Spark's name of a type, and the database's."""
NAMES = (*PLAIN, "decimal(p,s)")

_OTHER_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "real": "float", "decimal": "decimal(10,0)"}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")
_BITS = {"smallint": 15, "int": 31, "bigint": 63}
_LEAST_AND_MOST = {"float": ("1e-45", "3.4028235e38"), "double": ("5e-324", "1.7976931348623157e308")}
_WHOLE = r"^\s*[-+]?[0-9]{1,19}\s*$"
_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\s*$"
_DAY = r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
_ZONE = r"(\s?([zZ]|[-+](0[0-9]|1[0-4])(:?[0-5][0-9])?))?"
_FIELD = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|([^\s`:,<>()]+))\s*(?::\s*|\s+)([A-Za-z_]+(?:\s*\([^)]*\))?)\s*(.*)", re.DOTALL
)

GUARDS_ITSELF = 160000
"""The server version from which the database says whether a text can be cast."""


def kind(text: str) -> str | None:
    """Spark's own name of a type; None if columns cannot be of it."""
    name = text.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    if name in PLAIN:
        return name
    if found := _DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2] or 0)
        return f"decimal({precision},{scale})" if 1 <= precision <= 38 and scale <= precision else None
    return None


def _digits(name: str) -> tuple[int, int]:
    precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def sql_type(name: str) -> str:
    """Return the database's type for one of Spark's."""
    return PLAIN.get(name) or "numeric({}, {})".format(*_digits(name))


def cast(text: str, name: str) -> str:
    """Return SQL that casts a text; it fails if it cannot be cast."""
    return text if name == "string" else f"CAST({text} AS {sql_type(name)})"


def cast_or_null(text: str, name: str, server: int) -> str:
    """Return SQL that casts a text, or is NULL if it cannot be cast.

    Before version 16 the database cannot check that, and dates are taken in their ISO form only.

    Args:
        text: an SQL expression.
        name: the type.
        server: the server's version, as `server_version_num` has it.
    """
    if name == "string":
        return text
    guards = _guards(text, name) if server < GUARDS_ITSELF else [f"pg_input_is_valid({text}, '{sql_type(name)}')"]
    if name.startswith("decimal"):
        guards.append(f"lower(btrim({text})) <> 'nan'")
    guarded = cast(text, name)
    # One inside the other: AND promises no order, and a later guard relies on an earlier one.
    for guard in reversed(guards):
        guarded = f"CASE WHEN {guard} THEN {guarded} END"
    return guarded


def _guards(text: str, name: str) -> list[str]:
    number = f"CAST({text} AS numeric)"
    if name in _BITS:
        most = 2 ** _BITS[name]
        return [f"{text} ~ {literal(_WHOLE)}", f"{number} BETWEEN {-most} AND {most - 1}"]
    if name in ("date", "timestamp"):
        form = f"^{_DAY}$" if name == "date" else f"^{_DAY}([T ]{_TIME}{_ZONE})?$"
        last = f"CAST(substr({text}, 1, 7) || '-01' AS date) + interval '1 month - 1 day'"
        return [f"{text} ~ {literal(form)}", f"CAST(substr({text}, 9, 2) AS integer) <= EXTRACT(day FROM {last})"]
    if name == "boolean":
        words = "'t', 'true', 'y', 'yes', 'on', '1', 'f', 'false', 'n', 'no', 'off', '0'"
        return [f"lower(btrim({text})) IN ({words})"]
    short = f"length({text}) <= 400"
    if name.startswith("decimal"):
        precision, scale = _digits(name)
        return [short, f"{text} ~ {literal(_NUMBER)}", f"abs(round({number}, {scale})) < 1e{precision - scale}"]
    least, most_text = _LEAST_AND_MOST[name]
    special = f"lower(btrim({text})) IN ('nan', 'infinity', '-infinity')"
    inside = f"{number} = 0 OR abs({number}) BETWEEN {least} AND {most_text}"
    return [short, f"({special} OR {text} ~ {literal(_NUMBER)})", f"CASE WHEN {special} THEN true ELSE {inside} END"]


def value_text(column: str, value: Any, name: str) -> str:
    """Return a value as the database reads it, if it is one of the type.

    Raises:
        InvalidInput: it is not.
    """
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    good = isinstance(value, str | int | float)
    try:
        if name in _BITS:
            good = good and -(2 ** _BITS[name]) <= int(text) < 2 ** _BITS[name]
        elif name in ("float", "double"):
            float(text)
        elif name.startswith("decimal"):
            good = good and Decimal(text).is_finite()
        elif name == "boolean":
            good = text in ("true", "false")
        elif name == "date":
            text = date.fromisoformat(text).isoformat()
        elif name == "timestamp":
            good = good and datetime.fromisoformat(text).tzinfo is not None
    except (ValueError, InvalidOperation):
        good = False
    if not good:
        hint = "; write it in ISO form with a zone" if name == "timestamp" else ""
        raise InvalidInput(f"where {column!r}: {value!r} is not a value of the type {name}{hint}")
    return text


def parse_ddl(text: str, of: str = "payload") -> dict[str, str]:
    """Return the columns of a schema in Spark's notation: `account string, amount decimal(10,2)`.

    Args:
        text: the schema.
        of: what it is the schema of, for messages.

    Raises:
        InvalidInput: it is not written so, or a type is not one of `NAMES`.
    """
    columns: dict[str, str] = {}
    rest = text
    while True:
        found = _FIELD.fullmatch(rest)
        if found is None:
            raise InvalidInput(f"{of} is not usable at {rest.strip()!r}; write it like: account string, amount double")
        name = found[1].replace("``", "`") if found[1] else found[2]
        declared, rest = found[3], found[4]
        known = kind(re.sub(r"\s+", "", declared))
        if known is None or rest[:1] not in ("", ","):
            more = "" if rest[:1] in ("", ",") else (" " if rest[0].isalnum() else "") + rest.split(",")[0]
            raise InvalidInput(
                f"{of}: the type of {name!r} is {declared}{more}; types are {', '.join(NAMES)}, and lists and objects"
                " come as the string of their JSON"
            )
        if name.lower() in map(str.lower, columns):
            raise InvalidInput(f"{of} names {name!r} twice; Spark does not distinguish upper and lower case")
        columns[name] = known
        if not rest:
            return columns
        rest = rest[1:]


def ddl(types: Mapping[str, str]) -> str:
    """Spark's notation of a schema: give it to `.schema(…)` to read these columns only."""
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in types.items())
