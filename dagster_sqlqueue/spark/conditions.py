"""Conditions on rows, as SQL: from the options, and from the filters that Spark pushes down."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as ds

from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA, quote_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import kinds
from dagster_sqlqueue.spark.fields import Column
from dagster_sqlqueue.spark.literals import literal, moment
from dagster_sqlqueue.spark.options import (
    batch_ids,
    buckets,
    json_option,
    required,
    state_of,
    states,
)
from dagster_sqlqueue.spark.options import moment as moment_option

_LISTS = ("in", "on")
"""The operators that compare with several values. `on`: by the texts that are days for an asset."""
_OPERATORS = ("=", "<", "<=", ">", ">=", *_LISTS)
_STEP = timedelta(microseconds=1)
_PUSHED = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}


@dataclass(frozen=True, slots=True)
class Test:
    """A column compared with a value, or, for `in` and `on`, with several."""

    column: str
    operator: str
    value: Any


def scope(options: Mapping[str, str]) -> list[str]:
    """Return the conditions on columns of every job, none of which can fail on a row."""
    found = [f"queue = {literal(required(options, 'queue'))}"]
    if state_of(options) == "batch":
        ids = ", ".join(f"CAST('{one}' AS uuid)" for one in batch_ids(options))
        found.append(f"batch_id IN ({ids}) AND state = 'running'")
    if names := states(options):
        found.append(f"state IN ({', '.join(literal(name) for name in names)})")
    if ranges := buckets(options):
        found.append("(" + " OR ".join(f"bucket BETWEEN {low} AND {high}" for low, high in ranges) + ")")
    for name, operator in (("from", ">="), ("until", "<")):
        for column in ("created", "finished"):
            if (value := moment_option(options, f"{column}_{name}")) is not None:
                found.append(f"{column}_at {operator} {moment(value)}")
    return found


def tests(options: Mapping[str, str], known: Mapping[str, Column]) -> list[Test]:
    """Return the option `where`, checked.

    Raises:
        InvalidInput: it is not usable.
    """
    found: list[Any] = json_option(options, "where", [])
    return [_test(one, known) for one in found]


def _test(test: Any, known: Mapping[str, Column]) -> Test:
    given = test if isinstance(test, dict) else {}
    column, operator, value = given.get("column"), given.get("op"), given.get("value")
    if not isinstance(column, str) or column not in known or operator not in _OPERATORS:
        raise InvalidInput(f"where has {test}; column is one of {sorted(known)}, op one of {', '.join(_OPERATORS)}")
    if operator in _LISTS and not isinstance(value, list):
        raise InvalidInput(f"where has {test}; {operator} wants a list of values")
    made = Test(column, operator, value)
    condition(made, known, None)
    return made


def condition(test: Test, known: Mapping[str, Column], server: int | None, schema: str = DEFAULT_SCHEMA) -> str:
    """Return a test as SQL.

    Args:
        test: the test.
        known: every column that can be asked for.
        server: as for `Column.value`.
        schema: where the queue's tables are.

    Raises:
        InvalidInput: a value is not of the column's type, or `on` is asked of a column that is no field with a day.
    """
    column = known[test.column]
    if test.operator == "on":
        return _on(test, column, schema)
    sql = column.value(server)
    values = test.value if test.operator == "in" else [test.value]
    texts = [literal(kinds.value_text(test.column, one, column.kind)) for one in values]
    # A decimal is compared in full, not rounded to the column's digits first.
    sort = "numeric" if column.kind.startswith("decimal") else kinds.sql_type(column.kind)
    typed = [f"CAST({text} AS {sort})" for text in texts]
    if test.operator != "in":
        return f"{sql} {test.operator} {typed[0]}"
    return f"{sql} IN ({', '.join(typed)})" if typed else "FALSE"


def _on(test: Test, column: Column, schema: str) -> str:
    if column.field is None or column.kind not in ("date", "string"):
        raise InvalidInput(
            f"where {test.column!r}: the column is {column.kind}; on compares days, in a field of the type date or string"
        )
    days = ", ".join(literal(kinds.value_text(test.column, one, "date")) for one in test.value)
    if not days:
        return "FALSE"
    if column.local_day is not None:
        return f"{column.local_day} IN ({days})"
    # Most jobs of an archive are of other days, and need no more than the first comparison.
    named = f"{quote_schema(schema)}.day_of({column.sql})"
    return f"CASE WHEN left({column.sql}, 10) IN ({days}) THEN {named} IS NOT NULL ELSE FALSE END"


def all_of(
    options: Mapping[str, str],
    known: Mapping[str, Column],
    pushed: Sequence[Test],
    server: int,
    schema: str = DEFAULT_SCHEMA,
) -> list[str]:
    """Return every condition of a read, besides that of its slice. None fails on a row: one whose field cannot be cast
    does not fulfil it, so that a job that was not asked for ends no read.
    """
    asked = (*tests(options, known), *pushed)
    return [*scope(options), *(condition(test, known, server, schema) for test in asked)]


def from_filters(filters: Iterable[ds.Filter], known: Mapping[str, Column]) -> list[Test]:
    """Return those of Spark's filters that the database can take over. Spark applies all of them again, so that where
    the two differ about a value a filter may only let too much through.
    """
    return [test for one in filters if (test := _pushed(one, known)) is not None]


def _pushed(one: ds.Filter, known: Mapping[str, Column]) -> Test | None:
    operator = "in" if isinstance(one, ds.In) else _PUSHED.get(type(one))
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if operator is None or len(attribute) != 1 or attribute[0] not in known:
        return None
    name = attribute[0]
    value = _plain(list(one.value) if isinstance(one, ds.In) else getattr(one, "value", None))
    # Texts are ordered by the database's collation, and not as Spark orders them.
    if known[name].kind == "string" and operator not in ("=", "in"):
        return None
    test = Test(name, operator, value)
    try:
        condition(test, known, None)
    except InvalidInput:
        return None
    return test


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value if one is not None]
    return value.isoformat() if isinstance(value, date | datetime) else value


def finished_range(options: Mapping[str, str], pushed: Iterable[Test]) -> tuple[datetime | None, datetime | None]:
    """From when, and until when (exclusive), what is read may have finished: what the archive's slices have to cover."""
    lows = [moment_option(options, "finished_from")]
    highs = [moment_option(options, "finished_until")]
    for test in pushed:
        if test.column == "finished_at" and test.operator != "in":
            value = datetime.fromisoformat(test.value)
            if test.operator in (">", ">=", "="):
                lows.append(value)
            if test.operator in ("<", "<=", "="):
                highs.append(value + _STEP)
    return max((one for one in lows if one), default=None), min((one for one in highs if one), default=None)
