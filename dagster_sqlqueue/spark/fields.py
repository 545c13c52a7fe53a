"""The columns that can be asked for: those of every job, and those that are taken out of its JSON."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA, quote_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import kinds, local_days
from dagster_sqlqueue.spark.literals import literal
from dagster_sqlqueue.spark.options import json_option, null_for_bad, state_of
from dagster_sqlqueue.spark.spark_types import kind_of


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        sql: the expression; of a field, one that gives its text, or the JSON of a list or an object.
        kind: Spark's name of its type.
        field: where in the JSON it is, like `payload.account`; None for a column of every job.
        local_day: of a day by the clocks of a zone: an expression that gives its text, and NULL where there is no such day.
            `sql` then shows what it is made of.
    """

    sql: str
    kind: str
    field: str | None = None
    local_day: str | None = None

    def value(self, server: int | None) -> str:
        """Return the typed expression.

        Args:
            server: the server's version if values that cannot be cast become NULL; None: it fails the statement.
        """
        if self.field is None:
            return self.sql
        if self.local_day is not None:
            found = kinds.cast(self.local_day, self.kind)
            # What a column shows of it is no date, and so the error shows it.
            return found if server is not None else f"COALESCE({found}, {kinds.cast(self.sql, self.kind)})"
        return kinds.cast(self.sql, self.kind) if server is None else kinds.cast_or_null(self.sql, self.kind, server)

    def selected(self, server: int | None) -> str:
        """Return the expression as it is sent to Spark: decimals as text, which Arrow casts again."""
        value = self.value(server)
        return f"CAST({value} AS text)" if self.kind.startswith("decimal") else value


_PLAIN = {
    "id": ("CAST(id AS text)", "string"),
    "bucket": ("CAST(bucket AS integer)", "int"),
    "priority": ("CAST(priority AS integer)", "int"),
    "state": ("state", "string"),
    "attempt": ("attempt", "int"),
    "run_at": ("run_at", "timestamp"),
    "created_at": ("created_at", "timestamp"),
    "started_at": ("started_at", "timestamp"),
    "finished_at": ("finished_at", "timestamp"),
    "payload": ("CAST(payload AS text)", "string"),
    "result": ("CAST(result AS text)", "string"),
    "error": ("error", "string"),
}
_ARCHIVE_ONLY = {"finished_at": "CAST(NULL AS timestamptz)", "result": "CAST(NULL AS text)"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def columns(options: Mapping[str, str], schema: str = DEFAULT_SCHEMA) -> dict[str, Column]:
    """Return every column that can be asked for, by its name.

    One of the option `columns` takes the place of the payload's field of its name.

    Args:
        options: those of the read.
        schema: where the queue's tables are.

    Raises:
        InvalidInput: the option `columns`, `payload` or `payload_prefix` is not usable.
    """
    live = state_of(options) != "archive"
    plain = of_every_job(live=live)
    empty: dict[str, Any] = {}
    asked = named(json_option(options, "columns", empty), plain, live=live, schema=schema)
    names = set(map(str.lower, asked))
    typed = {name: column for name, column in _typed(options, plain).items() if name.lower() not in names}
    return plain | typed | asked


def of_every_job(*, live: bool) -> dict[str, Column]:
    """Return the columns that every job has.

    Args:
        live: whether they are those of live jobs, which have no result yet.
    """
    return {name: Column(_ARCHIVE_ONLY.get(name, sql) if live else sql, kind) for name, (sql, kind) in _PLAIN.items()}


def named(
    asked: Mapping[str, Any], plain: Collection[str], *, live: bool, schema: str = DEFAULT_SCHEMA
) -> dict[str, Column]:
    """Return the columns that the option `columns` names.

    Args:
        asked: name → {"path": …, "type": …}, and for a day by the clocks of a zone {"path": …, "type": "date", "zone": …}.
        plain: the columns that every job has, in lower case.
        live: as for `of_every_job`.
        schema: where the queue's tables are.

    Raises:
        InvalidInput: a name, path, type or zone is not usable, or the name is taken.
    """
    known: dict[str, Column] = {}
    for name, column in asked.items():
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"column {name!r} is not usable: letters, digits and '_', at most 63")
        # Spark does not distinguish upper and lower case.
        if name.lower() in plain:
            raise InvalidInput(
                f"column {name!r} has the name of a column that every job has; give it another, such as payload_{name}"
            )
        if name.lower() in map(str.lower, known):
            raise InvalidInput(f"columns has {name!r} twice; Spark does not distinguish upper and lower case")
        given = column if isinstance(column, Mapping) else {}
        path, wanted = given.get("path"), given.get("type", "string")
        base, *fields = path.split(".") if isinstance(path, str) else [""]
        kind = kinds.kind(wanted) if isinstance(wanted, str) else None
        if base not in ("payload", "result") or not all(fields) or not fields or kind is None:
            raise InvalidInput(
                f"column {name!r} is {column}; write path as payload.field or result.field, and type as one of"
                f" {', '.join(kinds.NAMES)}"
            )
        nothing = live and base == "result"
        if "zone" in given and not nothing:
            known[name] = _local_day(name, given, base, fields, schema)
        else:
            known[name] = Column("CAST(NULL AS text)" if nothing else _field(base, fields, kind), kind, path)
    return known


