"""The results of a function for some days: rows that the driver holds, or so many that only Spark's tasks may write
them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import parquet, result_columns, sinks

Compute = Callable[[DataFrame], DataFrame]


@dataclass(slots=True)
class Computed:
    """The results of some days.

    Attributes:
        dates: the days.
        rows: in the order of their key; only the columns where the driver does not hold the rows.
        counts: how many rows each day has, by its ISO date; of rows that the tasks write, once they are staged.
        frame: what the tasks write; None: the driver has all rows. Where they write it more than once they keep it on their
            disks until `close`.
    """

    dates: Sequence[date]
    rows: pa.Table
    counts: dict[str, int]
    frame: DataFrame | None = None

    def close(self) -> None:
        """Remove the rows that the tasks kept."""
        if self.frame is not None:
            self.frame.unpersist()

    def stage(self, staged: Path) -> list[str]:
        """Write Parquet files, a directory for each day. Returns the names of the directories.

        Raises:
            InvalidInput: a task wrote a row of another day, or where this process does not see it.
            OutputNotWritable: the files cannot be written.
        """
        if self.frame is None:
            sinks.stage(self.rows, staged, "day", self.dates)
        else:
            self.counts = _written_by_tasks(self.frame, staged, [day.isoformat() for day in self.dates])
        return [f"day={day}" for day in self.dates]


def computed(
    compute: Compute,
    jobs: DataFrame,
    key: Sequence[str],
    dates: Sequence[date],
    *,
    queue: SqlQueue,
    table: str | None,
) -> Computed:
    """Compute the results of some days, and check that they can be published.

    Args:
        compute: from the jobs to the results.
        jobs: of these days.
        key: the columns that identify a row, `day` first.
        dates: the days.
        queue: in whose database the table is.
        table: the SQL table that they go to; its columns are checked before anything is computed. None: there is none. More
            rows than the driver should hold are left to the tasks: of one day; of several, where there is no table. These
            compute them a second time as they write them.

    Raises:
        TooManyRows: they go to a table, and are those of several days: fewer days have to be published at once.
        InvalidInput: they are not usable.
    """
    frame = compute(jobs)
    if not isinstance(frame, DataFrame):
        raise InvalidInput(f"the computation returned a {type(frame).__name__}; it must return a Spark DataFrame")
    # The columns of a data frame are known before it is computed.
    columns = result_columns.schema_of(frame)
    sinks.check_columns(columns, key)
    if table is not None:
        result_columns.check_sql(queue, table, columns, key=key, replace=key[0])
    # One row more than may be published: enough to know, and never more than the driver can hold.
    rows = frame.limit(sinks.MAX_ROWS + 1).toArrow()
    if rows.num_rows > sinks.MAX_ROWS and (table is None or len(dates) == 1):
        if table is None:
            return Computed(dates, rows.slice(0, 0), {}, frame)
        made = Computed(dates, rows.slice(0, 0), {}, frame.persist(StorageLevel.DISK_ONLY))
        try:
            made.counts[dates[0].isoformat()] = _one_day(frame, key, dates[0])
        except BaseException:
            made.close()
            raise
        return made
    sinks.check(rows, key, dates)
    return of_rows(rows.sort_by([(name, "ascending") for name in key]), dates)


def _one_day(frame: DataFrame, key: Sequence[str], day: date) -> int:
    """Return how many rows a day has, that only the tasks hold.

    Raises:
        InvalidInput: one is of another day, or has no value in a column of the key; or two have the same key.
    """
    first, missing = key[0], " OR ".join(f"`{name}` IS NULL" for name in key)
    ((rows, strange, keys),) = frame.agg(
        sf.count("*"),
        sf.count_if(sf.expr(f"({missing}) OR `{first}` <> DATE '{day}'")),
        sf.count_distinct(*(sf.col(f"`{name}`") for name in key)),
    ).collect()
    if strange:
        raise InvalidInput(
            f"{strange:,} of {rows:,} rows of the result are of another day than {day}, or lack one of {', '.join(key)}"
        )
    if keys < rows:
        raise InvalidInput(
            f"the result has {rows:,} rows of {day}, and {keys:,} of {', '.join(key)}; there may be one for each"
        )
    return int(rows)


def of_rows(rows: pa.Table, dates: Sequence[date]) -> Computed:
    """Results that the driver holds."""
    counts = Counter(day.isoformat() for day in rows.column("day").to_pylist())
    return Computed(dates, rows, {day.isoformat(): counts[day.isoformat()] for day in dates})


def _written_by_tasks(frame: DataFrame, staged: Path, days: Sequence[str]) -> dict[str, int]:
    found = parquet.by_tasks(frame, staged, "day", output=staged.parent.parent, compression="zstd")
    wanted = {parquet.directory("day", day): day for day in days}
    if others := sorted(found.keys() - wanted.keys()):
        raise InvalidInput(f"the result has rows of {others[0]}, and that day was not asked for")
    for name in wanted:
        (staged / name).mkdir(exist_ok=True)
    return {day: found.get(name, 0) for name, day in wanted.items()}
