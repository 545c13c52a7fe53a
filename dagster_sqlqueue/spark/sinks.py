"""Where the results of a consumption go: rows of a SQL table, and Parquet files partitioned by day."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import sql

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.execution import execute
from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.spark.result_values import copy_rows, values_of

with contextlib.suppress(ImportError):  # Windows, where a directory in use cannot be moved away anyway
    import fcntl

MAX_ROWS = 100_000
"""The most rows that are written to SQL inside the publishing transaction."""

Replaced: TypeAlias = tuple[str, Sequence[Any]]
"""Rows that others take the place of: those whose column of this name has one of these values, where None is for NULL."""

_SQL_TYPES: list[tuple[Any, str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_floating, "double precision"),
    (pa.types.is_decimal, "numeric"),
    (pa.types.is_date, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None, "timestamp"),
    (pa.types.is_timestamp, "timestamptz"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
]


_REFUSALS = (
    psycopg.ProgrammingError,
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.NotSupportedError,  # a COPY of what tasks staged to a table with row-level security
    psycopg.errors.ProgramLimitExceeded,  # a value that is too long for an index
)


class TooManyRows(InvalidInput):
    """More rows than one transaction should publish."""


def writable(directory: Path) -> Path:
    """Return the directory, made if need be.

    Raises:
        OutputNotWritable: it cannot be made, is no directory, or cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".probe-"):
            pass
    except OSError as error:
        raise not_writable(directory, error) from None
    return directory


def table_identifier(table: str) -> sql.Identifier:
    """Return the table's name, quoted.

    Raises:
        InvalidInput: it is not `table` or `schema.table`.
    """
    parts = table.split(".")
    if not 1 <= len(parts) <= 2 or not all(map(_is_name, parts)):
        raise InvalidInput(f"table {table!r} is not usable: write table or schema.table, each 1 to 63 bytes")
    return sql.Identifier(*parts)


def check_name(column: str) -> None:
    """Check that a column of results can be one of a table.

    Raises:
        InvalidInput: its name is none: the database would cut it short.
    """
    if not _is_name(column):
        raise InvalidInput(
            f"the result has the column {column!r}, of {len(column.encode())} bytes; the name of a column of a table has 1"
            " to 63, and no NUL. Give it an alias"
        )


def _is_name(text: str) -> bool:
    return 1 <= len(text.encode()) <= 63 and "\x00" not in text


def check_given(of: str, table: str | None, output: object) -> None:
    """Check that results have an output.

    Args:
        of: whose results they are, for the message.
        table: the SQL table; None: there is none.
        output: the directory of Parquet files, or a function that returns it; None: there is none.

    Raises:
        InvalidInput: there is neither, or the table's name is not usable.
    """
    if table is None and output is None:
        raise InvalidInput(f"{of} has nowhere to go: give a table, an output, or both")
    if table is not None:
        table_identifier(table)


def check_columns(schema: pa.Schema, key: Sequence[str]) -> None:
    """Check that columns can be those of some days' results; the first column of `key` is the day.

    Raises:
        InvalidInput: one is missing, there twice, or without a SQL counterpart, or the day is no date.
    """
    if missing := [name for name in key if name not in schema.names]:
        raise InvalidInput(f"the result has no column {missing[0]!r}; it has {', '.join(schema.names)}")
    if twice := {name for name in schema.names if schema.names.count(name) > 1}:
        raise InvalidInput(f"the result has more than one column {sorted(twice)[0]!r}; give them different names")
    for field in schema:
        sql_type(field)
    if not pa.types.is_date(schema.field(key[0]).type):
        raise InvalidInput(f"column {key[0]!r} of the result has the type {schema.field(key[0]).type}; it must be date")


def check(rows: pa.Table, key: Sequence[str], days: Sequence[date]) -> None:
    """Check that rows can be the results of some days; the first column of `key` is the day.

    Raises:
        TooManyRows: they are more than `MAX_ROWS`.
        InvalidInput: columns that do not fit, a row of another day, or two rows of one key.
    """
    if rows.num_rows > MAX_ROWS:
        raise TooManyRows(
            f"the results of {len(days)} days have more than {MAX_ROWS:,} rows, the most that one transaction publishes of"
            " several days: publish fewer days at once, or write to files only"
        )
    check_columns(rows.schema, key)
    seen = set()
    for values in zip(*(values_of(rows, name) for name in key), strict=True):
        where = ", ".join(f"{name} {value}" for name, value in zip(key, values, strict=True))
        if None in values:
            raise InvalidInput(f"the result has a row with {where}; neither of them may be missing")
        if values[0] not in days:
            raise InvalidInput(f"the result has a row with {where}, and that day was not asked for")
        if values in seen:
            raise InvalidInput(f"the result has more than one row with {where}; there may be one for each")
        seen.add(values)


def replace_days(
    connection: "psycopg.Connection[Any]",
    table: str,
    rows: pa.Table,
    day_column: str,
    key: Sequence[str],
    days: Sequence[Any],
) -> None:
    """Replace all rows of these days in a SQL table by these rows, inside the caller's transaction.

    The table is made from the rows' columns, with `key` as primary key, if it is not there.

    Raises:
        InvalidInput: a column type without a SQL counterpart, an unusable table name, a value that cannot be written, or a
            table that does not take the rows.
    """
    with taking(table):
        prepare_table(connection, table, rows.schema, key, (day_column, days))
        _copy(connection, table, rows)


