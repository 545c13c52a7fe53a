"""Read sealed batches in Spark's tasks. No task changes the queue: the batches fix which jobs there are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dagster_sqlqueue.spark.fields import Column
from dagster_sqlqueue.spark.python import keep_imports
from dagster_sqlqueue.spark.shares import Share, Slice, grouped
from dagster_sqlqueue.spark.slice_reader import Reading, SnapshotGone
from dagster_sqlqueue.spark.task_connection import Server

_TARGET_ROWS = 100_000
_LEAST_ROWS = 1_000


@dataclass(frozen=True)
class SealedRead:
    """Batches of one queue, as tasks read them: each some of the buckets, or where these are fewer, a range of ids.

    Attributes:
        server: the database.
        key: of the batches.
        jobs: how many they hold.
        conditions: on the rows: one for each batch.
        snapshot: of the transaction that holds them, if one does.
        options: as of the data source `sqlqueue`.
        columns: those that can be asked for, by their names.
        claim_buckets: how many buckets there are.
        tasks: how many share the read.
        cuts: where the buckets are too few: the id that each task's jobs begin with.
        held: leased batches that are over when another owner, or none, has them; see `Share`.
        max_connections: how many tasks there are at most; None: as many as `tasks`, or as there are cuts.
    """

    server: Server
    key: str
    jobs: int
    conditions: tuple[str, ...]
    snapshot: str | None
    options: Mapping[str, str]
    columns: Mapping[str, Column]
    claim_buckets: int
    tasks: int
    cuts: tuple[str, ...]
    held: str
    max_connections: int | None = None

    def partitions(self) -> list["Part"]:
        """Return the part of each task; nothing for one task where there is no job."""
        conditions = self._conditions() if self.jobs else []
        return [Part(some) for some in grouped(conditions, self.max_connections or len(conditions))] or [Part([])]

    def _conditions(self) -> list[str]:
        if not self.cuts:
            count = min(self.claim_buckets, self.tasks)
            edges = [self.claim_buckets * n // count for n in range(count + 1)]
            inner = [f"bucket >= {low} AND bucket < {high}" for low, high in pairwise(edges[:-1])]
            # Packs may have jobs of buckets that no consumer serves any more.
            return [*inner, f"bucket >= {edges[-2]}"]
        return by_id(self.cuts)

    def rows(self, part: "Part", schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the jobs of a part, as the batches had them when they were sealed.

        Raises:
            InvalidInput: a value does not fit its column's type.
            BatchLost: a batch is over, or the transaction that held it has ended.
        """
        if not part.conditions:
            return
        reading = Reading(self.server, self.options, schema, self.columns, [])
        fitting = " OR ".join(f"({condition})" for condition in self.conditions)
        mine = [Slice(f"{condition} AND ({fitting})") for condition in part.conditions]
        try:
            yield from reading.read(Share(mine, snapshot=self.snapshot, held=self.held))
        except SnapshotGone as error:
            from dagster_sqlqueue.spark.batches.loss import lost

            raise lost(self.key, str(error)) from None


def tasks_of(jobs: int, slices: int) -> int:
    """Return how many tasks share a read of so many jobs: so many slices at most, or more, of 100,000 jobs each."""
    return max(1, min(slices, -(-jobs // _LEAST_ROWS)), -(-jobs // _TARGET_ROWS))


def by_id(cuts: Sequence[str]) -> list[str]:
    """Ranges of ids, as conditions on live jobs and on the packs that may have some. Open at both ends.

    Args:
        cuts: the id that each begins with, in their order.
    """
    edges = ["", *(f"'{id}'" for id in cuts[1:]), ""]
    return [
        " AND ".join(
            filter(
                None,
                (low and f"id >= {low} AND last_id >= {low}", high and f"id < {high} AND first_id < {high}"),
            )
        )
        or "TRUE"
        for low, high in pairwise(edges)
    ]


@dataclass
class Part(InputPartition):
    """A part of a read.

    Args:
        conditions: on its jobs, as SQL, read one after another; none: it has no jobs.
    """

    conditions: Sequence[str]

    def __init__(self, conditions: Sequence[str]) -> None:
        super().__init__(None)
        self.conditions = conditions


class SealedSource(DataSource):
    """The data source that a frame of sealed jobs is loaded from: a subclass for each frame, which Spark pickles.

    Each has a format of its own: Spark resolves a format anew whenever it plans a frame, and finds the one that was
    registered last.
    """

    sealed: SealedRead
    format: str

    @classmethod
    def name(cls) -> str:
        """Return the format."""
        return cls.format

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns."""
        return _Reader(self.sealed, schema)


class _Reader(DataSourceReader):
    def __init__(self, read: SealedRead, schema: StructType) -> None:
        self._read = read
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._read.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        yield from self._read.rows(partition, self._schema)
        keep_imports()
