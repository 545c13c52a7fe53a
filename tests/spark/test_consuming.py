"""A queue consumed by Spark in a block, compared with the same numbers computed in plain Python."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from sqlalchemy.engine import make_url

from dagster_sqlqueue import NewJob, QueueSpec, Reject, SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.batches import leased_seal
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.for_each import for_each_job
from tests.gate.patience import sized
from tests.spark.consuming_support import (
    DAYS,
    SALES,
    Sale,
    bad_ids,
    endings,
    expected,
    in_files,
    in_table,
    left_behind,
    prepare,
    sales,
    waiting,
)
from tests.spark.totals import run, table, totals
from tests.support import rows, value
from tests.support.few import few

SHARES_A_SCHEMA = True

READS = sized(3, 8)

BOTH = pytest.mark.parametrize("mode", list(Mode))
LEASED = pytest.mark.parametrize("mode", few(list(Mode), 1))
ONE = pytest.mark.parametrize("mode", [Mode.TRANSACTIONAL, pytest.param(Mode.LEASED, marks=pytest.mark.prove)])


@BOTH
def test_rows_files_and_endings_appear_together_and_once(
    queue: SqlQueue, spark: SparkSession, output: Path, mode: Mode
) -> None:
    prepare(queue)
    with consume(queue, spark, SALES, key="totals/all", mode=mode) as work:
        jobs = work.jobs()
        assert [f"{field.name} {field.dataType.simpleString()}" for field in jobs.schema] == [
            "id string", "attempt int", "created_at timestamp",
            "day date", "account string", "amount bigint", "note string",
        ]  # fmt: skip
        work.write_sql(totals(jobs), table(queue), replace={"day": DAYS}, key=["day", "account"])
        work.write_parquet(totals(jobs), output, partition_by="day", values=[*DAYS, date(2013, 1, 3)])
        assert work.fail(jobs.where("amount <= 0"), "a sale of nothing") == 3
        assert in_table(queue) == in_files(output) == []
    assert in_table(queue) == in_files(output) == expected(sales())
    assert endings(queue) == [("failed", 3, 3), ("succeeded", 27, 27)]
    assert value(queue, "SELECT DISTINCT error FROM {s}.job_archive WHERE state = 'failed'") == "a sale of nothing"
    assert waiting(queue) == left_behind(queue, output) == []
    assert (output / "day=2013-01-03").is_dir()
    assert run(queue, spark, output, mode) == 0
    assert in_table(queue) == in_files(output) == expected(sales())


def test_a_large_leased_batch_is_read_from_its_packs(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several tasks, each of the packs that have its ids; and so is a handler run for each of its jobs."""
    monkeypatch.setattr(leased_seal, "PACKED_FROM", 1)
    prepare(queue)
    queue.enqueue_many(SALES, [Sale(day=DAYS[0], account="ATL", amount=n) for n in range(1, 3_001)])
    with consume(queue, spark, SALES, key="totals/all", mode=Mode.LEASED) as work:
        assert value(queue, "SELECT sum(job_count) FROM {s}.batch_pack") == work.job_count == 3_030
        jobs = work.jobs()
        assert jobs.rdd.getNumPartitions() > 1
        capped = work.jobs(max_connections=1)
        assert (capped.rdd.getNumPartitions(), capped.count()) == (1, 3_030)
        with pytest.raises(InvalidInput, match="the option 'max_connections' is '0'; it is a whole number from 1"):
            work.jobs(max_connections=0)
        assert jobs.select("id").distinct().count() == jobs.count() == 3_030
        assert jobs.where("amount > 0 AND account = 'ATL' AND note IS NULL").count() >= 3_000
        assert work.arrow().num_rows == 3_030
        assert work.fail(jobs.where("amount <= 0"), "a sale of nothing") == 3
        assert jobs.count() == 3_030
    assert endings(queue) == [("failed", 3, 3), ("succeeded", 3_027, 3_027)]
    queue.enqueue_many(SALES, [Sale(day=DAYS[0], account="ATL", amount=n) for n in range(300)])
    with consume(queue, spark, SALES, key="totals/all", mode=Mode.LEASED) as work:
        assert for_each_job(work, lambda job: Reject("none") if job.payload.amount == 0 else None).succeeded == 299
    assert endings(queue) == [("failed", 4, 4), ("succeeded", 3_326, 3_326)]


@ONE
def test_a_batch_gives_the_same_rows_however_often_it_is_read(queue: SqlQueue, spark: SparkSession, mode: Mode) -> None:
    prepare(queue)
    ids = sorted(str(one) for (one,) in rows(queue, "SELECT id FROM {s}.job WHERE queue = 'sales'"))
    with consume(queue, spark, SALES, key="k", mode=mode) as work:
        jobs = work.jobs()
        assert jobs.count() == 30
        queue.enqueue_many(SALES, [NewJob(sale) for sale in sales(5)])
        assert jobs.count() == 30
        assert [row["id"] for row in jobs.orderBy("id").collect()] == ids
        assert sorted(work.arrow()["id"].to_pylist()) == ids
        plain = work.jobs({"much": {"path": "payload.amount", "type": "bigint"}}, payload=True)
        assert {row["much"] for row in plain.collect()} == {sale.amount for sale in sales()}
        # Several partitions, none of which has all of it.
        parts = jobs.groupBy(sf.spark_partition_id()).count().collect()
        assert sum(row["count"] for row in parts) == 30
    assert [state for state, _, _ in waiting(queue)] == ["queued"] * 5