def append_rows(connection: "psycopg.Connection[Any]", table: str, rows: pa.Table, key: Sequence[str]) -> None:
    """Add the rows to a SQL table, inside the caller's transaction; it is made if it is not there.

    Raises:
        InvalidInput: as for `replace_days`.
    """
    with taking(table):
        prepare_table(connection, table, rows.schema, key, None)
        _copy(connection, table, rows)


def prepare_table(
    connection: "psycopg.Connection[Any]",
    table: str,
    schema: pa.Schema,
    key: Sequence[str],
    replace: Replaced | None,
) -> sql.Identifier:
    """Make the table if it is not there, and delete the rows whose column `replace[0]` has one of the values `replace[1]`,
    where None is for NULL.

    Raises:
        InvalidInput: a column type without a SQL counterpart, or an unusable table name.
    """
    target = table_identifier(table)
    # IF NOT EXISTS alone takes the right to create tables in the schema, although there is one.
    names = {"table_name": target.as_string(None), "schema_name": None}
    ((there, *_),) = execute(connection, statements.load("spark_output_table"), names)
    if not there:
        columns = [sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(sql_type(field))) for field in schema]
        if key:
            columns.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
        connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(target, sql.SQL(", ").join(columns)))
    if replace is not None:
        replaced, values = having(*replace)
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(target, replaced), (values,))
    return target


def having(column: str, values: Sequence[Any]) -> tuple[sql.Composed, list[Any]]:
    """Return the condition for rows whose column has one of the values, where None is for NULL, and its parameter."""
    name, known = sql.Identifier(column), [value for value in values if value is not None]
    condition = sql.SQL("{} = ANY(%s)").format(name)
    if len(known) < len(values):
        condition += sql.SQL(" OR {} IS NULL").format(name)
    return condition, known


@contextlib.contextmanager
def taking(table: str) -> Iterator[None]:
    """Turn an error of the insert into one that names the table.

    Raises:
        InvalidInput: in place of the database's answer.
    """
    try:
        yield
    except _REFUSALS as error:
        raise refusal(table, error) from error


def refusal(table: str, error: psycopg.Error) -> InvalidInput:
    """Return the error for a table that does not take its rows."""
    cure = "Mend or drop it, or name another one"
    if isinstance(error, psycopg.errors.FeatureNotSupported):
        cure = (
            "Where it has row-level security, let the driver write the rows (write_sql with by_tasks=False), or the"
            " transaction of a leased batch (consume with Mode.LEASED); or give the user BYPASSRLS, or name another table"
        )
    return InvalidInput(f"the table {table!r} does not take the results: {error.diag.message_primary or error}. {cure}")


def _copy(connection: "psycopg.Connection[Any]", table: str, rows: pa.Table) -> None:
    target = table_identifier(table)
    names = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
    asked = {"table_name": target.as_string(None), "schema_name": None}
    ((*_, row_security, columns),) = execute(connection, statements.load("spark_output_table"), asked)
    into = target
    if row_security:
        # No COPY goes to such a table; an INSERT does.
        into = sql.Identifier("pg_temp", "sqlqueue_rows")
        types = {column["name"]: column["type"] for column in columns}
        each = (sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types[name])) for name in rows.column_names)
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(into, sql.SQL(", ").join(each)))
    with (
        connection.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(into, names)) as copy,
    ):
        copy_rows(copy, rows)
    if row_security:
        # As a COPY, which writes what comes to a column GENERATED ALWAYS AS IDENTITY as well.
        insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}")
        connection.execute(insert.format(target, names, names, into))
        connection.execute(sql.SQL("DROP TABLE {}").format(into))


def stage(rows: pa.Table, staged: Path, day_column: str, days: Sequence[date]) -> None:
    """Write the rows as Parquet, a directory `day=…` for each day, also for one without rows.

    Raises:
        OutputNotWritable: the files cannot be written.
    """
    try:
        for day in days:
            directory = staged / f"{day_column}={day}"
            directory.mkdir(parents=True)
            of_day = rows.filter(pc.equal(rows[day_column], pa.scalar(day))).drop_columns([day_column])
            pq.write_table(of_day, directory / "part-0.parquet", compression="zstd")
    except OSError as error:
        raise not_writable(staged, error) from None


def move_into_place(staged: Path, output: Path, names: Sequence[str]) -> None:
    """Make the staged directories of these names those of the output: each is replaced as a whole.

    May be repeated after an interruption at any point, and by several at a time; the staging directory goes last, and
    without it another process has done it all.
    """
    with _alone(staged.parent):
        if not staged.is_dir():
            return
        for name in names:
            new, place = staged / name, output / name
            if new.exists():
                if place.exists():
                    place.rename(staged / f".old-{name}")
                new.rename(place)
        shutil.rmtree(staged)


@contextlib.contextmanager
def _alone(staging: Path) -> Iterator[None]:
    """Allow one mover at a time: a slow run and the one that finishes its work for it."""
    lock = os.open(staging, os.O_RDONLY)
    try:
        with contextlib.suppress(
            OSError
        ):  # where the file system has no locks, runs of one day are still one at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def not_writable(directory: Path, error: OSError) -> OutputNotWritable:
    """Return the error for a directory that the system does not let be written to."""
    return OutputNotWritable(
        f"results cannot be written to {directory}: {error.strerror or error}. Choose another directory, or mend its"
        " permissions"
    )


def sql_type(field: pa.Field) -> str:
    """Return the SQL type of a column that is made.

    Raises:
        InvalidInput: there is none.
    """
    for matches, name in _SQL_TYPES:
        if matches(field.type):
            return name
    raise InvalidInput(
        f"column {field.name!r} of the result has the type {field.type}, which has no SQL counterpart here"
    )
