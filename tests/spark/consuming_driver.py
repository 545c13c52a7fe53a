"""A driver's process on a cluster: consumes the sales of the tests, with a gate in the tasks."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from dagster_sqlqueue import Job, SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.for_each import for_each_job
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from tests.faults.gates import Gates
from tests.spark.cluster import driver_conf
from tests.spark.consuming_support import SALES, Sale


class PassBy:
    """Batches that pass by the gate `task`: after their first half was given on."""

    def __init__(self, gates: str) -> None:
        self.gates = gates

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            Gates(Path(self.gates)).pass_by("task")
            yield batch.slice(half)


class Handler:
    """Writes down every job, and passes by the gate at its seventh."""

    def __init__(self, gates: str) -> None:
        self.gates = gates
        self.seen = 0

    def __call__(self, job: Job[Sale]) -> None:
        with (Path(self.gates) / f"seen-{os.getpid()}").open("a") as file:
            file.write(f"{job.id}\n")
        self.seen += 1
        if self.seen == 7:
            Gates(Path(self.gates)).pass_by("task")


def rows_of(jobs: DataFrame, gates: str) -> DataFrame:
    good = jobs.where("amount > 0").selectExpr("day", "account", "1 AS sales", "amount")
    return good.mapInArrow(PassBy(gates), good.schema)


def main(kind: str, master: str, url: str, schema: str, output: str, gates: str, conf: str) -> None:
    settings = SparkSettings(
        fast_start=True,
        app_name="tests",
        master=master,
        driver_memory="512m",
        shuffle_partitions=2,
        conf={**driver_conf(), **json.loads(conf)},
    )
    mode = Mode.TRANSACTIONAL if kind == "transactional" else Mode.LEASED
    with (
        SqlQueue(url, schema=schema) as queue,
        open_spark(settings) as spark,
        consume(queue, spark, SALES, key="k", mode=mode, lease_seconds=300) as work,
    ):
        if kind == "for_each":
            for_each_job(work, Handler(gates), tasks=4, report_seconds=0.0)
        else:
            jobs = work.jobs()
            work.write_sql(rows_of(jobs, gates), f"{schema}.totals", by_tasks=True)
            work.write_parquet(rows_of(jobs, gates), output)
            work.fail(jobs.where("amount <= 0"), "a sale of nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
