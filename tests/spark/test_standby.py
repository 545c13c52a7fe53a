"""A hot standby of a real primary: batch reads are as right there as on the primary; what needs the primary is refused."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrameReader, SparkSession

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.gate.patience import PATIENCE
from tests.spark.support import NOON, Done, archive
from tests.support import OwnServer, Work, claim, own_server, rows, until
from tests.support.few import few

ROWS = 400
PAYLOAD = "n bigint, note string"


@pytest.fixture(scope="module")
def primary() -> Iterator[OwnServer]:
    """It vacuums when a test says so: whenever it does, readers of the standby may lose their snapshots."""
    with own_server(settings=["fsync=off", "autovacuum=off"]) as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: OwnServer) -> Iterator[OwnServer]:
    """Conflicts with what comes from the primary are decided against the reader at once."""
    with own_server(settings=["fsync=off", "max_standby_streaming_delay=0"], primary=primary) as server:
        yield server


@pytest.fixture
def queue(primary: OwnServer, schema: str, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    """The queues of a fresh schema on the primary."""
    with SqlQueue(primary.url, schema=schema) as queue:
        queue.migrate()
        queue.create_queue(spec)
        yield queue


@pytest.fixture
def reader(session: SparkSession, standby: OwnServer, schema: str) -> DataFrameReader:
    """Reads the tests' queue on the standby."""
    register_source(session, standby.url, schema)
    return session.read.format(FORMAT).options(queue="work", payload=PAYLOAD)


def replayed(queue: SqlQueue, standby: OwnServer) -> None:
    """Wait until the standby has everything that was committed."""
    ((here,),) = rows(queue, "SELECT CAST(pg_current_wal_insert_lsn() AS text)")

    def there() -> bool:
        query = "SELECT pg_last_wal_replay_lsn() >= CAST(%s AS pg_lsn)"
        try:
            with psycopg.connect(standby.url, autocommit=True) as connection:
                (found,) = connection.execute(query, (here,)).fetchone() or ()
        except psycopg.OperationalError:  # cancelled for what is replayed
            return False
        return bool(found)

    until(there, "the standby's replay")


def numbers_of(frame: Any) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def finished(queue: SqlQueue, count: int = ROWS) -> None:
    archive(queue, [Done({"n": n, "note": f"note {n % 7}"}, at=NOON + timedelta(minutes=n)) for n in range(count)])


@pytest.mark.parametrize(
    "options",
    few(
        [
            {"target_rows": "100", "consistent": "snapshot"},
            {"target_rows": "100"},
            {"split": "bucket", "on_bad_value": "null"},
            {"limit": "1000"},
        ],
        1,
    ),
    ids=lambda options: "-".join(options),
)
def test_the_archive_is_read_as_on_the_primary(
    queue: SqlQueue, standby: OwnServer, reader: DataFrameReader, options: dict[str, str]
) -> None:
    finished(queue)
    replayed(queue, standby)
    where = json.dumps([{"column": "note", "op": "in", "value": ["note 1", "note 3"]}])
    frame = reader.options(where=where, finished_from=(NOON + timedelta(minutes=50)).isoformat(), **options).load()
    expected = rows(
        queue,
        "SELECT CAST(payload ->> 'n' AS bigint), payload ->> 'note', finished_at FROM {s}.job_archive"
        " WHERE payload ->> 'note' IN ('note 1', 'note 3') AND finished_at >= %s ORDER BY 1",
        NOON + timedelta(minutes=50),
    )
    assert len(expected) == 100
    found = frame.select("n", "note", "finished_at").orderBy("n").collect()
    assert [(row.n, row.note, row.finished_at.astimezone(NOON.tzinfo)) for row in found] == expected


@pytest.mark.prove
def test_all_tasks_of_a_live_read_share_a_snapshot_of_the_standby(
    queue: SqlQueue, spec: QueueSpec[Work], standby: OwnServer, reader: DataFrameReader
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(ROWS)])
    replayed(queue, standby)
    frame = reader.options(state="live", target_rows="100").load()
    assert frame.rdd.getNumPartitions() > 1
    assert numbers_of(frame) == list(range(ROWS))
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(ROWS, 2 * ROWS)])
    replayed(queue, standby)
    assert numbers_of(frame) == list(range(ROWS))
    assert numbers_of(reader.options(state="live", target_rows="100").load()) == list(range(2 * ROWS))


@pytest.mark.prove
def test_a_sealed_batch_is_read_on_the_standby(
    queue: SqlQueue, spec: QueueSpec[Work], standby: OwnServer, reader: DataFrameReader
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(20)])
    batch = batches.seal(queue, "work", "k", owner="t")
    queue.enqueue(spec, Work(n=20))
    replayed(queue, standby)
    assert numbers_of(reader.options(state="batch", batch_id=str(batch.id)).load()) == list(range(20))


@pytest.mark.prove
def test_a_snapshot_that_the_standby_gave_up_for_the_primary_is_named(
    queue: SqlQueue, spec: QueueSpec[Work], standby: OwnServer, reader: DataFrameReader
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(ROWS)])
    replayed(queue, standby)
    frame = reader.options(state="live", target_rows="100").load()
    assert numbers_of(frame) == list(range(ROWS))
    queue.complete(claim(queue, ROWS))

    def refusal() -> str:
        # Other tests' transactions on that server keep VACUUM from what they might still see.
        rows(queue, "VACUUM {s}.job")
        replayed(queue, standby)
        try:
            frame.collect()
        except PySparkException as error:
            return str(error)
        return ""

    said = until(refusal, "the end of the snapshot")
    assert re.search(r"the snapshot \S+ that this frame was planned with has ended .*hot_standby", said)
    assert numbers_of(reader.options(state="live", target_rows="100").load()) == []
    assert numbers_of(reader.options(state="archive").load()) == list(range(ROWS))


@pytest.mark.prove
def test_what_takes_the_primary_is_refused(
    session: SparkSession, queue: SqlQueue, standby: OwnServer, reader: DataFrameReader, tmp_path: Any
) -> None:
    finished(queue, 3)
    replayed(queue, standby)
    assert numbers_of(reader.load()) == [0, 1, 2]
    stream = session.readStream.format(FORMAT).options(queue="work", payload=PAYLOAD).load()
    writer = stream.writeStream.format("parquet").options(
        path=str(tmp_path / "a"), checkpointLocation=str(tmp_path / "b")
    )
    with pytest.raises(StreamingQueryException, match=r"a stream cannot be read from a standby.*URL of the primary"):
        writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    frame = session.sql("SELECT 1 AS n")
    with pytest.raises(PySparkException, match="is read-only, as a standby is; give the URL of the primary"):
        frame.write.format(FORMAT).mode("append").options(queue="work", payloadColumns="n").save()
