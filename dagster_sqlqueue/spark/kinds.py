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
NAMES = (*PLAIN, "decimal(p,s)", "array<…>", "map<string,…>", "struct<name:…,…>")

_OTHER_NAMES = {
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "real": "float",
    "decimal": "decimal(10,0)",
    "timestamp_ltz": "timestamp",
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")
BITS = {"smallint": 15, "int": 31, "bigint": 63}
LEAST_AND_MOST = {"float": ("1e-45", "3.4028235e38"), "double": ("5e-324", "1.7976931348623157e308")}
WHOLE = r"^\s*[-+]?[0-9]{1,19}\s*$"
NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\s*$"
DAY = r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
ZONE = r"(\s?([zZ]|[-+](0[0-9]|1[0-4])(:?[0-5][0-9])?))?"
_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`:,<>()]+))\s*(?::\s*|\s+)([A-Za-z_].*?)\s*", re.DOTALL)
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.DOTALL | re.IGNORECASE)
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

OUTSIDE = "it lies outside the years 1 to 9999, such as infinity, which Spark's types cannot hold"
"""Why a date or timestamp of the database's is none of Spark's."""
GUARDS_ITSELF = 160000
"""The server version from which the database says whether a text can be cast."""


def kind(text: str) -> str | None:
    """Spark's own name of a type; None if columns cannot be of it."""
    if found := _NESTED.fullmatch(text.strip()):
        return _nested(found[1].lower(), found[2])
    name = text.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    if name in PLAIN:
        return name
    if found := _DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2] or 0)
        return f"decimal({precision},{scale})" if 1 <= precision <= 38 and scale <= precision else None
    return None


def _nested(word: str, inside: str) -> str | None:
    parts = _parts(inside)
    if word == "struct":
        members: dict[str, str] = {}
        for part in parts:
            if not (found := _FIELD.fullmatch(part)) or (inner := kind(found[3])) is None:
                return None
            members[found[1].replace("``", "`") if found[1] else found[2]] = inner
        return struct_of(members) if len(set(map(str.lower, members))) == len(parts) else None
    *key, last = parts
    inner = kind(last)
    if inner is None or [kind(part) for part in key] != ([] if word == "array" else ["string"]):
        return None
    return f"array<{inner}>" if word == "array" else f"map<string,{inner}>"


def _parts(text: str) -> list[str]:
    """Split at the commas that are not within brackets or a quoted name."""
    parts, depth, quoted = [""], 0, False
    for one in text:
        quoted ^= one == "`"
        depth += 0 if quoted else (one in "<(") - (one in ">)")
        if one == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def struct_of(members: Mapping[str, str]) -> str:
    """Return the name of the type of an object with these fields."""
    names = {name: name if _SIMPLE.fullmatch(name) else "`" + name.replace("`", "``") + "`" for name in members}
    return f"struct<{','.join(f'{names[name]}:{inner}' for name, inner in members.items())}>"


def is_nested(name: str) -> bool:
    """Return whether it is the type of lists or objects."""
    return name.endswith(">")


def inside(name: str) -> tuple[str, dict[str, str]]:
    """Return which nested type a name is, and the types in it: of a struct by their fields, else of its elements."""
    found = _NESTED.fullmatch(name)
    assert found is not None
    if found[1] != "struct":
        return found[1], {"": found[2].removeprefix("string,") if found[1] == "map" else found[2]}
    return "struct", parse_ddl(found[2])


def digits(name: str) -> tuple[int, int]:
    """Return precision and scale of a decimal."""
    precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def sql_type(name: str) -> str:
    """Return the database's type for one of Spark's."""
    return PLAIN.get(name) or "numeric({}, {})".format(*digits(name))


def cast(text: str, name: str) -> str:
    """Return SQL that casts a text; it fails if it cannot be cast."""
    return text if name == "string" or is_nested(name) else f"CAST({text} AS {sql_type(name)})"


def cast_or_null(text: str, name: str, server: int) -> str:
    """Return SQL that casts a text, or is NULL if it cannot be cast.

    Before version 16 the database cannot check that, and dates are taken in their ISO form only.

    Args:
        text: an SQL expression.
        name: the type.
        server: the server's version, as `server_version_num` has it.
    """
    if name == "string" or is_nested(name):
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
    if name in BITS:
        most = 2 ** BITS[name]
        return [f"{text} ~ {literal(WHOLE)}", f"{number} BETWEEN {-most} AND {most - 1}"]
    if name in ("date", "timestamp"):
        last = f"CAST(substr({text}, 1, 7) || '-01' AS date) + interval '1 month - 1 day'"
        return [
            f"{text} ~ {literal(f'^{DAY}([T ]{TIME}{ZONE})?$')}",
            f"CAST(substr({text}, 9, 2) AS integer) <= EXTRACT(day FROM {last})",
        ]
    if name == "boolean":
        words = "'t', 'true', 'y', 'yes', 'on', '1', 'f', 'false', 'n', 'no', 'off', '0'"
        return [f"lower(btrim({text})) IN ({words})"]
    short = f"length({text}) <= 400"
    if name.startswith("decimal"):
        precision, scale = digits(name)
        return [short, f"{text} ~ {literal(NUMBER)}", f"abs(round({number}, {scale})) < 1e{precision - scale}"]
    least, most_text = LEAST_AND_MOST[name]
    special = f"lower(btrim({text})) IN ('nan', 'infinity', '-infinity')"
    inside = f"{number} = 0 OR abs({number}) BETWEEN {least} AND {most_text}"
    return [short, f"({special} OR {text} ~ {literal(NUMBER)})", f"CASE WHEN {special} THEN true ELSE {inside} END"]


def value_text(column: str, value: Any, name: str) -> str:
    """Return a value as the database reads it, if it is one of the type.

    Raises:
        InvalidInput: it is not.
    """
    if is_nested(name):
        raise InvalidInput(f"where {column!r}: the column is {name}; conditions compare single values")
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    good = isinstance(value, str | int | float)
    try:
        if name in BITS:
            good = good and -(2 ** BITS[name]) <= int(text) < 2 ** BITS[name]
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
    parts = _parts(text)
    for n, part in enumerate(parts):
        found = _FIELD.fullmatch(part)
        if found is None:
            raise InvalidInput(
                f"{of} is not usable at {','.join(parts[n:]).strip()!r}; write it like: account string, amount double"
            )
        name = found[1].replace("``", "`") if found[1] else found[2]
        if (known := kind(found[3])) is None:
            raise InvalidInput(f"{of}: the type of {name!r} is {found[3]}; types are {', '.join(NAMES)}")
        if name.lower() in map(str.lower, columns):
            raise InvalidInput(f"{of} names {name!r} twice; Spark does not distinguish upper and lower case")
        columns[name] = known
    return columns


def ddl(types: Mapping[str, str]) -> str:
    """Spark's notation of a schema: give it to `.schema(…)` to read these columns only."""
    return ", ".join(f"`{name.replace('`', '``')}` {_in_ddl(kind(of) or of)}" for name, of in types.items())


def _in_ddl(name: str) -> str:
    """Return the name of a type that Spark takes for it, whatever `spark.sql.timestampType` makes of `timestamp`."""
    if not is_nested(name):
        return "timestamp_ltz" if name == "timestamp" else name
    sort, types = inside(name)
    written = {field: _in_ddl(of) for field, of in types.items()}
    if sort == "struct":
        return struct_of(written)
    return f"array<{written['']}>" if sort == "array" else f"map<string,{written['']}>"
