"""The options of the data source, checked and turned into parts of one SQL statement.

Names, values and paths come from outside. What goes into the statement is either one of the fixed words below or a
literal quoted here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from pyspark.sql.types import StructType

from dagster_sqlqueue.errors import InvalidInput

FORMAT = "sqlqueue"
KNOWN = (
    *("queue", "state", "batch_id", "states", "columns", "where"),
    *("finished_from", "finished_until", "target_rows"),
)

_PLAIN = {
    "id": ("CAST(id AS text)", "string"),
    "bucket": ("CAST(bucket AS integer)", "int"),
    "priority": ("CAST(priority AS integer)", "int"),
    "state": ("state", "string"),
    "attempt": ("attempt", "int"),
    "created_at": ("created_at", "timestamp"),
    "started_at": ("started_at", "timestamp"),
    "finished_at": ("finished_at", "timestamp"),
    "payload": ("CAST(payload AS text)", "string"),
    "result": ("CAST(result AS text)", "string"),
    "error": ("error", "string"),
}
_NOT_IN_BATCHES = {"finished_at": "CAST(NULL AS timestamptz)", "result": "CAST(NULL AS text)"}
_CASTS = {
    "string": "text",
    "int": "integer",
    "bigint": "bigint",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
}
_BITS = {"int": 31, "bigint": 63}
_OPERATORS = ("=", "<", "<=", ">", ">=", "in")
_STATES = ("succeeded", "failed", "cancelled")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def check(options: Mapping[str, str]) -> None:
    """Look at the options that stand for themselves.

    Raises:
        InvalidInput: one is missing, misspelt or out of range.
    """
    # Spark adds the path of `load(path)` by itself, and it is as unknown here as a misspelt name.
    if unknown := [name for name in options if name.lower() not in KNOWN]:
        raise InvalidInput(
            f"the option {unknown[0]!r} is not known to the format {FORMAT!r}; it has {', '.join(KNOWN)}"
        )
    if (state := options.get("state", "archive")) not in ("archive", "batch"):
        raise InvalidInput(f"the option 'state' is {state!r}; it is archive or batch")
    required(options, "queue")
    target_rows(options)
    moment(options, "finished_from")
    moment(options, "finished_until")


def of_batches(options: Mapping[str, str]) -> bool:
    """Whether sealed batches are read, not the archive."""
    return options.get("state", "archive") == "batch"


def columns(options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Every column that can be asked for: its SQL and its type.

    Raises:
        InvalidInput: the option `columns` is not usable.
    """
    known = dict(_PLAIN)
    if of_batches(options):
        known |= {name: (sql, known[name][1]) for name, sql in _NOT_IN_BATCHES.items()}
    for name, column in _json(options, "columns", {}).items():
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"column {name!r} is not usable: letters, digits and '_', at most 63")
        path, kind = (column.get("path"), column.get("type", "string")) if isinstance(column, dict) else (None, None)
        base, *fields = path.split(".") if isinstance(path, str) else [""]
        if base not in ("payload", "result") or not all(fields) or not fields or kind not in _CASTS:
            raise InvalidInput(
                f"column {name!r} is {column}; write path as payload.field or result.field, and type as one of"
                f" {', '.join(_CASTS)}"
            )
        at = f"ARRAY[{', '.join(_literal(part) for part in fields)}]"
        field = "CAST(NULL AS text)" if of_batches(options) and base == "result" else f"({base} #>> {at})"
        known[name] = (field if kind == "string" else f"CAST({field} AS {_CASTS[kind]})", kind)
    return known


def selection(schema: StructType, known: Mapping[str, tuple[str, str]]) -> str:
    """The select list for the schema that Spark asks for.

    Raises:
        InvalidInput: the schema names a column that is not known, or another type for one.
    """
    if unknown := [field.name for field in schema.fields if field.name not in known]:
        raise InvalidInput(f"columns {unknown} are not known; there are {sorted(known)}")
    for field in schema.fields:
        if (asked := field.dataType.simpleString()) != (kind := known[field.name][1]):
            raise InvalidInput(
                f"column {field.name!r} is {kind}, not {asked}; the option 'columns' is where types are set"
            )
    return ", ".join(f'{known[field.name][0]} AS "{field.name}"' for field in schema.fields)


