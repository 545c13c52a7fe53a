"""Check the columns of results against what can be written, and against the table that takes them.

A data frame has its columns before it is computed. A check of them costs a statement on the catalog, and no Spark job.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pydantic import BaseModel
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.types import CalendarIntervalType, NullType, StructType

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import kinds, sinks, target_table
from dagster_sqlqueue.spark.payload_columns import stored_fields
from dagster_sqlqueue.spark.spark_types import spark_type
from dagster_sqlqueue.spark.target_table import Target

Columns: TypeAlias = "str | StructType | pa.Schema"
"""The columns of results: in Spark's notation, as Spark's schema, or as Arrow's."""

_CURE = "Mend or drop it, or name another one"
# What the types of Arrow can be written to, by `pg_type.typcategory`. Of every other category, and for texts, the database
# decides by the value.
_DECIDED = frozenset("ABDNST")
_FITTING: list[tuple[Any, str]] = [
    (pa.types.is_boolean, "BS"),
    (pa.types.is_integer, "NS"),
    (pa.types.is_floating, "NS"),
    (pa.types.is_decimal, "NS"),
    (pa.types.is_date, "DS"),
    (pa.types.is_timestamp, "DS"),
]


def schema_of(columns: "Columns | DataFrame | pa.Table") -> pa.Schema:
    """Return the columns as Arrow's.

    Raises:
        InvalidInput: one has a type that cannot be written, or the notation is not usable.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    if isinstance(columns, pa.Schema):
        return columns
    if isinstance(columns, pa.Table):
        return columns.schema
    if isinstance(columns, str):
        fields = [(name, spark_type(kind)) for name, kind in kinds.parse_ddl(columns, "columns").items()]
    else:
        schema = columns if isinstance(columns, StructType) else columns.schema
        fields = [(field.name, field.dataType) for field in schema.fields]
    found = []
    for name, kind in fields:
        try:
            found.append(pa.field(name, to_arrow_type(kind, timezone="UTC")))
        except PySparkTypeError:
            raise InvalidInput(
                f"column {name!r} of the result has the type {kind.simpleString()}, which cannot be written: cast it, to a"
                " string for example"
            ) from None
    return pa.schema(found)


def check_rows(rows: object) -> None:
    """Check that results are rows that can be written.

    Raises:
        InvalidInput: they are not.
    """
    if not isinstance(rows, DataFrame | pa.Table):
        kind = type(rows)
        raise InvalidInput(
            f"the result is a {kind.__module__}.{kind.__qualname__}; give a data frame of Spark, or a table of Arrow:"
            " pyarrow.Table.from_pandas makes one of a data frame of pandas, from_pylist of a list of dicts"
        )


def check_sql(
    queue: SqlQueue,
    table: str,
    columns: pa.Schema,
    *,
    key: Iterable[str] = (),
    replace: str | None = None,
    whole: bool = True,
) -> Target:
    """Check that a table takes columns, or that it can be made of them. Returns the table.

    Args:
        queue: in whose database it is.
        table: its name, `table` or `schema.table`.
        columns: of the results.
        key: the primary key of a table that is made.
        replace: the column whose values say which rows are replaced.
        whole: whether these are all columns of the results; otherwise the results may have others.

    Raises:
        InvalidInput: there are none; a column has no SQL counterpart, or a name that no column of a table can have, or is
            there twice; the key is not among them; or the table lacks a column, needs another one, or has one of another
            type.
        OutputNotWritable: the user may not write to it, may not replace rows of it, or may not make it.
    """
    if not columns.names:
        raise InvalidInput(f"the result has no columns, and the rows of table {table!r} need one; select some")
    if isinstance(key, str):
        raise InvalidInput(f"key is {key!r}; give a list of columns: [{key!r}]")
    if twice := {name for name in columns.names if columns.names.count(name) > 1}:
        raise InvalidInput(f"the result has more than one column {sorted(twice)[0]!r}; give them different names")
    for field in columns:
        sinks.check_name(field.name)
        sinks.sql_type(field)
    target = target_table.find(queue, table)
    there = target.columns
    if there is None:
        for name in (*key, *([] if replace is None else [replace])):
            if whole and name not in columns.names:
                raise InvalidInput(
                    f"the result has no column {name!r}, which table {table!r} is made with; it has"
                    f" {', '.join(columns.names)}"
                )
        return target
    refused = f"the table {table!r} does not take the results"
    for field in columns:
        if field.name not in there:
            raise InvalidInput(f"{refused}: it has no column {field.name!r}; it has {', '.join(there)}. {_CURE}")
        column = there[field.name]
        if column["generated"]:
            raise InvalidInput(f"{refused}: its column {field.name!r} is generated, and the result has it. {_CURE}")
        if not _fits(field.type, column["category"]):
            raise InvalidInput(
                f"{refused}: its column {field.name!r} is {column['type']}, and that of the result is"
                f" {sinks.sql_type(field)}. {_CURE}"
            )
    if replace is not None:
        if replace not in there:
            raise InvalidInput(f"{refused}: it has no column {replace!r}, by which its rows are replaced. {_CURE}")
        target.check_replaceable(replace)
    missing = [name for name, column in there.items() if column["required"] and name not in columns.names]
    if whole and missing:
        raise InvalidInput(
            f"{refused}: its column {missing[0]!r} is NOT NULL and has no default, and the result has no such column."
            f" {_CURE}"
        )
    return target


def check_writable(queue: SqlQueue, table: str) -> None:
    """Check that results can be written to a table, or that it can be made.

    Raises:
        InvalidInput: its name is not usable.
        OutputNotWritable: the user may not write to it, or may not make it.
    """
    target_table.find(queue, table)


def check_days(queue: SqlQueue, table: str, key: Sequence[str], others: Iterable[str] = ()) -> None:
    """Check what is known of the results of days before they are computed: a table that is there already has the columns
    that identify a row, the first of them a date, and some others.

    Raises:
        InvalidInput: it does not.
        OutputNotWritable: as for `check_sql`.
    """
    day = pa.schema([(key[0], pa.date32())])
    there = check_sql(queue, table, day, replace=key[0], whole=False).columns
    if there is not None and (missing := [name for name in (*key, *others) if name not in there]):
        raise InvalidInput(
            f"the table {table!r} does not take the results: it has no column {missing[0]!r}; it has {', '.join(there)}."
            f" {_CURE}"
        )


def check_parquet(rows: DataFrame | pa.Table) -> None:
    """Check that columns can be written to Parquet files.

    Raises:
        InvalidInput: one has a type that cannot, or is there twice.
    """
    names = rows.columns if isinstance(rows, DataFrame) else rows.column_names
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"the result has more than one column {sorted(twice)[0]!r}; give them different names")
    for field in rows.schema.fields if isinstance(rows, DataFrame) else ():
        if isinstance(field.dataType, NullType | CalendarIntervalType):
            raise InvalidInput(
                f"column {field.name!r} of the result has the type {field.dataType.simpleString()}, which Parquet files"
                " cannot hold: cast it"
            )


def check_payload(model: type[BaseModel], names: Iterable[str], of: str) -> None:
    """Check that a payload has fields, by their names in the JSON.

    A model whose payloads can have other fields passes: one that allows extra fields, or has older versions.

    Args:
        model: of the payload.
        names: the fields.
        of: what names them, for the message.

    Raises:
        InvalidInput: there is no such field.
    """
    known = stored_fields(model)
    if known is None:
        return
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"{of} names the field {name!r}, which {model.__name__} does not have; it has {', '.join(known)}"
            )


def check_paths(model: type[BaseModel], columns: Mapping[str, Mapping[str, Any]]) -> None:
    """The same for the columns that the option `columns` names: the first part of a path is checked.

    Raises:
        InvalidInput: the payload does not have the field of one.
    """
    for name, column in columns.items():
        for path in (column.get("path"), column.get("zone")):
            if isinstance(path, str) and path.startswith("payload."):
                check_payload(model, [path.split(".")[1]], f"column {name!r}")


def _fits(kind: pa.DataType, category: str) -> bool:
    if category not in _DECIDED:
        return True
    return next((category in fitting for matches, fitting in _FITTING if matches(kind)), True)
