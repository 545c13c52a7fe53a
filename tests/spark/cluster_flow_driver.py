"""A driver's process on a cluster: streams what ended on one queue to another, and writes a data frame beside it, with a
gate in the tasks.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source
from tests.faults.gates import Gates
from tests.spark.cluster import driver_conf


def with_a_gate(frame: DataFrame, gates: str) -> DataFrame:
    """The rows, which pass by the gate `task` when all of a task's have been handed on."""

    def pass_by(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        Gates(Path(gates)).pass_by("task")

    return frame.mapInArrow(pass_by, frame.schema)


def main(master: str, url: str, schema: str, checkpoint: str, gates: str, conf: str) -> None:
    settings = SparkSettings(
        fast_start=True,
        app_name="tests",
        master=master,
        driver_memory="512m",
        shuffle_partitions=2,
        conf={**driver_conf(), **json.loads(conf)},
    )
    with open_spark(settings) as spark:
        register_source(spark, url, schema)
        columns = json.dumps({"n": {"path": "payload.n", "type": "int"}})
        ended = spark.readStream.format(FORMAT).options(queue="work", columns=columns, target_rows="25").load()
        writer = with_a_gate(ended.select("n"), gates).writeStream.format(FORMAT)
        writer = writer.options(queue="copied", payloadColumns="n", checkpointLocation=checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        frame = spark.range(100, 200, 1, 4).withColumnRenamed("id", "n")
        frame = with_a_gate(frame, gates)
        frame.write.format(FORMAT).mode("append").options(queue="copied", payloadColumns="n", writeName="once").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
