"""A stream without Spark: the reader itself, asked as Spark asks it."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import IntegerType, StructType

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark.options import check
from dagster_sqlqueue.spark.positions import batch_options
from dagster_sqlqueue.spark.positions import given as own_options
from dagster_sqlqueue.spark.stream_reader import StreamReader

COLUMNS = {"n": {"path": "payload.n", "type": "int"}}


class Stream:
    """Reads the numbers in the payloads of the tests' queue.

    Args:
        queue: where it is.
        url: of its database.
        queue_name: of the queue.
        options: of the stream.
    """

    def __init__(self, queue: SqlQueue, url: str, queue_name: str = "work", **options: str) -> None:
        given = {"queue": queue_name, "columns": json.dumps(COLUMNS), **options}
        check(batch_options(given))
        where, shown = (url, queue.database.schema), StructType().add("n", IntegerType())
        self.reader = StreamReader(where, batch_options(given), own_options(given), shown)
        try:
            self.offset: dict[str, Any] = self.reader.initialOffset()
        except BaseException:
            self.reader.stop()
            raise
        self.sizes: list[int] = []

    def batch(self, most: int | None = None) -> list[int] | None:
        """The numbers of the next micro-batch; None where there is none."""
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        start, end = self.offset, json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        if end == start:
            return None
        self.offset = end
        return self.between(start, end)

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[int]:
        """The numbers between two offsets, as often as one likes."""
        parts = self.reader.partitions(dict(start), dict(end))
        found = [[n for rows in self.reader.read(part) for n in rows.column(0).to_pylist()] for part in parts]
        self.sizes = [len(part) for part in found]
        return sorted(n for part in found for n in part)

    @property
    def slices(self) -> int:
        """How many slices were read last."""
        return len(self.sizes)

    def everything(self, most: int | None = None) -> list[list[int]]:
        """Micro-batches until there is nothing more."""
        found = []
        while (batch := self.batch(most)) is not None:
            found.append(batch)
        return found
