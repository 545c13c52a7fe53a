"""The archive as a stream of Spark: checkpoints, triggers, and what a user sees of errors."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming import StreamingQuery

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark.options import FORMAT
from tests.gate.patience import PATIENCE
from tests.spark.stream_support import COLUMNS
from tests.spark.support import NOON, Done, archive
from tests.support import rows, value

SHARES_A_SCHEMA = True

Start = Callable[..., StreamingQuery]


class Seen:
    """What a query gave, batch by batch, with the partitions of each; it can be made to fail."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.partitions: dict[int, int] = {}
        self.failing: int | None = None

    def take(self, frame: DataFrame, batch: int) -> None:
        """A batch, of which nothing is kept if it is the one to fail."""
        found = [tuple(row) for row in frame.select("n", spark_partition_id()).collect()]
        if batch == self.failing:
            self.failing = None
            raise RuntimeError("the sink is full")
        assert batch not in self.batches
        self.batches[batch] = sorted(n for n, _ in found)
        self.partitions[batch] = len({partition for _, partition in found})

    def numbers(self) -> list[int]:
        """All of it."""
        return sorted(n for batch in self.batches.values() for n in batch)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def start(spark: SparkSession, seen: Seen, tmp_path: Path) -> Iterator[Start]:
    """Start a query over the tests' queue, always with the same checkpoint."""
    started: list[StreamingQuery] = []

    def starting(trigger: dict[str, Any] | None = None, **options: str) -> StreamingQuery:
        stream = spark.readStream.format(FORMAT).options(queue="work", columns=json.dumps(COLUMNS), **options)
        writer = stream.load().writeStream.foreachBatch(seen.take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append(writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start())
        return started[-1]

    yield starting
    for query in started:
        query.stop()


def done(count: int, first: int = 0) -> list[Done]:
    return [Done({"n": first + n}, at=NOON + timedelta(seconds=first + n)) for n in range(count)]


def test_a_query_goes_on_from_its_checkpoint(queue: SqlQueue, start: Start, seen: Seen) -> None:
    archive(queue, done(10))
    available = {"availableNow": True}
    assert start(available, maxRowsPerBatch="4", target_rows="2").awaitTermination(PATIENCE)
    assert list(seen.batches.values()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen.partitions == {0: 2, 1: 2, 2: 1}
    archive(queue, done(7, first=10))
    seen.failing = 4
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        start(available, maxRowsPerBatch="4").awaitTermination(PATIENCE)
    # More comes, and the batch that failed is read again as it was.
    archive(queue, done(1, first=20))
    assert start(available, maxRowsPerBatch="100").awaitTermination(PATIENCE)
    assert list(seen.batches.values())[3:] == [[10, 11, 12, 13], [14, 15, 16], [20]]
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 18


def test_a_running_query_reads_what_is_committed_late(queue: SqlQueue, start: Start, seen: Seen) -> None:
    archive(queue, done(2))
    query = start()
    query.processAllAvailable()
    with queue.database.transaction() as late:
        late.connection.execute(
            f'INSERT INTO "{queue.database.schema}".job_archive (id, queue, bucket, priority, state, lease_no, attempt,'
            " max_attempts, run_at, created_at, finished_at, region, tags, payload)"
            " SELECT gen_random_uuid(), queue, 1, 5, state, 1, 1, 1, now(), now(), now(), 'local', '{}', '{\"n\": 99}'"
            f' FROM "{queue.database.schema}".job_archive LIMIT 1'.encode()
        )
        archive(queue, done(2, first=2))
        query.processAllAvailable()
        assert seen.numbers() == [0, 1, 2, 3]
    query.processAllAvailable()
    query.stop()
    assert seen.numbers() == [0, 1, 2, 3, 99]


def test_the_columns_are_those_of_a_batch_read(queue: SqlQueue, spark: SparkSession) -> None:
    options = {"queue": "work", "columns": json.dumps(COLUMNS)}
    streamed = spark.readStream.format(FORMAT).options(**options, startingPosition="latest").load()
    assert streamed.schema == spark.read.format(FORMAT).options(**options).load().schema


@pytest.mark.prove
def test_a_query_that_was_overtaken_by_the_trimming_ends(queue: SqlQueue, start: Start, seen: Seen) -> None:
    archive(queue, done(4))
    seen.failing = 1
    available = {"availableNow": True}
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        start(available, maxRowsPerBatch="2").awaitTermination(PATIENCE)
    rows(queue, "UPDATE {s}.queue SET retention_days = 1")
    queue.trim()
    with pytest.raises(StreamingQueryException, match="some may have been removed unread"):
        start(available, maxRowsPerBatch="2").awaitTermination(PATIENCE)
    assert start(available, maxRowsPerBatch="2", failOnDataLoss="false").awaitTermination(PATIENCE)
    assert seen.numbers() == [0, 1]


@pytest.mark.prove
def test_an_option_that_is_not_usable(queue: SqlQueue, start: Start) -> None:
    with pytest.raises(StreamingQueryException, match="startingPosition' is 'now'; it is earliest, latest"):
        start({"availableNow": True}, startingPosition="now").awaitTermination(PATIENCE)
