"""How a read is shared out among tasks: its slices, a limit, and a cap on connections."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.functions import spark_partition_id

from dagster_sqlqueue import Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import batches, daily
from dagster_sqlqueue.spark.archive_frame import archived
from dagster_sqlqueue.spark.contents import Days
from dagster_sqlqueue.spark.daily import ArchiveRead
from tests.spark.support import NOON, Done, archive, listed
from tests.support import Work, rows
from tests.support.few import few

SHARES_A_SCHEMA = True


@pytest.mark.own_schema
def test_a_limit_is_kept_whatever_the_slices(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": n}, at=NOON + timedelta(seconds=99 - n)) for n in range(100)])
    limited = reader.option("payload", "n int").option("limit", "7").option("target_rows", "3").schema("n int")
    assert listed(limited.load()) == sorted(((n,) for n in range(93, 100)), key=repr)
    later = limited.option("finished_from", (NOON + timedelta(seconds=50)).isoformat())
    assert listed(later.load()) == sorted(((n,) for n in range(43, 50)), key=repr)


@pytest.mark.own_schema
@pytest.mark.parametrize("split", few(["bucket", "time"], 1))
def test_a_cap_on_connections_shares_all_slices_out(queue: SqlQueue, reader: DataFrameReader, split: str) -> None:
    archive(queue, [Done({"n": n}, at=NOON + timedelta(hours=n)) for n in range(100)])
    rows(queue, "UPDATE {s}.job_archive SET bucket = mod(CAST(payload ->> 'n' AS integer), 7)")
    reader = reader.option("payload", "n int").schema("n int, bucket int").option("target_rows", "10")
    free = reader.option("split", split).load()
    assert free.rdd.getNumPartitions() == (
        10 if split == "time" else 4
    )  # the queue has four buckets now, and had seven
    capped = reader.option("split", split).option("max_connections", "3").load()
    for frame, most in ((free, 100), (capped, 3)):
        read = [tuple(row) for row in frame.select("n", "bucket", spark_partition_id()).collect()]
        assert sorted(n for n, *_ in read) == list(range(100))
        assert len({part for *_, part in read}) <= most
    assert capped.rdd.getNumPartitions() == 3


class Sliced:
    """A session whose reads are cut into small slices."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def read(self) -> DataFrameReader:
        return self._spark.read.option("target_rows", "10")


@pytest.mark.own_schema
def test_the_reads_of_assets_have_a_cap_on_connections(queue: SqlQueue, spark: SparkSession) -> None:
    sliced: Any = Sliced(spark)
    day = NOON.date().isoformat()
    archive(queue, [Done({"day": day, "account": "ATL"}, at=NOON + timedelta(minutes=n)) for n in range(100)])
    for most, tasks in ((None, 10), (3, 3)):
        by_clock = ArchiveRead("work", {}, max_connections=most)
        about = Days("work", by_clock.states, "UTC")
        by_field = ArchiveRead("work", daily._ACCOUNT, max_connections=most)
        accounts = daily._accounts(sliced, "work", [], [day], most)
        for frame in (
            archived(sliced, by_clock, about, [day]),
            archived(sliced, by_field, replace(about, day="payload.day"), [day]),
            daily._events(sliced, by_field, accounts, [day]),
        ):
            assert frame.rdd.getNumPartitions() == tasks
            assert frame.count() == 100
    batch = batches.seal(queue, "work", "all", owner="t")
    both = daily._accounts(sliced, "work", [replace(batch, job_count=1)], [day], 3)
    assert "Coalesce 3" in both._jdf.queryExecution().toString()
    with pytest.raises(InvalidInput, match="the option 'max_connections' is '0'; it is a whole number from 1"):
        ArchiveRead("work", {}, max_connections=0)


@pytest.mark.own_schema
@pytest.mark.parametrize("mode", few(list(Mode), 1))
def test_the_jobs_of_a_published_batch_are_shared_out(
    queue: SqlQueue, spec: QueueSpec[Work], reader: DataFrameReader, mode: Mode
) -> None:
    archive(queue, [Done({"n": n}, at=NOON + timedelta(hours=n)) for n in range(50)])
    queue.enqueue_many(spec, [{"n": n} for n in range(50, 2050)])
    batch = batches.seal(queue, "work", "all", owner="t", mode=mode)
    with batches.publication(queue, batch, output={}):
        pass
    archive(queue, [Done({"n": n}, at=datetime.now(UTC)) for n in range(2050, 2060)])
    assert rows(queue, "SELECT count(*) FROM {s}.job_archive GROUP BY finished_at ORDER BY 1 DESC LIMIT 1") == [(2000,)]
    reader = reader.option("payload", "n int").schema("n int").option("target_rows", "100")
    for frame, tasks in ((reader.load(), 21), (reader.option("max_connections", "4").load(), 4)):
        read = [tuple(row) for row in frame.select("n", spark_partition_id()).collect()]
        assert sorted(n for n, _ in read) == list(range(2060))
        sizes = Counter(part for _, part in read)
        assert len(sizes) == tasks
        assert max(sizes.values()) <= 125 * -(-21 // tasks)
    # What is committed after the read was planned is in one of its slices, too, if it ended before.
    ((at,),) = rows(queue, "SELECT finished_at FROM {s}.job_archive GROUP BY finished_at HAVING count(*) = 2000")
    late = [at, at - timedelta(microseconds=1), at + timedelta(microseconds=1), *[NOON + timedelta(minutes=1)] * 2]
    archive(queue, [Done({"n": 3000 + n}, at=moment) for n, moment in enumerate(late)])
    assert sorted(n for (n,) in frame.collect()) == [*range(2060), *range(3000, 3005)]


@pytest.mark.prove
def test_sealed_batches_are_shared_out_too(queue: SqlQueue, spec: QueueSpec[Work], reader: DataFrameReader) -> None:
    queue.enqueue_many(spec, [{"n": n} for n in range(100)])
    batch = batches.seal(queue, "work", "all", owner="t")
    frame = (
        reader.options(state="batch", batch_id=str(batch.id), payload="n int", target_rows="1").schema("n int").load()
    )
    read = [tuple(row) for row in frame.select("n", spark_partition_id()).collect()]
    assert sorted(n for n, _ in read) == list(range(100))
    assert len({part for _, part in read}) == 100
