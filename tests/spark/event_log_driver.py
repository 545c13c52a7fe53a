"""Reads, fails a read, and prints what Spark shows of both: in a session that is given, or as a driver of its own, whose
session writes an event log.
"""

import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source


def show(*found: object) -> None:
    sys.stdout.write(" ".join(map(str, found)) + "\n")


def read(spark: SparkSession, url: str, schema: str) -> None:
    register_source(spark, url, schema)
    reader = spark.read.format(FORMAT).option("queue", "work").option("payload", "n int")
    frame = reader.option("on_bad_value", "null").load()
    frame.explain("extended")
    frame.explain("formatted")
    frame.createOrReplaceTempView("jobs")
    show(spark.sql("SELECT count(*) FROM jobs").collect())
    show(spark.sql("EXPLAIN EXTENDED SELECT * FROM jobs").collect())
    show(spark.sparkContext.getConf().getAll(), spark.sql("SET").collect())
    try:
        reader.option("on_bad_value", "fail").load().collect()
    except PySparkException as error:
        show(error)
    spark.catalog.dropTempView("jobs")


def main() -> None:
    url = sys.stdin.readline()
    schema, log = sys.argv[1:]
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log, "spark.eventLog.compress": "false"}
    with open_spark(SparkSettings(fast_start=True, master="local[1]", driver_memory="700m", conf=conf)) as spark:
        read(spark, url, schema)


if __name__ == "__main__":
    main()
