"""Parquet files of results: written by Spark's tasks or by this process, in directories that Spark names."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from dagster_sqlqueue.errors import InvalidInput

_NONE = "__HIVE_DEFAULT_PARTITION__"
# As ExternalCatalogUtils.escapePathName of Spark has it.
_ESCAPED = {code: f"%{code:02X}" for code in (*range(1, 32), *map(ord, "\"#%'*/:=?\\\x7f{[]^"))}


def directories(partition_by: str | None, columns: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Return the directories of some values of the column that parts the rows.

    Args:
        partition_by: the column; None: the rows are not parted.
        columns: that the rows have.
        values: of the column.

    Raises:
        InvalidInput: there is no such column, or there are values that name no directory of it.
    """
    if partition_by is None:
        if len(values):
            raise InvalidInput(
                f"values is {values!r}, and the rows are in no directories by value: name the column in partition_by,"
                " or leave values out"
            )
        return []
    if partition_by not in columns:
        raise InvalidInput(f"partition_by is {partition_by!r}; it must be one of the columns {', '.join(columns)}")
    if isinstance(values, str):
        raise InvalidInput(f"values is {values!r}; give a list of the values")
    return [directory(partition_by, value) for value in values]


def directory(column: str, value: object) -> str:
    """Return the name that Spark gives the directory of a value.

    Args:
        column: that parts the rows.
        value: its value there.

    Raises:
        InvalidInput: only Spark can say how the value is written.
    """
    return f"{column.translate(_ESCAPED)}={_written(column, value)}"


def _written(column: str, value: object) -> str:
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, str):
        return value.translate(_ESCAPED) or _NONE
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    raise InvalidInput(
        f"the directory of {value!r} in {column!r} has no certain name, as those of texts, whole numbers, booleans and"
        " dates have: make the column a text, and give the value as that"
    )


def by_tasks(
    rows: DataFrame, home: Path, partition_by: str | None, *, output: Path | str, compression: str | None = None
) -> dict[str, int]:
    """Write by Spark's tasks, and check that this process finds what they wrote.

    Args:
        rows: what to write.
        home: the directory to write to.
        partition_by: a column whose values become directories; None: none.
        output: the directory that the user named.
        compression: of the files; None: the session's.

    Returns:
        How many rows each directory below `home` has; without `partition_by` nothing.

    Raises:
        InvalidInput: this process does not find all of the rows.
    """
    written = Observation()
    writer = rows.observe(written, sf.count(sf.lit(1)).alias("rows")).write.mode("append")
    if partition_by is not None:
        writer = writer.partitionBy(partition_by)
    if compression is not None:
        writer = writer.option("compression", compression)
    # Not quoted as a URL's: Spark takes the path as it stands. Without a scheme it is one of the cluster's own file system.
    writer.parquet(f"file://{home}")
    found = Counter[str]()
    for file in home.glob("*.parquet" if partition_by is None else "*/*.parquet"):
        found[file.parent.name] += pq.read_metadata(file).num_rows
    if (seen := found.total()) != written.get["rows"]:
        raise InvalidInput(
            f"the tasks wrote {written.get['rows']:,} rows, and this process sees {seen:,} of them: {output} must be on"
            " a disk that the executors share with the driver"
        )
    return {} if partition_by is None else dict(found)


def by_driver(rows: pa.Table, home: Path, partition_by: str | None) -> None:
    """Write the rows of this process.

    Args:
        rows: what to write.
        home: the directory to write to.
        partition_by: a column whose values become directories, which have the names that Spark gives them; None: none.

    Raises:
        InvalidInput: only Spark can say how a value is written.
    """
    if partition_by is None:
        _write(rows, home)
        return
    names = [directory(partition_by, value) for value in rows[partition_by].to_pylist()]
    order = sorted(range(len(names)), key=names.__getitem__)
    ordered, begin = rows.drop_columns([partition_by]).take(pa.array(order, pa.int64())), 0
    for name, of_name in groupby(names[index] for index in order):
        count = sum(1 for _ in of_name)
        _write(ordered.slice(begin, count), home / name)
        begin += count


def _write(rows: pa.Table, home: Path) -> None:
    home.mkdir()
    pq.write_table(rows, home / "part-0.parquet")
