"""One Spark session for the whole run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; it knows the format of no queue yet."""
    settings = SparkSettings(app_name="tests", master="local[2]", driver_memory="1g", shuffle_partitions=2)
    with open_spark(settings) as spark:
        yield spark


@pytest.fixture
def spark(session: SparkSession, queue: SqlQueue, url: str, output: Path) -> SparkSession:
    """The session, with the format `sqlqueue` reading the test's own schema."""
    register_source(session, url, queue.database.schema)
    return session


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where results go: a path that would trip careless quoting."""
    return tmp_path / "the output"


@pytest.fixture
def reader(spark: SparkSession) -> DataFrameReader:
    """A reader of the tests' queue."""
    return spark.read.format(FORMAT).option("queue", "work")
