"""A Spark session, with the Java found, the workers on this Python, and nothing listening beyond loopback."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from dagster_sqlqueue.spark.java import find_java


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How to open a session.

    Args:
        app_name: what Spark's UI and logs call it.
        master: `local[*]`, or a cluster's URL.
        driver_memory: the heap of the driver's JVM.
        shuffle_partitions: partitions of a shuffle.
        fast_start: compile with the first JIT tier only: a third less start-up, slower after minutes.
        conf: further settings; they win.
    """

    app_name: str = "dagster-sqlqueue"
    master: str = "local[*]"
    driver_memory: str = "2g"
    shuffle_partitions: int = 4
    fast_start: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def open_spark(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A session for the block, stopped at its end; one that is active in the process is used and left running.

    Raises:
        JavaNotFound: no Java that Spark can use.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    chosen = settings or SparkSettings()
    with tempfile.TemporaryDirectory(prefix="sqlqueue-spark-") as scratch:
        if chosen.master.startswith("local"):
            os.environ["JAVA_HOME"] = str(find_java().path)
        os.environ["SPARK_LOCAL_DIRS"] = scratch
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.appName(chosen.app_name).master(chosen.master)
        for key, value in {**_conf(chosen, scratch), **chosen.conf}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
            _end_gateway()


def _conf(settings: SparkSettings, scratch: str) -> dict[str, str]:
    options = "-Djava.net.preferIPv4Stack=true" + (" -XX:TieredStopAtLevel=1" if settings.fast_start else "")
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": options,
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _end_gateway() -> None:
    """Stopping a session leaves its JVM to the end of this process; a long-lived one would gather them."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        process.stdin.close()
        process.wait(30)
    SparkContext._gateway = None
    SparkContext._jvm = None