def conditions(options: Mapping[str, str], known: Mapping[str, tuple[str, str]]) -> list[str]:
    """What a row has to fulfil, as SQL.

    Raises:
        InvalidInput: an option is not usable.
    """
    found = [f"queue = {_literal(required(options, 'queue'))}"]
    if of_batches(options):
        ids = ", ".join(f"CAST('{_uuid(part.strip())}' AS uuid)" for part in required(options, "batch_id").split(","))
        found.append(f"batch_id IN ({ids}) AND state = 'running'")
    elif states := options.get("states"):
        names = [state.strip() for state in states.split(",")]
        if unknown := [name for name in names if name not in _STATES]:
            raise InvalidInput(f"the option 'states' names {unknown[0]!r}; archive states are {', '.join(_STATES)}")
        found.append(f"state IN ({', '.join(_literal(name) for name in names)})")
    return [*found, *(_condition(test, known) for test in _json(options, "where", []))]


def _condition(test: Any, known: Mapping[str, tuple[str, str]]) -> str:
    given = test if isinstance(test, dict) else {}
    column, operator, value = given.get("column"), given.get("op"), given.get("value")
    if not isinstance(column, str) or column not in known or operator not in _OPERATORS:
        raise InvalidInput(f"where has {test}; column is one of {sorted(known)}, op one of {', '.join(_OPERATORS)}")
    if operator == "in" and not isinstance(value, list):
        raise InvalidInput(f"where has {test}; in wants a list of values")
    sql, kind = known[column]
    values = value if isinstance(value, list) and operator == "in" else [value]
    typed = [f"CAST({_literal(_text(column, one, kind))} AS {_CASTS[kind]})" for one in values]
    if operator != "in":
        return f"{sql} {operator} {typed[0]}"
    return f"{sql} IN ({', '.join(typed)})" if typed else "FALSE"


def _text(column: str, value: Any, kind: str) -> str:
    """A value as the database reads it, if it is one of the type."""
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    good = isinstance(value, str | int | float)
    try:
        match kind:
            case "int" | "bigint":
                good = good and -(2 ** _BITS[kind]) <= int(text) < 2 ** _BITS[kind]
            case "double":
                float(text)
            case "boolean":
                good = text in ("true", "false")
            case "date":
                text = date.fromisoformat(text).isoformat()
            case "timestamp":
                good = good and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        good = False
    if not good:
        hint = "; write it in ISO form with a zone" if kind == "timestamp" else ""
        raise InvalidInput(f"where {column!r}: {value!r} is not a value of the type {kind}{hint}")
    return text


def target_rows(options: Mapping[str, str]) -> int:
    """How many rows a partition is to have, about."""
    text = options.get("target_rows", "250000")
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise InvalidInput(f"the option 'target_rows' is {text!r}; it is a whole number from 1")
    return int(text)


def moment(options: Mapping[str, str], name: str) -> datetime | None:
    """An option that is a moment; None where it is not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.min
    if found.tzinfo is None:
        raise InvalidInput(f"the option {name!r} is {text!r}; write an ISO timestamp with a zone")
    return found


def required(options: Mapping[str, str], name: str) -> str:
    """An option that must be there."""
    if not options.get(name):
        raise InvalidInput(f"the option {name!r} of the format {FORMAT!r} is missing")
    return options[name]


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"the option 'batch_id' holds {text!r}, which is no UUID") from None


def _json(options: Mapping[str, str], name: str, default: Any) -> Any:
    try:
        value = json.loads(options.get(name) or json.dumps(default))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"the option {name!r} is not JSON: {error}") from None
    if not isinstance(value, type(default)):
        raise InvalidInput(f"the option {name!r} must be a JSON {'object' if default == {} else 'list'}")
    return value


def _literal(text: str) -> str:
    if "\x00" in text:
        raise InvalidInput("a NUL character cannot be part of a value")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(f"{text!r} is not valid Unicode")
    quoted = text.replace("'", "''")
    return f"'{quoted}'" if "\\" not in text else "E'" + quoted.replace("\\", "\\\\") + "'"


def literals(values: Sequence[datetime]) -> list[str]:
    """Moments as SQL."""
    return [f"'{value.isoformat()}'" for value in values]
