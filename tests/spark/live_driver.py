"""A driver with a live Spark session that is killed: it consumes the days of the tests, and its n-th step is its last.

Its JVM is there before the first step, and notes its process in a file; the tasks pass by the gate `task`.
"""

import sys
from pathlib import Path

import psutil

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source
from tests.spark import kill_driver
from tests.spark.cluster_driver import with_a_gate
from tests.spark.daily_support import compute, consume

LEASE_SECONDS = 600.0


def main(url: str, schema: str, output: str, gates: str, log: str, jvm: str, last: str) -> None:
    settings = SparkSettings(
        fast_start=True, app_name="tests", master="local[1]", driver_memory="512m", shuffle_partitions=1
    )
    database = Database(url, schema=schema, application_name=kill_driver.APPLICATION)
    with SqlQueue(database) as queue, open_spark(settings) as spark:
        register_source(spark, url, schema)
        (java,) = [child for child in psutil.Process().children() if child.name() == "java"]
        Path(jvm).write_text(str(java.pid))
        steps = kill_driver.counted(output, int(last) or None, log)
        consume(
            queue,
            spark,
            Path(output),
            compute=lambda events: compute(with_a_gate(events, gates)),
            lease_seconds=LEASE_SECONDS,
        )
        Path(log).write_text("\n".join(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
