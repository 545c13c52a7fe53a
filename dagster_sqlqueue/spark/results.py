"""Where the results of a consumption go: rows of a SQL table, and Parquet files partitioned by day."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable

MAX_ROWS = 100_000
"""The most rows that are written to SQL inside the publishing transaction."""

_SQL_TYPES: list[tuple[Any, str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_floating, "double precision"),
    (pa.types.is_decimal, "numeric"),
    (pa.types.is_date, "date"),
    (pa.types.is_timestamp, "timestamptz"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
]


def writable(directory: Path) -> Path:
    """The directory, made if need be.

    Raises:
        OutputNotWritable: it cannot be made, is no directory, or cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".probe-"):
            pass
    except OSError as error:
        raise OutputNotWritable(
            f"results cannot be written to {directory}: {error.strerror or error}. Choose another directory, or mend its"
            " permissions"
        ) from None
    return directory


def table_identifier(table: str) -> sql.Identifier:
    """The table's name, quoted.

    Raises:
        InvalidInput: it is not `table` or `schema.table`.
    """
    parts = table.split(".")
    if not 1 <= len(parts) <= 2 or not all(part and len(part.encode()) <= 63 and "\x00" not in part for part in parts):
        raise InvalidInput(f"table {table!r} is not usable: write table or schema.table, each 1 to 63 bytes")
    return sql.Identifier(*parts)


def replace_days(
    connection: "psycopg.Connection[Any]",
    table: str,
    rows: pa.Table,
    day_column: str,
    key: Sequence[str],
    days: Sequence[Any],
) -> None:
    """Put the rows into a SQL table in place of all its rows of these days, inside the caller's transaction.

    The table is made from the rows' columns, with `key` as primary key, if it is not there.

    Raises:
        InvalidInput: more than `MAX_ROWS` rows, a column type without a SQL counterpart, or an unusable table name.
    """
    if rows.num_rows > MAX_ROWS:
        raise InvalidInput(
            f"the result has {rows.num_rows:,} rows, the limit for the publishing transaction is {MAX_ROWS:,}; aggregate"
            " further, or write to files only"
        )
    target = table_identifier(table)
    names = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
    connection.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            target,
            sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_sql_type(field))) for field in rows.schema
            ),
            sql.SQL(", ").join(sql.Identifier(name) for name in key),
        )
    )
    connection.execute(
        sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(target, sql.Identifier(day_column)), (list(days),)
    )
    with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(target, names)) as copy:
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            copy.write_row(row)


def stage_empty_days(staged: Path, day_column: str, days: Sequence[str]) -> None:
    """Give the days without rows an empty directory, so that `move_into_place` empties their places too."""
    for day in days:
        (staged / f"{day_column}={day}").mkdir(parents=True, exist_ok=True)


def move_into_place(staged: Path, output: Path, day_column: str, days: Sequence[str]) -> None:
    """Make the staged files those of their days: each `day=…` directory is replaced as a whole.

    May be repeated after an interruption at any point; the staging directory goes last.
    """
    for day in days:
        name = f"{day_column}={day}"
        new, place = staged / name, output / name
        if new.exists():
            if place.exists():
                place.rename(staged / f".old-{name}")
            new.rename(place)
    shutil.rmtree(staged)


def _sql_type(field: pa.Field) -> str:
    for matches, name in _SQL_TYPES:
        if matches(field.type):
            return name
    raise InvalidInput(
        f"column {field.name!r} of the result has the type {field.type}, which has no SQL counterpart here"
    )
