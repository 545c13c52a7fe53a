"""Statements run on one connection of psycopg, and their rows."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import odd_values

Row: TypeAlias = tuple[Any, ...]
Parameters: TypeAlias = Mapping[str, object]
Step: TypeAlias = tuple[str, Parameters]
"""Name of an SQL file, and the parameters of its statement."""


def execute(connection: "psycopg.Connection[Any]", sql: str, parameters: Parameters) -> Sequence[Row]:
    """Run the text of one statement; return its rows, or an empty sequence if it returns none."""
    # Not connection.cursor(): the caller's connection may make cursors that bind in another way.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        # With binary results, times are not formatted and parsed as text.
        cursor.execute(sql.encode(), parameters, binary=True)
        return rows_of(cursor)


def execute_together(connection: "psycopg.Connection[Any]", steps: Sequence[Step]) -> list[Sequence[Row]]:
    """Run the texts of statements in order, pipelined; in autocommit, they are one transaction.

    After an error the connection is closed. If it uses no prepared statements, its transaction is rolled back instead.

    Returns:
        The rows of each statement.
    """
    cursors = [psycopg.Cursor(connection, row_factory=tuple_row) for _ in steps]
    try:
        with connection.pipeline():
            for cursor, (sql, parameters) in zip(cursors, steps, strict=True):
                cursor.execute(sql.encode(), parameters, binary=True)
    except psycopg.Error:
        if connection.prepare_threshold is None and not connection.closed:
            connection.rollback()
        else:
            # The server skipped the statements to be prepared after the error; the driver keeps them as prepared, for good.
            connection.close()
        raise
    return [rows_of(cursor) for cursor in cursors]


def rows_of(cursor: "psycopg.Cursor[Row]") -> Sequence[Row]:
    """Return the rows of a statement. Checks the result, as `cursor.description` would be built only to be discarded."""
    if not (cursor.pgresult and cursor.pgresult.nfields):
        return []
    try:
        return cursor.fetchall()
    except odd_values.UNREADABLE:
        return odd_values.rows(cursor, cursor.pgresult)