def test_consumptions_side_by_side_read_their_own_jobs(queue: SqlQueue, spark: SparkSession) -> None:
    prepare(queue)
    other = QueueSpec("more_sales", Sale)
    queue.create_queue(other)
    queue.enqueue_many(other, sales(7))
    with (
        consume(queue, spark, SALES, key="a") as first,
        consume(queue, spark, other, key="b") as second,
        ThreadPoolExecutor(2) as pool,
    ):
        counts = pool.map(lambda work: [work.jobs().count() for _ in range(READS)], (first, second))
        assert list(counts) == [[30] * READS, [7] * READS]


@LEASED
def test_a_frame_that_is_read_after_its_block_is_an_error(queue: SqlQueue, spark: SparkSession, mode: Mode) -> None:
    prepare(queue)
    with consume(queue, spark, SALES, key="k", mode=mode) as work:
        jobs = work.jobs()
        assert jobs.count() == 30
    with pytest.raises(PySparkException, match="is over: it was published" if mode is Mode.LEASED else "batch 'k'"):
        jobs.count()


@pytest.mark.prove
@BOTH
def test_an_exception_gives_the_jobs_back_and_leaves_nothing(
    queue: SqlQueue, spark: SparkSession, output: Path, mode: Mode
) -> None:
    prepare(queue)
    with (  # noqa: PT012
        pytest.raises(RuntimeError, match="café"),
        consume(queue, spark, SALES, key="totals/all", mode=mode) as work,
    ):
        work.write_sql(totals(work.jobs()), table(queue), by_tasks=True)
        work.write_parquet(totals(work.jobs()), output)
        assert len(left_behind(queue, output)) == 2
        raise RuntimeError("the café is closed")
    assert left_behind(queue, output) == endings(queue) == in_table(queue) == []
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    ((state, attempt, error),) = rows(queue, "SELECT state, attempt, error FROM {s}.batch")
    assert (state, attempt) == ("abandoned", 1)
    assert "the café is closed" in error
    assert {error for *_, error in waiting(queue)} == ({error} if mode is Mode.LEASED else {None})
    assert run(queue, spark, output, mode) == 30
    assert in_table(queue) == in_files(output) == expected(sales())


@ONE
def test_many_rows_are_written_by_tasks_and_added(
    queue: SqlQueue, spark: SparkSession, output: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "MAX_ROWS", 10)
    for _ in range(sized(1, 2)):
        prepare(queue)
        with consume(queue, spark, SALES, key="k", mode=mode) as work:
            every = work.jobs().where("amount > 0").selectExpr("day", "account", "1 AS sales", "amount")
            assert work.write_sql(every, table(queue)) == 27
            work.write_parquet(every, output)
    assert in_table(queue) == in_files(output) == expected(sales() * sized(1, 2))
    assert left_behind(queue, output) == []
    assert len(list(output.glob("batch=*"))) == sized(1, 2)


def test_single_jobs_are_retried_without_the_rest(queue: SqlQueue, spark: SparkSession) -> None:
    prepare(queue)
    bad = bad_ids(queue)
    with consume(queue, spark, SALES, key="k") as work:
        assert work.retry(bad[:2], "not yet", after=3_600) == 2
        assert work.fail([str(bad[2])], "never") == 1
    assert waiting(queue) == [("queued", 1, "not yet")] * 2
    assert value(queue, "SELECT min(available_at) > now() + interval '50 minutes' FROM {s}.job WHERE queue = 'sales'")
    assert endings(queue) == [("failed", 1, 1), ("succeeded", 27, 27)]


@pytest.mark.prove
@pytest.mark.parametrize(
    ("mode", "by_tasks"),
    [
        (Mode.LEASED, True),
        (Mode.TRANSACTIONAL, False),
        (Mode.LEASED, False),
        (Mode.TRANSACTIONAL, True),
    ],
)
def test_moments_with_and_without_a_zone_are_the_same_whoever_writes_them(
    queue: SqlQueue, spark: SparkSession, url: str, mode: Mode, by_tasks: bool
) -> None:
    prepare(queue)
    rows(queue, "CREATE TABLE {s}.swapped (plain timestamptz, moment timestamp)")
    elsewhere = make_url(url).update_query_dict({"options": "-c timezone=America/New_York"})
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with (
            SqlQueue(elsewhere.render_as_string(hide_password=False), schema=queue.database.schema) as there,
            consume(there, spark, SALES, key="k", mode=mode) as work,
        ):
            noon = "'2013-07-01 12:00:00'"
            made = work.jobs().limit(1).selectExpr(f"timestamp_ntz{noon} AS plain", f"timestamp{noon} AS moment")
            work.write_sql(made, table(queue, "made"), by_tasks=by_tasks)
            work.write_sql(made, table(queue, "swapped"), by_tasks=by_tasks)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    plain, moment = datetime(2013, 7, 1, 12), datetime(2013, 7, 1, 10, tzinfo=UTC)
    assert rows(queue, "SELECT plain, moment FROM {s}.made") == [(plain, moment)]
    assert rows(queue, "SELECT plain, moment FROM {s}.swapped") == [
        (plain.replace(tzinfo=UTC), datetime(2013, 7, 1, 10))
    ]
