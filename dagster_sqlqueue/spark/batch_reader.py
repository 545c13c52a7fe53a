"""A batch read: planned on the driver, or in a worker beside it, and handed to the tasks."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from dagster_sqlqueue.spark import conditions, fields
from dagster_sqlqueue.spark.python import keep_imports
from dagster_sqlqueue.spark.shares import Share
from dagster_sqlqueue.spark.slice_reader import Reading


class Reader(DataSourceReader):
    """Reads the archive, live jobs or batches.

    Args:
        url: the database.
        schema: where the queue's tables are.
        options: checked.
        asked: the columns to read.

    Raises:
        InvalidInput: an option or a column is not usable.
    """

    def __init__(self, url: str, schema: str, options: Mapping[str, str], asked: StructType) -> None:
        # The driver sends tasks what takes SQLAlchemy and psycopg to find out.
        from dagster_sqlqueue.spark.urls import server

        self._url = url
        self._server = server(url, schema)
        self._options = options
        self._asked = asked
        self._known = fields.columns(options, schema)
        fields.check_schema(asked, self._known)
        conditions.scope(options)
        conditions.tests(options, self._known)
        self._pushed: list[conditions.Test] = []

    def partitions(self) -> list[InputPartition]:
        """Return the tasks' shares of it; see `slices.shares`."""
        from dagster_sqlqueue.spark.slices import shares
        from dagster_sqlqueue.spark.urls import queue_at

        with queue_at(self._url, self._server.schema) as queue:
            planned: list[InputPartition] = [*shares(queue, self._url, self._options, self._pushed)]
        keep_imports()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share; see `Reading.read`."""
        # Spark makes a partition of its own where a read has none.
        if not isinstance(partition, Share) or not partition.slices:
            return
        reading = Reading(self._server, self._options, self._asked, self._known, self._pushed)
        yield from reading.read(partition)
        keep_imports()


class PushingReader(Reader):
    """Defines `pushFilters`, which fails every query of a session that has filter pushdown off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Take all of them over, but where rows are counted before they are filtered. Spark applies them as well."""
        if "limit" not in self._options:
            self._pushed = conditions.from_filters(filters, self._known)
        return filters
