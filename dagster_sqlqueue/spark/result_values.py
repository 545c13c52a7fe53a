"""The values of results as a COPY to a table takes them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def rows_of(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of results; moments with a zone are in UTC."""
    columns = [_in_utc(column).to_pylist() for column in batch.columns]
    yield from zip(*columns, strict=True)


def _in_utc(column: Any) -> Any:
    """A column without a zone takes the digits of a moment, whatever zone they are in."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    return column
