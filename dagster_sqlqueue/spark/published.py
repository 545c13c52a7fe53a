"""Read what the outputs of an asset hold: rows of a SQL table, and Parquet files by day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import remote
from dagster_sqlqueue.spark.sinks import table_identifier

TABLE = "table"
FILES = "Parquet files"


@dataclass(frozen=True, slots=True)
class Published:
    """What an output holds of one day.

    Attributes:
        rows: how many.
        total: the sum of the column that says how many jobs went into each row; None: there is no such column.
        accounts: of the rows.
    """

    rows: int
    total: int | None
    accounts: frozenset[str]


def outputs(table: object, files: object) -> list[str]:
    """Return the names of the outputs, a table, files, or both; None: there is no such output."""
    return [name for name, there in ((TABLE, table), (FILES, files)) if there is not None]


def in_outputs(
    queue: SqlQueue,
    table: str | None,
    directory: Path | str | None,
    days: Sequence[str],
    *,
    account: str | None,
    counted: str | None,
) -> dict[str, dict[str, Published | None]]:
    """Return what each output holds of each day, by the output's name; None: nothing at all.

    Args:
        queue: in whose database the table is.
        table: its name; None: there is none.
        directory: of the Parquet files; None: there are none.
        days: ISO dates.
        account: the column with the account; None: there is none.
        counted: the column with the number of jobs of a row; None: there is none.

    Raises:
        InvalidInput: an output does not have these columns, or may not be read.
        OutputNotWritable: a file cannot be read.
    """
    found: dict[str, dict[str, Published]] = {}
    if table is not None:
        found[TABLE] = in_table(queue, table, days, account=account, counted=counted)
    if directory is not None:
        found[FILES] = in_files(directory, days, account=account, counted=counted)
    return {name: {day: output.get(day) for day in days} for name, output in found.items()}


def in_table(
    queue: SqlQueue, table: str, days: Sequence[str], *, account: str | None, counted: str | None
) -> dict[str, Published]:
    """Return what a SQL table holds of each day; a day without rows is among them, unless there is no such table.

    Args:
        queue: in whose database the table is.
        table: its name, `table` or `schema.table`.
        days: ISO dates; the column is `day`.
        account: the column with the account; None: there is none.
        counted: the column with the number of jobs of a row; None: there is none.

    Raises:
        InvalidInput: the table does not have these columns, or may not be read.
    """
    name = sql.SQL("NULL") if account is None else sql.SQL("CAST({} AS text)").format(sql.Identifier(account))
    total = sql.SQL("NULL") if counted is None else sql.SQL("CAST(sum({}) AS bigint)").format(sql.Identifier(counted))
    # Of a table that others made the column may be a timestamp; and a date's text is as the role's datestyle says.
    query = sql.SQL(
        "SELECT to_char(day, 'YYYY-MM-DD'), {}, count(*), {} FROM {} WHERE day = ANY(%s) GROUP BY 1, 2"
    ).format(name, total, table_identifier(table))
    try:
        asked = {"table_name": table_identifier(table).as_string(None), "schema_name": None}
        ((there, *_),) = queue.database.run("spark_output_table", asked)
        if not there:
            return {}
        with queue.database.connection() as connection:
            rows = connection.execute(query, ([date.fromisoformat(day) for day in days],)).fetchall()
    except psycopg.ProgrammingError as error:
        raise InvalidInput(
            f"the table {table!r} cannot be read: {error.diag.message_primary}. Correct the column's name, or mend the"
            " table"
        ) from error
    return _gathered(days, rows, counted is not None)


def in_files(
    output: Path | str, days: Sequence[str], *, account: str | None, counted: str | None
) -> dict[str, Published]:
    """Return what the Parquet files of each day hold; a day whose directory is not there is not among them.

    Raises:
        InvalidInput: a file does not have these columns, or is no Parquet.
        OutputNotWritable: a file cannot be read.
    """
    rows: list[tuple[str, str | None, int, int | None]] = []
    home = remote.directory_of(output)
    there = [day for day in days if (home / f"day={day}").is_dir()]
    columns = [name for name in (account, counted) if name is not None]
    for day in there:
        for file in sorted((home / f"day={day}").glob("*.parquet"), key=str):
            try:
                with file.open("rb") as opened:
                    parquet = pq.ParquetFile(opened)
                    found = parquet.read(columns=columns) if columns else None
                    count = parquet.metadata.num_rows
            except pa.ArrowInvalid as error:
                raise InvalidInput(f"{file} cannot be read: {error}") from error
            except remote.UNREACHABLE as error:
                said = getattr(error, "strerror", None) or error
                raise OutputNotWritable(f"{file} cannot be read: {said}") from error
            if found is None:
                rows.append((day, None, count, None))
                continue
            if missing := [name for name in columns if name not in found.column_names]:
                raise InvalidInput(f"{file} has no column {missing[0]!r}")
            names = found[account].to_pylist() if account is not None else [None] * count
            totals = found[counted].to_pylist() if counted is not None else [None] * count
            rows += [(day, name, 1, total) for name, total in zip(names, totals, strict=True)]
    return _gathered(there, rows, counted is not None)


def _gathered(
    days: Sequence[str], rows: Sequence[tuple[str, str | None, int, int | None]], summed: bool
) -> dict[str, Published]:
    counts = dict.fromkeys(days, 0)
    totals = dict.fromkeys(days, 0)
    names: dict[str, set[str]] = {day: set() for day in days}
    for day, name, count, total in rows:
        counts[day] += count
        totals[day] += total or 0
        if name is not None:
            names[day].add(str(name))
    return {day: Published(counts[day], totals[day] if summed else None, frozenset(names[day])) for day in days}
