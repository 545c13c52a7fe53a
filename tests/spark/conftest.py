"""One Spark session for each process of a run, and a cluster for the modules that ask for one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrameReader, SparkSession

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.spark import snapshot
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.resource import SparkResource
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source
from tests.faults.gates import Gates
from tests.gate.patience import sized
from tests.spark import forking
from tests.spark.archive_support import Run
from tests.spark.cluster import Cluster
from tests.spark.support import emptied
from tests.support import Work, rows

SHORT: dict[str, str] = sized(
    {
        "spark.python.daemon.module": forking.__name__,
        # Code is compiled for a query that runs once, on a few rows: the compiler takes longer than the rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
    {},
)
"""What lets hundreds of short queries take less time; `make prove` does without."""


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; it knows the format of no queue yet."""
    settings = SparkSettings(
        fast_start=True,
        app_name="tests",
        master="local[2]",
        driver_memory="1g",
        shuffle_partitions=2,
        conf=SHORT,
    )
    with open_spark(settings) as spark:
        yield spark


@pytest.fixture(scope="module", autouse=True)
def snapshots() -> Iterator[None]:
    """Reads that a test plans in this process leave their snapshots to its end, which is that of a whole run."""
    yield
    while snapshot._kept:
        with snapshot._kept.pop() as process:
            process.kill()


@pytest.fixture(scope="session")
def shared(url: str) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of several modules share."""
    with SqlQueue(url, schema=f"spark_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}") as queue:
        queue.migrate()
        yield queue


@pytest.fixture
def queue(request: pytest.FixtureRequest, spec: QueueSpec[Work]) -> SqlQueue:
    """The queues that a test works with: of a fresh schema, or of the shared one with nothing in it, where a module says
    `SHARES_A_SCHEMA`, and a test is not marked `own_schema`. What is read in slices, whose number the pages of the table
    decide, has a fresh one.
    """
    if not getattr(request.module, "SHARES_A_SCHEMA", False) or request.node.get_closest_marker("own_schema"):
        fresh: SqlQueue = request.getfixturevalue("fresh")
        return fresh
    return emptied(request.getfixturevalue("shared"), spec)


@pytest.fixture
def spark(session: SparkSession, queue: SqlQueue, url: str, output: Path) -> Iterator[SparkSession]:
    """The session, with the format `sqlqueue` reading the test's own schema."""
    register_source(session, url, queue.database.schema)
    yield session
    # A snapshot is kept for ten minutes: index builds and the removal of dead rows in other tests would wait for it.
    kept = "state = 'idle in transaction' AND query LIKE '%pg_export_snapshot%'"
    rows(queue, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {kept}")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where results go: a path that would trip careless quoting."""
    return tmp_path / "the output"


@pytest.fixture
def reader(spark: SparkSession) -> DataFrameReader:
    """A reader of the tests' queue."""
    return spark.read.format(FORMAT).option("queue", "work")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and its workers."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), workers=sized(1, 2))
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def two_workers(cluster: Cluster) -> None:
    """The cluster has another host, for the speculative copy of a task."""
    cluster.grow(2)


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    """Where the processes of a test wait for it."""
    (tmp_path / "gates").mkdir()
    return Gates(tmp_path / "gates")


@pytest.fixture
def resources(queue: SqlQueue, url: str) -> dict[str, Any]:
    """What the assets of the tests need."""
    return {"sqlqueue": SqlQueueResource(url=url, schema_name=queue.database.schema), "spark": SparkResource()}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Dagster, for one test."""
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def run(queue: SqlQueue, url: str, output: Path, instance: dg.DagsterInstance) -> Run:
    """Runs of the asset of `tests.spark.archive_support`; a module may have its own."""
    return Run(queue, url, output, instance)
