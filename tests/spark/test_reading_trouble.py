"""What goes wrong in the middle of a read: a database that goes away, a day that is dropped, a snapshot that is over."""

from datetime import timedelta

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.spark.batch_reader import Reader
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.spark.support import NOON, Done, archive
from tests.support import Work, own_server, rows, until

# Nothing but their state distinguishes them from a connection of this pool that has looked for them before.
KEEPERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_export_snapshot%' AND state = 'idle in transaction'"
MANY = 200_000


def filled(queue: SqlQueue, jobs: int) -> None:
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, tags, payload) SELECT gen_random_uuid(), 'work', n %% 4, 0, 'succeeded', 1, 1, 1,"
        " at, at, at, 'local', '{{}}', jsonb_build_object('n', n, 'note', repeat('x', 200))"
        " FROM (SELECT n, timestamptz '2013-01-01 12:00Z' + n * interval '1 ms' AS at FROM generate_series(1, %s) AS n)"
        " AS made",
        jobs,
    )


@pytest.mark.prove
def test_a_database_that_goes_away_in_mid_read_is_named_and_a_second_read_is_right(session: SparkSession) -> None:
    with own_server("hunter2", settings=["fsync=off"]) as server:
        url = f"postgresql://postgres:hunter2@{server.query}"
        with SqlQueue(url) as queue:
            queue.migrate()
            queue.create_queue(QueueSpec("work", Work))
            filled(queue, MANY)
            register_source(session, url)
            options = {"queue": "work", "payload": "n bigint", "batch_bytes": "20000", "max_connections": "1"}
            asked = StructType([StructField("n", LongType()), StructField("payload", StringType())])
            # What a task does, in this process, so that the server crashes between two batches of one statement.
            task = Reader(url, DEFAULT_SCHEMA, options, asked)
            (share,) = task.partitions()
            batches = task.read(share)
            next(batches)
            server.stop()
            with pytest.raises(DatabaseUnavailable) as met:
                list(batches)
            register_source(session, url)
            with pytest.raises(PySparkException) as caught:
                session.read.format(FORMAT).options(**options).schema(asked).load().count()
            for said in (str(met.value), str(caught.value)):
                assert f"cannot use the database {server.home}" in said
                assert "hunter2" not in said
            server.start()
            frame = session.read.format(FORMAT).options(**options).schema(asked).load()
            assert frame.agg({"n": "sum"}).first() == (MANY * (MANY + 1) // 2,)


@pytest.mark.prove
def test_a_statement_that_takes_too_long_says_which_option_it_was(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done()])
    with queue.database.connection() as connection:
        connection.execute("BEGIN")
        connection.execute(f'LOCK TABLE "{queue.database.schema}".job_archive IN ACCESS EXCLUSIVE MODE'.encode())
        connection.execute("COMMIT")
        frame = reader.option("statement_timeout", "5").load()
        assert frame.count() == 1  # planned
        connection.execute("BEGIN")
        connection.execute(f'LOCK TABLE "{queue.database.schema}".job_archive IN ACCESS EXCLUSIVE MODE'.encode())
        with pytest.raises(PySparkException, match="raise the option 'statement_timeout'"):
            frame.count()
        connection.execute("ROLLBACK")
    assert frame.count() == 1


@pytest.mark.prove
def test_a_day_that_was_dropped_after_planning_fails_the_read(queue: SqlQueue, reader: DataFrameReader) -> None:
    rows(queue, "SELECT {s}.make_archive_partition('2013-01-01')")
    rows(queue, "SELECT {s}.make_archive_partition('2013-01-02')")
    archive(queue, [Done({"n": n}, at=NOON + timedelta(hours=n)) for n in range(24)])
    frame = reader.option("target_rows", "5").load()
    assert frame.count() == 24
    rows(queue, "DROP TABLE {s}.job_archive_20130101")
    with pytest.raises(PySparkException, match="the archive's partition 'job_archive_20130101' was dropped after this"):
        frame.count()
    assert reader.load().count() == 12
    second_day = reader.option("finished_from", "2013-01-02T00:00Z").load()
    assert second_day.count() == 12


def keepers(queue: SqlQueue) -> list[int]:
    return [pid for (pid,) in rows(queue, KEEPERS)]


def test_all_tasks_of_a_live_read_see_one_moment(
    queue: SqlQueue, spec: QueueSpec[Work], reader: DataFrameReader, url: str
) -> None:
    queue.enqueue_many(spec, [{"n": n} for n in range(40)])
    live = reader.options(state="live", payload="n int", target_rows="1").schema("n int")
    frame = live.load()
    assert frame.rdd.getNumPartitions() == 4
    queue.enqueue_many(spec, [{"n": n} for n in range(40, 60)])
    rows(queue, "DELETE FROM {s}.job WHERE CAST(payload ->> 'n' AS integer) < 20")
    assert sorted(row.n for row in frame.collect()) == list(range(40))
    assert sorted(row.n for row in live.load().collect()) == list(range(20, 60))
    for pid in keepers(queue):
        rows(queue, "SELECT pg_terminate_backend(%s)", pid)
    until(lambda: not keepers(queue))
    with pytest.raises(PySparkException, match=r"the snapshot \S+ that this frame was planned with has ended"):
        frame.collect()
    # One slice needs no snapshot that somebody keeps.
    assert live.option("target_rows", "1000").load().count() == 40
    assert keepers(queue) == []


@pytest.mark.prove
def test_a_snapshot_is_let_go_after_its_time_and_keeps_days_until_then(
    queue: SqlQueue, reader: DataFrameReader
) -> None:
    rows(queue, "SELECT {s}.make_archive_partition('2013-01-01')")
    archive(queue, [Done({"n": n}, at=NOON + timedelta(minutes=n)) for n in range(20)])
    before = set(keepers(queue))
    frame = reader.options(consistent="snapshot", target_rows="5", snapshot_seconds="600").load()
    assert frame.count() == 20
    (kept,) = set(keepers(queue)) - before
    archive(queue, [Done({"n": 20}, at=NOON + timedelta(seconds=1))])
    assert frame.count() == 20
    with pytest.raises(psycopg.errors.LockNotAvailable):
        rows(queue, "SET lock_timeout = '100ms'; DROP TABLE {s}.job_archive_20130101")
    rows(queue, "SET lock_timeout = 0")
    short = reader.options(consistent="snapshot", target_rows="5", snapshot_seconds="1").load()
    assert short.rdd.getNumPartitions() == 5
    until(lambda: set(keepers(queue)) - before == {kept})
    with pytest.raises(PySparkException, match="has ended"):
        short.count()
    rows(queue, "SELECT pg_terminate_backend(%s)", kept)
