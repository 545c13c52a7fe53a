"""How rows come: as Arrow batches whose columns the database made, of a statement that writes nothing and claims nothing."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import adbc_driver_manager
import dagster as dg
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.spark import batches, sinks
from dagster_sqlqueue.spark.batch_reader import Reader
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.resource import SparkResource
from dagster_sqlqueue.spark.session import SparkSettings
from dagster_sqlqueue.spark.shares import Share
from dagster_sqlqueue.spark.slice_reader import Reading
from dagster_sqlqueue.spark.task_connection import connected
from dagster_sqlqueue.spark.urls import server
from tests.spark.asset_support import Run, daily_asset
from tests.spark.consuming_support import SALES, in_files, prepare, waiting
from tests.spark.daily_support import DAYS
from tests.spark.daily_support import prepare as prepare_days
from tests.spark.stream_support import Stream
from tests.spark.support import NOON, Done, archive
from tests.spark.totals import totals
from tests.support import Work, rows

SHARES_A_SCHEMA = True

TYPED = {
    "n": {"path": "payload.n", "type": "bigint"},
    "day": {"path": "payload.day", "type": "date"},
    "share": {"path": "payload.share", "type": "double"},
    "good": {"path": "payload.good", "type": "boolean"},
}


@pytest.fixture
def batches_of_a_task(queue: SqlQueue, url: str, session: SparkSession) -> Iterator[tuple[pa.RecordBatch, str]]:
    """The first batch that a task hands to Spark, and the statement that it is of, which is under way."""
    jobs = [
        Done({"n": n, "day": "2013-07-04", "share": n / 2, "good": n % 2 == 0, "note": "x" * 20_000})
        for n in range(500)
    ]
    archive(queue, jobs)
    options = {"queue": "work", "columns": json.dumps(TYPED), "batch_bytes": "2000", "max_connections": "1"}
    asked = _parse_datatype_string("n bigint, day date, share double, good boolean")
    assert isinstance(asked, StructType)
    task = Reader(url, queue.database.schema, options, asked)
    (share,) = task.partitions()
    read = task.read(share)
    first = next(read)
    reading = "application_name = 'dagster-sqlqueue/spark' AND strpos(query, %s) > 0"
    found = rows(queue, f"SELECT query FROM pg_stat_activity WHERE {reading}", f'"{queue.database.schema}".job_archive')
    ((statement,),) = found
    yield first, statement
    rest = list(read)
    assert all(type(one) is pa.RecordBatch for one in rest)
    assert first.num_rows + sum(one.num_rows for one in rest) == len(jobs)


def test_rows_come_as_arrow_batches_of_typed_columns_that_the_database_made(
    queue: SqlQueue, url: str, batches_of_a_task: tuple[pa.RecordBatch, str]
) -> None:
    batch, statement = batches_of_a_task
    assert type(batch) is pa.RecordBatch
    assert batch.schema.equals(
        pa.schema([("n", pa.int64()), ("day", pa.date32()), ("share", pa.float64()), ("good", pa.bool_())])
    )
    # The statement gives values of these types to anybody, and no JSON.
    copied = re.fullmatch(r"COPY \((.*)\) TO STDOUT.*", statement, re.DOTALL)
    with psycopg.connect(url) as connection:
        cursor = connection.execute((copied.group(1) if copied else statement).encode())
        assert [column.type_display for column in cursor.description or ()] == ["int8", "date", "float8", "bool"]
        found = {row[0]: row for row in cursor}
    assert found[3] == (3, date(2013, 7, 4), 1.5, False)
    assert {row["n"]: tuple(row.values()) for row in batch.to_pylist()}.items() <= found.items()
    selected = statement.partition(" FROM ")[0]
    assert selected.count("->>") + selected.count("#>>") >= len(TYPED)
    assert "CAST(payload AS text)" not in selected


def versions(queue: SqlQueue) -> list[tuple[Any, ...]]:
    """Each live job as it is stored: any write gives it another place and transaction."""
    return rows(
        queue,
        "SELECT id, xmin::text, ctid::text, lease_no, attempt, state, claimed_by, batch_id FROM {s}.job ORDER BY id",
    )


def test_no_task_claims_however_often_it_reads(
    queue: SqlQueue, spec: QueueSpec[Work], spark: SparkSession, reader: DataFrameReader
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(40)])
    live = reader.options(state="live", payload="n int").schema("n int").load()
    before = versions(queue)
    assert {row[5] for row in before} == {"queued"}
    for _ in range(2):
        assert sorted(row.n for row in live.collect()) == list(range(40))
    assert versions(queue) == before
    prepare(queue)
    with consume(queue, spark, SALES, key="k") as work:
        sealed, jobs = versions(queue), work.jobs()
        assert [jobs.count() for _ in range(2)] == [30, 30]
        assert jobs.orderBy("id").count() == 30  # which reads twice
        assert versions(queue) == sealed


def test_a_task_that_reads_may_not_write(queue: SqlQueue, url: str) -> None:
    """The database refuses every write, and every lock for one, in the transaction in which a task reads."""
    schema = queue.database.schema
    options = {"queue": "work", "state": "live"}
    there = server(url, schema)
    reading = Reading(there, options, StructType(), {}, [])
    with connected(there) as connection:
        reading._begin(connection, Share([]))
        setting = connection.execute("SELECT current_setting('transaction_read_only') AS setting")
        assert setting == [{"setting": "on"}]
        with pytest.raises(adbc_driver_manager.Error, match="read-only transaction"):
            connection.execute(f'SELECT id FROM "{schema}".job FOR UPDATE')
        connection.execute("ROLLBACK")


def test_the_offset_of_a_stream_is_two_snapshots_and_the_row_that_was_read_last(queue: SqlQueue, url: str) -> None:
    """One for all buckets: within a window rows follow by finished_at and id."""
    stream = Stream(queue, url)
    archive(queue, [Done({"n": n}, at=NOON + timedelta(seconds=n // 2)) for n in range(10)])
    order = rows(queue, "SELECT finished_at, id, CAST(payload->>'n' AS integer) FROM {s}.job_archive ORDER BY 1, 2")
    assert stream.batch(4) == sorted(n for _, _, n in order[:4])
    offset = stream.offset
    assert (datetime.fromisoformat(offset["at"]), uuid.UUID(offset["id"])) == order[3][:2]
    assert datetime.fromisoformat(offset["low"]) == order[0][0]
    assert all(re.fullmatch(r"\d+:\d+:[\d,]*", offset[name]) for name in ("after", "until"))
    assert int(offset["after"].split(":")[1]) < int(offset["until"].split(":")[1])
    assert json.loads(json.dumps(offset)) == offset
    assert stream.everything() == [sorted(n for _, _, n in order[4:])]
    assert (stream.offset["at"], stream.offset["id"]) == (None, None)
    stream.reader.stop()


def test_staged_files_are_named_by_batch_and_token_and_listed_in_the_batch(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sinks, "move_into_place", killed)
    with pytest.raises(KeyboardInterrupt), consume(queue, spark, SALES, key="totals/all") as work:  # noqa: PT012
        work.write_parquet(totals(work.jobs()), output, partition_by="day")
        (staged,) = (output / ".staging").iterdir()
        assert f"-{work.batch.id}-{work.batch.token}-" in staged.name
        assert batches.outputs(queue, "totals/all") == []
    # Published, and not moved: the batch says which files are where.
    assert waiting(queue) == in_files(output) == []
    ((listed, unmoved),) = rows(queue, "SELECT output, unmoved FROM {s}.batch")
    assert unmoved
    (place,) = listed["outputs"]
    assert staged.name in json.dumps(place)
    assert sorted(found.name for found in staged.glob("day=*")) == ["day=2013-01-01", "day=2013-01-02"]
    assert all(name in json.dumps(place) for name in ("day=2013-01-01", "day=2013-01-02"))


def test_a_range_of_days_has_one_session_asked_for_once(
    queue: SqlQueue, session: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    prepare_days(queue)
    asked: list[datetime] = []

    def opened() -> SparkSession:
        asked.append(datetime.now(UTC))
        return session

    run = Run(daily_asset(queue, output), {**resources, "spark": SparkResource(session=opened)}, instance)
    done = run(DAYS[0], DAYS[-1])
    assert done.success
    assert len(asked) == 1
    assert {event.partition for event in done.asset_materializations_for_node("sizes")} == set(DAYS)


def test_a_session_is_local_unless_said_otherwise() -> None:
    assert SparkResource().master == SparkSettings().master == "local[*]"
    assert SparkResource().remote is None