def _local_day(name: str, given: Mapping[str, Any], base: str, fields: list[str], schema: str) -> Column:
    zone, path = local_days.of_column(name, given)
    instant = _text(base, fields)
    if path is None:
        by = literal(zone or "")
        known = by
    else:
        by = _text(base, path)
        known = f"CASE WHEN {by} IN (SELECT name FROM pg_catalog.pg_timezone_names) THEN {by} END"  # noqa: S608 quoted
    return Column(
        # NULL where either is.
        f"({instant} || ' in the time zone ' || {by})",
        "date",
        given["path"],
        f"{quote_schema(schema)}.local_day({instant}, {known})",
    )


def _typed(options: Mapping[str, str], plain: Mapping[str, Column]) -> dict[str, Column]:
    prefix = options.get("payload_prefix", "")
    found: dict[str, Column] = {}
    for field, kind in kinds.parse_ddl(options["payload"]).items() if "payload" in options else ():
        name = prefix + field
        if name.lower() in plain:
            raise InvalidInput(
                f"the field {field!r} of the payload has the name of a column that every job has; set the option"
                " payload_prefix to, say, payload_"
            )
        found[name] = in_payload(field, kind)
    return found


def in_payload(field: str, kind: str) -> Column:
    """Return the column of a field of the payload, whatever it is called."""
    return Column(_field("payload", [field], kind), kind, f"payload.{field}")


def _field(base: str, path: list[str], kind: str) -> str:
    """Return the text of a field; of lists and objects its JSON, in which a text differs from a list."""
    if not kinds.is_nested(kind):
        return _text(base, path)
    if len(path) == 1:
        return f"CAST({base} -> {literal(path[0])} AS text)"
    return f"CAST({base} #> ARRAY[{', '.join(literal(part) for part in path)}] AS text)"


def _text(base: str, path: list[str]) -> str:
    if len(path) == 1:
        return f"({base} ->> {literal(path[0])})"
    return f"({base} #>> ARRAY[{', '.join(literal(part) for part in path)}])"


def default_schema(options: Mapping[str, str]) -> str:
    """Return the schema of a read that asks for none: without the whole payload where its fields are columns."""
    known = columns(options)
    return kinds.ddl(
        {name: column.kind for name, column in known.items() if name != "payload" or "payload" not in options}
    )


def check_schema(schema: StructType, known: Mapping[str, Column]) -> None:
    """Check whether the schema that Spark asks for can be read.

    Raises:
        InvalidInput: the schema names a column that is not known, another type for one, or one that is not nullable.
    """
    if unknown := [field.name for field in schema.fields if field.name not in known]:
        raise InvalidInput(f"columns {unknown} are not known; there are {sorted(known)}")
    for field in schema.fields:
        if (asked := kind_of(field.dataType)) != (kind := known[field.name].kind):
            without_zone = (kind, asked) == ("timestamp", "timestamp_ntz")
            raise InvalidInput(
                f"column {field.name!r} is {kind}, not {asked}; "
                + (
                    "write timestamp_ltz, which is a timestamp whatever spark.sql.timestampType says"
                    if without_zone
                    else "the options 'payload' and 'columns' are where types are set"
                )
            )
        if not field.nullable:
            raise InvalidInput(
                f"column {field.name!r} is asked for as not nullable, and a job may lack it: leave NOT NULL (nullable=False)"
                " out of the schema"
            )


def selection(schema: StructType, known: Mapping[str, Column], options: Mapping[str, str], server: int) -> str:
    """Return the select list for the schema that Spark asks for. Columns are identified by their place."""
    guard = server if null_for_bad(options) else None
    return ", ".join(known[field.name].selected(guard) for field in schema.fields) or "1"
