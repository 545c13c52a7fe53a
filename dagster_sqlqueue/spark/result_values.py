"""The values of results as a COPY to a table takes them. No I/O of its own."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import psycopg
import pyarrow as pa

from dagster_sqlqueue.errors import InvalidInput

_STRANGE = (ArithmeticError, ValueError)
"""What a value raises that Python has none for. Text that is no UTF-8 and the errors of Arrow are ValueErrors."""


class Rows(Protocol):
    """A COPY of psycopg's."""

    def write_row(self, row: Sequence[Any]) -> None:
        """Write a row."""


def copy_rows(
    copy: Rows,
    results: pa.RecordBatch | pa.Table,
    *,
    marks: Sequence[Any] = (),
    first: int = 0,
    partition: int | None = None,
) -> None:
    """Write the rows of results to a COPY; moments with a zone are in UTC.

    Args:
        copy: that takes them.
        results: the rows.
        marks: what each row has after its own values.
        first: the number of the first of them, for messages.
        partition: of which they are, for messages; None: they are all.

    Raises:
        InvalidInput: a value cannot be written; the message names its column, row and partition, counted from 0.
    """
    columns = [_values(results, number, first, partition) for number, _ in enumerate(results.schema)]
    for number, row in enumerate(zip(*columns, strict=True)):
        try:
            copy.write_row((*row, *marks))
        except psycopg.DataError as error:
            # Without a code the error is the driver's own, about this row; the database's may be about an earlier one.
            odd = [place for place, value in enumerate(row) if isinstance(value, str) and "\x00" in value]
            if error.sqlstate is not None or not odd:
                raise
            said = f"{row[odd[0]][:100]!r}: {error}"
            raise _refused(results.schema.names[odd[0]], first + number, partition, said) from None


def values_of(results: pa.Table, name: str) -> list[Any]:
    """Return the values of a column.

    Raises:
        InvalidInput: one is none of Python's; the message names column and row, counted from 0.
    """
    return _values(results, results.schema.get_field_index(name), 0, None)


def _values(results: pa.RecordBatch | pa.Table, number: int, first: int, partition: int | None) -> list[Any]:
    column = _in_utc(results.column(number))
    try:
        found: list[Any] = column.to_pylist()
    except _STRANGE:
        row, said = next(_strange(column))
        raise _refused(results.schema.names[number], first + row, partition, said) from None
    return found


def _strange(column: Any) -> Iterator[tuple[int, str]]:
    """Yield each value that Python has none for: its row, and what is wrong."""
    for row, value in enumerate(column):
        try:
            value.as_py()
        except _STRANGE as error:
            yield row, f"{_shown(value)}: {error}"


def _refused(name: str, row: int, partition: int | None, said: str) -> InvalidInput:
    where = f"row {row}" if partition is None else f"partition {partition}, row {row}"
    return InvalidInput(
        f"column {name!r} of the result cannot be written: {where}, has {said}. Correct the value, or leave the row out"
    )


def _shown(value: Any) -> str:
    """Return a value that Python has none for, as a text."""
    kind = pa.binary() if pa.types.is_string(value.type) or pa.types.is_large_string(value.type) else pa.string()
    try:
        return repr(value.cast(kind).as_py()[:100])
    except (pa.ArrowException, *_STRANGE):
        return f"a {value.type}"


def _in_utc(column: Any) -> Any:
    """A column without a zone takes the digits of a moment, whatever zone they are in."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    return column
