"""`spark.read.format("sqlqueue")`: a queue's archive, or a sealed batch, as rows of Arrow batches.

Options:
    queue: the queue (required).
    state: `archive` (default) or `batch`.
    batch_id: the batches to read, with commas between, for `batch`.
    states: archive states to read, with commas between; all of them by default.
    columns: JSON, name → {"path": "payload.x" or "result.x", "type": …}: fields taken out of the JSON by the database.
        Types: string, int, bigint, double, boolean, date, timestamp.
    where: JSON list of {"column", "op", "value"} over those columns; op is =, <, <=, >, >= or in.
    finished_from, finished_until: ISO timestamps with a zone, the second one exclusive.
    target_rows: rows for each partition (250,000), about: rows that finished at one moment stay together.

A read covers the rows that were there when it was planned, as far as their finished_at tells.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dagster_sqlqueue import statements
from dagster_sqlqueue.database import Database, parse_url
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import options as parts
from dagster_sqlqueue.spark.options import FORMAT

_APPLICATION = "dagster-sqlqueue/spark"
_MAX_PARTITIONS = 1_000
_DATES = date.min, date.max
_MOMENTS = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass
class Slice(InputPartition):
    """One part of a read: a condition on the rows, or None for nothing at all."""

    condition: str | None = None

    def __init__(self, condition: str | None) -> None:
        super().__init__(None)
        self.condition = condition


def register_source(spark: SparkSession, url: str, schema: str = statements.DEFAULT_SCHEMA) -> None:
    """Make the format `sqlqueue` known to the session.

    The URL travels inside the pickled class, never as an option: options are shown in plans and event logs.

    Args:
        spark: the session.
        url: see `dagster_sqlqueue.database.parse_url`.
        schema: where the queue's tables are.
    """
    parse_url(url)
    statements.quote_schema(schema)

    class SqlQueueSource(_Source):
        _where = (url, schema)

    spark.dataSource.register(SqlQueueSource)


def ddl(types: Mapping[str, str]) -> str:
    """Spark's notation of a schema: give it to `.schema(…)` to read these columns only."""
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


class _Source(DataSource):
    _where: tuple[str, str]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        parts.check(self.options)
        return ddl({name: kind for name, (_, kind) in parts.columns(self.options).items()})

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._where, dict(self.options), schema)


class _Reader(DataSourceReader):
    def __init__(self, where: tuple[str, str], options: Mapping[str, str], schema: StructType) -> None:
        self._where = where
        self._options = options
        self._schema = schema
        parts.check(options)
        known = parts.columns(options)
        self._select = parts.selection(schema, known)
        self._conditions = parts.conditions(options, known)

    def partitions(self) -> Sequence[InputPartition]:
        url, schema = self._where
        with SqlQueue(Database(url, schema=schema, pool_size=1, application_name=_APPLICATION)) as queue:
            queue.settings(self._options["queue"])
            return [Slice("TRUE")] if parts.of_batches(self._options) else self._slices(queue)

    def _slices(self, queue: SqlQueue) -> list[InputPartition]:
        name, start = self._options["queue"], parts.moment(self._options, "finished_from")
        until = parts.moment(self._options, "finished_until")
        bounds = {"queue": name, "from_time": start, "until_time": until}
        first, last, rows = queue.database.run("spark_bounds", bounds)[0]
        if not rows:
            return [Slice(None)]
        step = max(parts.target_rows(self._options), -(-rows // _MAX_PARTITIONS))
        cuts = [first]
        if rows > step:
            found = queue.database.run("spark_slices", {"queue": name, "from_time": start, "last": last, "step": step})
            cuts = sorted({cut for (cut,) in found})
        edges = parts.literals([*cuts, last + timedelta(microseconds=1)])
        return [Slice(f"finished_at >= {low} AND finished_at < {high}") for low, high in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        if partition.condition is None:
            return
        url, schema = self._where
        table = "job" if parts.of_batches(self._options) else "job_archive"
        where = " AND ".join([partition.condition, *self._conditions])
        # The one statement that is composed: every part of it was checked and quoted above.
        sql = f"SELECT {self._select} FROM {statements.quote_schema(schema)}.{table} WHERE {where}"  # noqa: S608
        target = _arrow_schema(self._schema)
        with (
            _connected(url) as connection,
            connection.cursor(adbc_stmt_kwargs={"adbc.postgresql.batch_size_hint_bytes": str(2**21)}) as cursor,
        ):
            # What a timestamp without a zone, and a date like 1/2/2013, in a payload are taken for: a role may have its own.
            cursor.execute("SET TIME ZONE 'UTC'")
            cursor.execute("SET datestyle = 'ISO, MDY'")
            cursor.execute(sql)
            for batch in cursor.fetch_record_batch():
                yield _fitted(batch, target)


def _fitted(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    arrays = [batch.column(n).cast(field.type) for n, field in enumerate(target)]
    for array, field in zip(arrays, target, strict=True):
        if pa.types.is_temporal(field.type):
            _refuse_infinite(array, field)
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _refuse_infinite(array: pa.Array, field: pa.Field) -> None:
    """The database's infinity arrives as a number that wrapped around, and would be read as a day long before Christ."""
    low, high = (pa.scalar(end, field.type) for end in (_DATES if pa.types.is_date(field.type) else _MOMENTS))
    if pc.any(pc.or_(pc.less(array, low), pc.greater(array, high))).as_py():
        raise InvalidInput(
            f"column {field.name!r} holds a value outside the years 1 to 9999, such as infinity, which Spark's types cannot"
            " hold: declare it as string"
        )


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _libpq(url: str) -> str:
    """The URL as libpq's `name=value` list: it takes any password, where a URI wants it encoded in libpq's own way."""
    parsed = parse_url(url)
    # SQLAlchemy's own reading: host=a:1&host=b:2 are several hosts, each with its port.
    _, named = parsed.get_dialect()().create_connect_args(parsed)
    settings = {"connect_timeout": "10", "application_name": _APPLICATION, **named}
    listed = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return make_conninfo(**{name: str(value) for name, value in listed.items()})


def _connected(url: str) -> Any:
    import adbc_driver_postgresql.dbapi as adbc

    try:
        return adbc.connect(_libpq(url))
    except adbc.Error as error:
        raise Database(url).unavailable(str(error)) from None
