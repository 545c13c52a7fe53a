"""What Spark's tasks read of sealed batches. No task changes the queue: the batches fix which jobs there are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dagster_sqlqueue.spark.connecting import Server
from dagster_sqlqueue.spark.fields import Column
from dagster_sqlqueue.spark.python import keep_imports
from dagster_sqlqueue.spark.reading import Reading, SnapshotGone
from dagster_sqlqueue.spark.shares import Share, Slice

_TARGET_ROWS = 100_000


@dataclass(frozen=True)
class SealedRead:
    """Batches of one queue, as tasks read them: each some of the buckets.

    Attributes:
        server: the database.
        key: of the batches.
        jobs: how many they hold.
        conditions: on the rows: one for each batch.
        snapshot: of the transaction that holds them, if one does.
        options: as of the data source `sqlqueue`.
        columns: those that can be asked for, by their names.
        lanes: the buckets there are.
        slices: how many tasks share them, at most.
        held: leased batches that are over when somebody else has them, or nobody; see `Share`.
    """

    server: Server
    key: str
    jobs: int
    conditions: tuple[str, ...]
    snapshot: str | None
    options: Mapping[str, str]
    columns: Mapping[str, Column]
    lanes: int
    slices: int
    held: str

    def partitions(self) -> list["Buckets"]:
        """Ranges of buckets; one empty range where there is no job."""
        if not self.jobs:
            return [Buckets(0, 0)]
        count = max(1, min(self.lanes, self.slices, -(-self.jobs // 1_000)))
        count = max(count, min(self.lanes, -(-self.jobs // _TARGET_ROWS)))
        edges = [self.lanes * n // count for n in range(count + 1)]
        return [Buckets(low, high) for low, high in pairwise(edges)]

    def rows(self, buckets: "Buckets", schema: StructType) -> Iterator[pa.RecordBatch]:
        """The jobs of some buckets, as the batches had them when they were sealed.

        Raises:
            InvalidInput: a value does not fit its column's type.
            BatchLost: a batch is over, or the transaction that held it has ended.
        """
        if buckets.low >= buckets.high:
            return
        reading = Reading(self.server, self.options, schema, self.columns, [])
        fitting = " OR ".join(f"({condition})" for condition in self.conditions)
        part = Slice(f"bucket >= {buckets.low} AND bucket < {buckets.high} AND ({fitting})")
        try:
            yield from reading.read(Share([part], snapshot=self.snapshot, held=self.held))
        except SnapshotGone as error:
            from dagster_sqlqueue.spark.batches.loss import lost

            raise lost(self.key, str(error)) from None


@dataclass
class Buckets(InputPartition):
    """A part of a read: the buckets from `low` until before `high`."""

    low: int
    high: int

    def __init__(self, low: int, high: int) -> None:
        super().__init__(None)
        self.low, self.high = low, high


class SealedSource(DataSource):
    """The data source that a frame of sealed jobs is loaded from: a subclass for each frame, which Spark pickles.

    Each has a format of its own: Spark looks a format up anew whenever it plans a frame, and finds who was registered last.
    """

    sealed: SealedRead
    format: str

    @classmethod
    def name(cls) -> str:
        """The format."""
        return cls.format

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of these columns."""
        return _Reader(self.sealed, schema)


class _Reader(DataSourceReader):
    def __init__(self, read: SealedRead, schema: StructType) -> None:
        self._read = read
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._read.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Buckets)
        yield from self._read.rows(partition, self._schema)
        keep_imports()
