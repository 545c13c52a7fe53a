"""A connection that is cut in the middle of a statement, wherever that is: `DatabaseUnavailable`, and the next is right."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from dagster_sqlqueue import Done, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.spark.batch_reader import Reader
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.for_each import for_each_job
from dagster_sqlqueue.spark.task_errors import task_errors_restored
from tests.gate.patience import PATIENCE
from tests.spark.consuming_support import SALES, endings, expected, in_table, left_behind, prepare, sales, waiting
from tests.spark.stream_support import Stream
from tests.spark.support import Done as Ended
from tests.spark.support import archive
from tests.spark.test_writing import nothing_is_left, payloads, write
from tests.spark.totals import run, table, totals
from tests.support import rows

SHARES_A_SCHEMA = True

GONE = "cannot use the database "


@contextlib.contextmanager
def cut(queue: SqlQueue, url: str, name: str) -> Iterator[None]:
    """Lock a table for the block, and end every backend that waits for it: a connection that is lost in a statement."""
    place = sql.Identifier(queue.database.schema, name)
    over = threading.Event()
    ended: list[int] = []

    def ending() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            oid = connection.execute("SELECT to_regclass(%s)::oid", [place.as_string(connection)]).fetchone()
            assert oid is not None
            while not over.wait(0.02):
                found = connection.execute(
                    "SELECT pid, pg_terminate_backend(pid) FROM pg_locks WHERE relation = %s AND NOT granted", oid
                ).fetchall()
                ended.extend(pid for pid, _ in found)

    thread = threading.Thread(target=ending)
    with psycopg.connect(url) as holder:
        holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(place))
        thread.start()
        try:
            with pytest.raises(DatabaseUnavailable, match=GONE):
                yield
        finally:
            over.set()
            thread.join(PATIENCE)
            holder.rollback()
    assert ended


def test_a_read_that_is_planned_and_one_in_its_tasks(queue: SqlQueue, url: str, reader: DataFrameReader) -> None:
    archive(queue, [Ended({"n": n}) for n in range(20)])
    with cut(queue, url, "job_archive"), task_errors_restored():
        reader.load().count()
    frame = reader.load()
    assert frame.count() == 20  # planned
    with cut(queue, url, "job_archive"), task_errors_restored():
        frame.count()
    assert frame.count() == 20


def test_a_read_between_two_batches_of_a_statement(queue: SqlQueue, url: str) -> None:
    archive(queue, [Ended({"n": n, "note": "x" * 20_000}) for n in range(2_000)])
    asked = StructType([StructField("payload", StringType())])
    options = {"queue": "work", "batch_bytes": "20000", "max_connections": "1"}
    task = Reader(url, queue.database.schema, options, asked)
    (share,) = task.partitions()
    batches = task.read(share)
    next(batches)
    reading = (
        "application_name = 'dagster-sqlqueue/spark' AND strpos(query, %s) > 0 AND state = 'active'"
        " AND pid <> pg_backend_pid()"
    )
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {reading}"
    assert rows(queue, ended, f'"{queue.database.schema}".job_archive') == [(True,)]
    with pytest.raises(DatabaseUnavailable, match=GONE):
        list(batches)


@pytest.mark.parametrize("name", ["batch", "job"])
def test_a_seal(queue: SqlQueue, url: str, spark: SparkSession, output: Path, name: str) -> None:
    prepare(queue)
    with cut(queue, url, name), consume(queue, spark, SALES, key="totals/all"):
        raise AssertionError
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    release(queue)
    assert run(queue, spark, output) == 30
    assert in_table(queue) == expected(sales())


def release(queue: SqlQueue) -> None:
    """A lease that the cut-off run could not give back runs out."""
    rows(queue, "UPDATE {s}.batch SET lease_until = now() - interval '1 s' WHERE state IN ('sealing', 'sealed')")


def test_the_tasks_that_read_a_batch(queue: SqlQueue, url: str, spark: SparkSession) -> None:
    prepare(queue)
    with consume(queue, spark, SALES, key="totals/all") as work:
        with cut(queue, url, "batch_pack"), task_errors_restored():
            work.jobs().count()
        assert work.jobs().count() == 30


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_publication(queue: SqlQueue, url: str, spark: SparkSession, output: Path, by_tasks: bool) -> None:
    prepare(queue)
    rows(queue, "CREATE TABLE {s}.totals (day date, account text, sales bigint, amount bigint)")
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(consume(queue, spark, SALES, key="totals/all"))
        work.write_sql(totals(work.jobs()), table(queue), by_tasks=by_tasks)
        with cut(queue, url, "totals"):
            stack.close()
    assert in_table(queue) == endings(queue) == []
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    release(queue)
    assert run(queue, spark, output) == 30
    assert in_table(queue) == expected(sales())
    assert left_behind(queue, output) == []


def handler(_: Any) -> Done:
    return Done()


def test_the_tasks_that_report_outcomes(queue: SqlQueue, url: str, spark: SparkSession) -> None:
    prepare(queue)
    with consume(queue, spark, SALES, key="totals/all") as work:
        with cut(queue, url, "batch_outcome"), task_errors_restored():
            for_each_job(work, handler)
        assert for_each_job(work, handler).succeeded == 30


@pytest.mark.parametrize("name", ["staged_job", "job"])
def test_a_write_in_its_tasks_and_in_its_commit(queue: SqlQueue, url: str, spark: SparkSession, name: str) -> None:
    frame = spark.createDataFrame([(n,) for n in range(3)], "n int")
    with cut(queue, url, name), task_errors_restored():
        write(frame, payloadColumns="n")
    assert payloads(queue) == []
    write(frame, payloadColumns="n")
    assert payloads(queue) == [{"n": n} for n in range(3)]
    if name == "job":
        nothing_is_left(queue)


def test_a_stream_that_is_planned_and_one_that_is_read(queue: SqlQueue, url: str) -> None:
    stream = Stream(queue, url)
    archive(queue, [Ended({"n": n}) for n in range(5)])
    with cut(queue, url, "job_archive"):
        stream.batch()
    start = stream.offset
    assert stream.batch() == list(range(5))
    parts = stream.reader.partitions(dict(start), dict(stream.offset))
    with cut(queue, url, "job_archive"):
        for part in parts:
            list(stream.reader.read(part))
    assert stream.between(start, stream.offset) == list(range(5))
    stream.reader.stop()


def test_a_server_that_is_not_there(queue: SqlQueue, spark: SparkSession) -> None:
    gone = "postgresql://me:hunter2@127.0.0.1:1/jobs"
    with SqlQueue(gone, schema=queue.database.schema) as there:
        with pytest.raises(DatabaseUnavailable, match=GONE), consume(there, spark, SALES, key="k"):
            raise AssertionError
        with pytest.raises(DatabaseUnavailable, match=GONE):
            Stream(there, gone)
