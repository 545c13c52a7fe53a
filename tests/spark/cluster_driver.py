"""A driver's process on a cluster: consumes the days of the tests, with a gate in the tasks."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source
from tests.faults.gates import Gates
from tests.spark.cluster import driver_conf
from tests.spark.daily_support import compute, consume


def with_a_gate(events: DataFrame, gates: str) -> DataFrame:
    """The events, which pass by the gate `task` in four tasks."""

    def pass_by(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Gates(Path(gates)).pass_by("task")
        yield from batches

    return events.repartition(4).mapInArrow(pass_by, events.schema)


def main(master: str, url: str, schema: str, output: str, gates: str, conf: str) -> None:
    settings = SparkSettings(
        fast_start=True,
        app_name="tests",
        master=master,
        driver_memory="512m",
        shuffle_partitions=2,
        conf={**driver_conf(), **json.loads(conf)},
    )
    with SqlQueue(url, schema=schema) as queue, open_spark(settings) as spark:
        register_source(spark, url, schema)
        consume(
            queue, spark, Path(output), compute=lambda events: compute(with_a_gate(events, gates)), lease_seconds=300
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
