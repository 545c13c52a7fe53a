"""One consumption of sales: their totals in a table and in files, and the bad ones failed."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.spark.consuming_support import DAYS, SALES


def totals(jobs: DataFrame) -> DataFrame:
    good = jobs.where("amount > 0")
    return good.groupBy("day", "account").agg(sf.count("*").alias("sales"), sf.sum("amount").alias("amount"))


def run(queue: SqlQueue, spark: SparkSession, output: Path, mode: Mode = Mode.LEASED, **settings: Any) -> int:
    """One consumption: totals to the table and to files, bad sales failed."""
    with consume(queue, spark, SALES, key="totals/all", mode=mode, **settings) as work:
        if work.job_count:
            jobs = work.jobs()
            work.write_sql(totals(jobs), table(queue), replace={"day": DAYS}, key=["day", "account"])
            work.write_parquet(totals(jobs), output, partition_by="day", values=DAYS)
            work.fail(jobs.where("amount <= 0"), "a sale of nothing")
        return work.job_count


def table(queue: SqlQueue, name: str = "totals") -> str:
    return f"{queue.database.schema}.{name}"
