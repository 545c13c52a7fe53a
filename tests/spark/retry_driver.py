"""A driver whose tasks each fail once and are run again: Spark's local mode does that when its master says how often.

What a task has seen of itself is a file in a directory, so that only its first attempt fails.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dagster_sqlqueue.spark import source
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.payload_models import PayloadModels
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source
from dagster_sqlqueue.spark.writer import Writer

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PARTITIONS = 4
ROWS = 400
FOUND = "found"


class Fault(Exception):
    """What a task fails with."""


def once(notes: Path, what: str) -> None:
    """Note the attempt of the task that calls, and fail if it is the first."""
    task = TaskContext.get()
    assert task is not None
    (notes / f"{what}-{task.partitionId()}-{task.attemptNumber()}").touch()
    if task.attemptNumber() == 0:
        raise Fault(f"{what}: the first attempt of task {task.partitionId()}")


class Midway:
    """Rows that are handed on up to their half, where the first attempt fails."""

    def __init__(self, notes: Path, what: str) -> None:
        self.notes = notes
        self.what = what

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if number == 0:
                once(self.notes, self.what)
            yield batch.slice(half)


class FailingWriter(Writer):
    """Fails after everything was staged, and before Spark knows."""

    notes: Path

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        message = super().write(iterator)
        once(self.notes, "staged")
        return message


def register_failing(spark: SparkSession, url: str, schema: str, notes: Path) -> None:
    """Make the format known, with a writer that fails."""

    class Source(source._Source):
        _where = (url, schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            writer = FailingWriter(*self._target(), schema, overwrite, PayloadModels())
            writer.notes = notes
            return writer

    spark.dataSource.register(Source)


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format(FORMAT).mode("append").options(payloadColumns="*", **options).save()


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, PARTITIONS).withColumnRenamed("id", "n")


def read(spark: SparkSession, options: Mapping[str, str], notes: Path) -> list[int]:
    """The numbers of a read whose every task fails once while it reads."""
    frame = spark.read.format(FORMAT).options(queue="work", payload="n bigint", **options).load()
    rows = frame.select("n").mapInArrow(Midway(notes, "read"), "n bigint")
    return sorted(row.n for row in rows.collect())


def do(spark: SparkSession, kind: str, url: str, schema: str, notes: Path, options: Mapping[str, str]) -> None:
    notes.mkdir()
    if kind == "read":
        (notes / FOUND).write_text(json.dumps(read(spark, options, notes)))
    elif kind == "written":
        write(numbers(spark).mapInArrow(Midway(notes, "written"), "n bigint"), **options)
    else:
        register_failing(spark, url, schema, notes)
        write(numbers(spark), **options)


def main(url: str, schema: str, orders: str) -> None:
    settings = SparkSettings(
        fast_start=True,
        app_name="tests",
        master="local[2,4]",
        driver_memory="512m",
        log_level="OFF",
        conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "40"},
    )
    with open_spark(settings) as spark:
        for kind, notes, options in json.loads(orders):
            register_source(spark, url, schema)
            do(spark, kind, url, schema, Path(notes), options)


if __name__ == "__main__":
    main(*sys.argv[1:])
