"""Find the job whose field could not be cast, after a read has failed."""

from collections.abc import Mapping, Sequence

import psycopg

from dagster_sqlqueue.spark import kinds, nested
from dagster_sqlqueue.spark.fields import Column

_TOGETHER = 5_000
_EARLIEST, _LATEST = "0001-01-01", "9999-12-31 23:59:59.999999"


def find_bad(conninfo: str, table: str, where: str, columns: Mapping[str, Column]) -> str | None:
    """Return the first job, and its field, that cannot be cast to the type of one of the columns.

    Args:
        conninfo: libpq's, of the database.
        table: quoted.
        where: a condition that can fail on no row.
        columns: those to check.

    Returns:
        Words that name both, quote the value and say why it cannot be; None: there is none, or it cannot be searched for.
    """
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            connection.execute("SET datestyle = 'ISO, MDY'")
            for name, column in columns.items():
                if column.kind != "string" and (found := _in_column(connection, table, where, column)):
                    job, value = found
                    shown = value if len(value) <= 80 else value[:80] + "…"
                    # Of this value: the read may have stumbled over another job's.
                    why = _unfit(value, column.kind) or _refusal(connection, [value], column.kind)
                    return (
                        f"job {job}: the field {column.field!r} is {shown!r}, and the column {name!r} is {column.kind}:"
                        f" {why}"
                    )
    except psycopg.OperationalError:
        return None
    return None


def _in_column(
    connection: "psycopg.Connection[tuple[str, str]]", table: str, where: str, column: Column
) -> tuple[str, str] | None:
    query = f"SELECT CAST(id AS text), {column.sql} FROM {table} WHERE {where} AND {column.sql} IS NOT NULL"  # noqa: S608
    if column.local_day is not None:
        found = connection.execute(f"{query} AND {column.local_day} IS NULL LIMIT 1".encode()).fetchone()
        return found and (found[0], found[1])
    with connection.transaction(), connection.cursor(name="suspects") as cursor:
        cursor.execute(query.encode())
        while some := cursor.fetchmany(_TOGETHER):
            if kinds.is_nested(column.kind):
                found = next((one for one in some if _unfit(one[1], column.kind)), None)
            else:
                found = _first_bad(connection, some, column.kind)
            if found:
                return found
    return None


def _first_bad(
    connection: "psycopg.Connection[tuple[str, str]]", some: Sequence[tuple[str, str]], kind: str
) -> tuple[str, str] | None:
    """Search by halves, so that one bad value among thousands costs a few casts of many, and not thousands of one."""
    if _refusal(connection, [value for _, value in some], kind) is None:
        return None
    if len(some) == 1:
        return some[0]
    half = len(some) // 2
    return _first_bad(connection, some[:half], kind) or _first_bad(connection, some[half:], kind)


def _unfit(text: str, kind: str) -> str | None:
    """Return why a JSON text is no list or object of the kind; None: it is one, or the kind is one of single values."""
    if not kinds.is_nested(kind):
        return None
    try:
        nested.parse(text, kind, lenient=False)
    except nested.Unfit as found:
        return str(found)
    return None


def _refusal(connection: "psycopg.Connection[tuple[str, str]]", values: Sequence[str], kind: str) -> str | None:
    """Return why one of the values cannot be cast; None: all can."""
    value = kinds.cast("v", kind)
    why = "it is no such value"
    if kind in ("date", "timestamp"):
        wanted, why = f"{value} BETWEEN '{_EARLIEST}' AND '{_LATEST}'", kinds.OUTSIDE
    elif kind.startswith("decimal"):
        wanted, why = f"{value} <> 'NaN'", "a decimal cannot be NaN"
    else:
        wanted = f"{value} IS NOT NULL"
    query = f"SELECT CAST(coalesce(bool_and({wanted}), true) AS text) FROM unnest(CAST(%s AS text[])) AS given (v)"  # noqa: S608
    try:
        with connection.transaction():
            row = connection.execute(query.encode(), [list(values)]).fetchone()
    except psycopg.errors.DataError as error:
        return error.diag.message_primary or why
    return None if row is None or row[0] == "true" else why
