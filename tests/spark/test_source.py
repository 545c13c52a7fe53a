"""The data source: what it reads, and how it cuts."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.functions import spark_partition_id
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.spark.support import NOON, Done, archive, listed
from tests.support import Work, rows
from tests.support.few import few

SHARES_A_SCHEMA = True

ALL_TYPES = {
    "text": {"path": "payload.text"},
    "small": {"path": "payload.small", "type": "int"},
    "large": {"path": "payload.large", "type": "bigint"},
    "real": {"path": "payload.real", "type": "double"},
    "yes": {"path": "payload.yes", "type": "boolean"},
    "day": {"path": "payload.day", "type": "date"},
    "moment": {"path": "payload.moment", "type": "timestamp"},
    "deep": {"path": "payload.deep.er", "type": "int"},
    "answer": {"path": "result.answer", "type": "bigint"},
}


def test_fields_of_payload_and_result_come_typed_and_null_where_there_is_nothing(
    queue: SqlQueue, reader: DataFrameReader
) -> None:
    full = {
        "text": "ünï'cødé \\ \" 🛫",
        "small": -5,
        "large": 2**40,
        "real": 0.1,
        "yes": True,
        "day": "2013-01-31",
        "moment": "2013-01-31T23:30:00-05:00",
        "deep": {"er": 7},
    }
    archive(queue, [Done(full, {"answer": 42}), Done({"text": None}), Done({})])
    frame = reader.option("columns", json.dumps(ALL_TYPES)).load().select(*ALL_TYPES)
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "string", "int", "bigint", "double", "boolean", "date", "timestamp", "int", "bigint"
    ]  # fmt: skip
    found = [tuple(row) for row in frame.orderBy("small", ascending=False).collect()]
    moment = datetime(2013, 2, 1, 4, 30, tzinfo=UTC).astimezone().replace(tzinfo=None)
    assert found == [
        (full["text"], -5, 2**40, 0.1, True, date(2013, 1, 31), moment, 7, 42),
        (None,) * 9,
        (None,) * 9,
    ]


def test_the_columns_of_every_job_are_there(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": 1}, state="failed", error="too late"), Done({"n": 2}, {"ok": True})])
    first, second = reader.load().orderBy("error").collect()[::-1]
    assert (first.bucket, first.priority, first.state, first.attempt) == (1, 5, "failed", 1)
    assert first.error == "too late"
    assert first.finished_at - first.created_at == timedelta(hours=1)
    assert json.loads(second.payload) == {"n": 2}
    assert json.loads(second.result) == {"ok": True}
    assert first.result is None
    assert first.id != second.id


def test_only_the_columns_of_the_schema_are_read(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": 1, "bad": "no number"})])
    columns = {"n": {"path": "payload.n", "type": "int"}, "bad": {"path": "payload.bad", "type": "int"}}
    frame = reader.option("columns", json.dumps(columns)).schema("n int, state string").load()
    assert frame.columns == ["n", "state"]
    assert listed(frame) == [(1, "succeeded")]


@pytest.mark.parametrize(
    ("column", "operator", "value", "expected"),
    few(
        [
            ("n", ">=", "2", [2, 3]),
            ("finished_at", ">", "2013-01-01T12:00:01.5Z", [2, 3]),
            ("name", "in", ["o'clock", "back\\slash", "'; DROP TABLE job; --"], [0, 1]),
            ("n", "=", 2, [2]),
            ("n", "<", 2, [0, 1]),
            ("n", "<=", 2, [0, 1, 2]),
            ("n", ">", 2, [3]),
            ("n", "in", [0, 3, 9], [0, 3]),
            ("n", "in", [], []),
            ("day", ">=", "2013-01-03", [2, 3]),
            ("even", "=", True, [0, 2]),
        ],
        3,
    ),
)
def test_conditions(
    queue: SqlQueue, reader: DataFrameReader, column: str, operator: str, value: object, expected: list[int]
) -> None:
    names = ["o'clock", "back\\slash", "plain", ""]
    archive(
        queue,
        [
            Done(
                {"n": n, "day": f"2013-01-0{n + 1}", "name": names[n], "even": n % 2 == 0},
                at=NOON + timedelta(seconds=n),
            )
            for n in range(4)
        ],
    )
    columns = {
        "n": {"path": "payload.n", "type": "int"},
        "day": {"path": "payload.day", "type": "date"},
        "name": {"path": "payload.name"},
        "even": {"path": "payload.even", "type": "boolean"},
    }
    where = json.dumps([{"column": column, "op": operator, "value": value}])
    frame = reader.option("columns", json.dumps(columns)).option("where", where).schema("n int").load()
    assert [n for (n,) in listed(frame)] == expected


def test_states_and_times_bound_what_is_read(queue: SqlQueue, reader: DataFrameReader) -> None:
    states = ["succeeded", "failed", "cancelled"]
    archive(queue, [Done({"n": n}, at=NOON + timedelta(hours=n), state=states[n % 3]) for n in range(6)])
    reader = reader.option("columns", '{"n": {"path": "payload.n", "type": "int"}}').schema("n int")
    assert listed(reader.option("states", "failed, cancelled").load()) == [(1,), (2,), (4,), (5,)]
    later = reader.option("finished_from", "2013-01-01T13:00:00Z").option("finished_until", "2013-01-01T10:00-06:00")
    assert listed(later.load()) == [(1,), (2,)]
    assert (
        listed(later.option("finished_from", "2014-01-01T00:00Z").option("finished_until", "2015-01-01T00:00Z").load())
        == []
    )


def test_an_empty_archive_is_an_empty_frame(reader: DataFrameReader) -> None:
    frame = reader.load()
    assert frame.count() == 0
    assert "finished_at" in frame.columns


@pytest.mark.own_schema
def test_each_row_is_in_one_slice_and_slices_hold_about_as_many_rows(queue: SqlQueue, reader: DataFrameReader) -> None:
    def at(n: int) -> datetime:
        if n < 900:  # most rows within one second, three of them at each moment
            return NOON + timedelta(milliseconds=n // 3)
        return NOON + timedelta(days=n)

    archive(queue, [Done({"n": n}, at=at(n)) for n in range(1000)])
    frame = (
        reader.option("columns", '{"n": {"path": "payload.n", "type": "int"}}')
        .option("target_rows", "250")
        .schema("n int")
        .load()
    )
    read = [tuple(row) for row in frame.select("n", spark_partition_id()).collect()]
    slices = Counter(part for _, part in read)
    assert len(slices) == 4
    assert max(slices.values()) <= 252
    assert sorted(n for n, _ in read) == list(range(1000))
    assert len({(at(n), part) for n, part in read}) == len({at(n) for n in range(1000)})


def test_rows_finished_after_planning_are_not_read(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": 1})])
    frame = reader.load()
    assert frame.count() == 1
    archive(queue, [Done({"n": 2}, at=NOON + timedelta(seconds=1))])
    assert frame.count() == 1
    assert reader.load().count() == 2


def test_batches_are_read_while_they_are_sealed(
    queue: SqlQueue, spec: QueueSpec[Work], reader: DataFrameReader
) -> None:
    queue.enqueue_many(spec, [{"n": n, "note": "even" if n % 2 == 0 else "odd"} for n in range(10)])
    even = batches.seal(queue, "work", "even", owner="t", filter={"note": "even"})
    odd = batches.seal(queue, "work", "odd", owner="t", filter={"note": "odd"})
    queue.enqueue(spec, {"n": 10})
    reader = reader.option("state", "batch").option("columns", '{"n": {"path": "payload.n", "type": "int"}}')
    one = reader.option("batch_id", str(even.id)).schema("n int, state string, result string, finished_at timestamp")
    assert listed(one.load()) == [(n, "running", None, None) for n in (0, 2, 4, 6, 8)]
    both = reader.option("batch_id", f"{even.id},{odd.id}").schema("n int")
    assert listed(both.load()) == [(n,) for n in range(10)]
    batches.abandon(queue, odd, "no more")
    with pytest.raises(Exception, match=f"batch {odd.id} is over: it was published, given up or taken over"):
        both.load().count()
    assert reader.option("batch_id", str(even.id)).load().count() == 5


def test_a_bucket_of_a_batch_is_shared_out_by_ids(
    queue: SqlQueue, spec: QueueSpec[Work], reader: DataFrameReader
) -> None:
    narrow = replace(spec, name="narrow", bucket_count=1)
    queue.create_queue(narrow)
    queue.enqueue_many(narrow, [{"n": n} for n in range(10)])
    batch = batches.seal(queue, "narrow", "k", owner="t")
    reader = (
        reader.option("queue", "narrow")
        .option("state", "batch")
        .option("columns", '{"n": {"path": "payload.n", "type": "int"}}')
    )
    jobs = reader.option("batch_id", str(batch.id)).option("target_rows", 3).schema("n int").load()
    read = [tuple(row) for row in jobs.select("n", spark_partition_id()).collect()]
    assert jobs.rdd.getNumPartitions() == 4
    assert sorted(Counter(part for _, part in read).values()) == [1, 3, 3, 3]
    assert sorted(n for n, _ in read) == list(range(10))


@pytest.mark.prove
def test_a_schema_of_another_name(session: SparkSession, url: str) -> None:
    with SqlQueue(url, schema="Odd$Name") as other:
        other.migrate()
        other.create_queue(QueueSpec("work", Work))
        archive(other, [Done({"n": 5})])
    register_source(session, url, "Odd$Name")
    assert session.read.format(FORMAT).option("queue", "work").load().count() == 1


def test_the_schema_that_the_environment_names(
    session: SparkSession, queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(queue, [Done({"n": n}) for n in range(3)])
    monkeypatch.setenv("SQLQUEUE_SCHEMA", queue.database.schema)
    register_source(session, url)
    # What counts is the environment of the process that registers it, at that moment.
    monkeypatch.setenv("SQLQUEUE_SCHEMA", "elsewhere")
    assert session.read.format(FORMAT).option("queue", "work").load().count() == 3


def test_a_view_reads_by_its_options_and_a_table_of_the_catalogue_is_refused(
    session: SparkSession, queue: SqlQueue, url: str
) -> None:
    queue.enqueue_many(QueueSpec("work", Work), [Work(n=n) for n in range(10)])
    register_source(session, url, queue.database.schema)
    using = "USING sqlqueue OPTIONS (queue 'work', state 'live', payload 'n INT')"
    session.sql(f"CREATE TEMPORARY VIEW seen {using}")
    try:
        assert session.sql("SELECT sum(n) FROM seen WHERE n > 5").first() == (30,)
    finally:
        session.catalog.dropTempView("seen")
    with pytest.raises(AnalysisException, match=r"CREATE TEMPORARY VIEW name USING sqlqueue OPTIONS"):
        session.sql(f"CREATE TABLE kept {using}")


@pytest.mark.prove
def test_dates_are_read_alike_whatever_the_role_is_used_to(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"d": "02/01/2013"})])
    rows(queue, "ALTER ROLE CURRENT_USER SET datestyle = 'ISO, DMY'")
    try:
        columns = json.dumps({"d": {"path": "payload.d", "type": "date"}})
        assert reader.option("columns", columns).schema("d date").load().first() == (date(2013, 2, 1),)
    finally:
        rows(queue, "ALTER ROLE CURRENT_USER RESET datestyle")


@pytest.mark.prove
def test_several_hosts_are_read_as_sqlalchemy_reads_them(session: SparkSession, queue: SqlQueue, url: str) -> None:
    place = make_url(url).query["host"]
    several = f"postgresql://postgres@/postgres?host={place}:5432&host={place}:5432"
    register_source(session, several, queue.database.schema)
    archive(queue, [Done()])
    assert session.read.format(FORMAT).option("queue", "work").load().count() == 1
