"""The data source: what it reads, how it cuts, and what it says about bad options."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.functions import spark_partition_id
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import batches, conditions, fields
from dagster_sqlqueue.spark import options as parts
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.spark.support import NOON, Done, archive
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


def listed(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": ""}, "the option 'queue' of the format 'sqlqueue' is missing"),
        ({"state": "lives"}, "the option 'state' is 'lives'; it is archive or live or batch"),
        ({"states": "succeeded,done"}, "the option 'states' names 'done'"),
        ({"state": "batch"}, "the option 'batch_id' of the format 'sqlqueue' is missing"),
        ({"state": "batch", "batch_id": "1"}, "the option 'batch_id' holds '1', which is no UUID"),
        ({"colums": "{}"}, "the option 'colums' is not known"),
        ({"columns": "{"}, "the option 'columns' is not JSON"),
        ({"columns": "[]"}, "the option 'columns' must be a JSON object"),
        ({"columns": '{"n": "payload.n"}'}, "column 'n' is payload.n; write"),
        ({"columns": '{"n": {"path": "payload"}}'}, "write path as payload.field"),
        ({"columns": '{"n": {"path": 5}}'}, "write path as payload.field"),
        ({"columns": '{"n": {"path": "lease_no.x"}}'}, "write path as payload.field"),
        ({"columns": '{"n": {"path": "payload.n", "type": "map"}}'}, "type as one of string, smallint, int"),
        ({"columns": '{"a b": {"path": "payload.n"}}'}, "column 'a b' is not usable"),
        ({"columns": '{"n\\n": {"path": "payload.n"}}'}, "is not usable"),
        ({"columns": '{"n\\" FROM x; --": {"path": "payload.n"}}'}, "is not usable"),
        ({"columns": '{"finished_at": {"path": "payload.at"}}'}, "column 'finished_at' has the name of a column that every"),
        ({"columns": '{"ID": {"path": "payload.id"}}'}, "give it another, such as payload_ID"),
        ({"columns": '{"n": {"path": "payload.n"}, "N": {"path": "payload.m"}}'}, "columns has 'N' twice"),
        ({"columns": '{"n": {"path": "payload.a\\u0000b"}}'}, "NUL"),
        ({"columns": '{"n": {"path": "payload.\\ud800"}}'}, "is not valid Unicode"),
        ({"where": "{}"}, "the option 'where' must be a JSON list"),
        ({"where": '["n = 1"]'}, "where has n = 1; "),
        ({"where": '[{"column": "nope", "op": "=", "value": 1}]'}, "column is one of"),
        ({"where": '[{"column": ["id"], "op": "=", "value": 1}]'}, "column is one of"),
        ({"where": '[{"column": "id", "op": "OR 1=1 OR id =", "value": 1}]'}, "op one of"),
        ({"where": '[{"column": "attempt", "op": "=", "value": "1; DROP"}]'}, "'1; DROP' is not a value of the type int"),
        ({"where": '[{"column": "attempt", "op": "=", "value": null}]'}, "None is not a value of the type int"),
        ({"where": '[{"column": "attempt", "op": "in", "value": 1}]'}, "in wants a list"),
        ({"where": '[{"column": "finished_at", "op": ">", "value": "soon"}]'}, "is not a value of the type timestamp"),
        ({"finished_from": "yesterday"}, "the option 'finished_from' is 'yesterday'; write an ISO timestamp with a zone"),
        ({"finished_until": "2013-01-01T00:00:00"}, "write an ISO timestamp with a zone"),
        ({"target_rows": "many"}, "the option 'target_rows' is 'many'; it is a whole number"),
        ({"target_rows": "0"}, "the option 'target_rows' is '0'; it is a whole number"),
    ],
)  # fmt: skip
def test_a_bad_option_is_named_with_its_cure(options: dict[str, str], said: str) -> None:
    given = {"queue": "work", **options}

    def prepare() -> None:
        parts.check(given)
        conditions.all_of(given, fields.columns(given), [], 150000)

    with pytest.raises(InvalidInput) as caught:
        prepare()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    few(
        [
            ({"colums": "{}"}, "the option 'colums' is not known"),
            ({"columns": "{"}, "the option 'columns' is not JSON"),
            ({"where": '[{"column": "id", "op": "OR 1=1 OR id =", "value": 1}]'}, "op one of"),
        ],
        1,
    ),
)
def test_what_spark_says_about_a_bad_option_is_readable(
    reader: DataFrameReader, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        reader.options(**options).load().count()
    assert f"dagster_sqlqueue.errors.InvalidInput: {said}"[:30] in str(caught.value)
    assert said in str(caught.value)


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


def test_a_queue_that_is_not_there_is_named(reader: DataFrameReader) -> None:
    with pytest.raises(AnalysisException, match=r"there is no queue 'nope' in schema .*there are: work") as caught:
        reader.option("queue", "nope").load().count()
    assert "UnknownQueue" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    few([("attempt string", "'attempt' is int, not string"), ("n int", r"columns \['n'\] are not known")], 1),
)
def test_a_schema_that_does_not_fit_is_refused(reader: DataFrameReader, asked: str, said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        reader.schema(asked).load().count()


def test_a_field_of_another_type_is_named(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": "many"})])
    frame = reader.option("columns", '{"n": {"path": "payload.n", "type": "int"}}').schema("n int").load()
    with pytest.raises(PySparkException, match='invalid input syntax for type integer: "many"'):
        frame.collect()


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


@pytest.mark.prove
def test_the_password_is_in_no_plan_and_no_error(session: SparkSession, queue: SqlQueue, url: str) -> None:
    with SqlQueue(url, schema=queue.database.schema):
        secret = "hunter2%40secret"
        # The server trusts its socket, so that any password will do.
        register_source(session, url.replace("postgres@", f"postgres:{secret}@"), queue.database.schema)
    archive(queue, [Done({"n": "many"})])
    reader = session.read.format(FORMAT).option("queue", "work")
    frame = reader.option("columns", '{"n": {"path": "payload.n", "type": "int"}}').load()
    plan = explained(frame)
    assert "sqlqueue" in plan
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    gone = url.replace("postgres@", f"postgres:{secret}@").replace("host=", "host=/nowhere")
    register_source(session, gone, queue.database.schema)
    with pytest.raises(PySparkException) as unreachable:
        reader.load().count()
    assert "DatabaseUnavailable" in str(unreachable.value)
    for text in (plan, str(caught.value), str(unreachable.value), repr(frame)):
        assert "hunter2" not in text


@pytest.mark.prove
def test_a_server_that_is_gone_when_spark_reads_is_named_without_its_password(
    session: SparkSession, queue: SqlQueue, url: str
) -> None:
    archive(queue, [Done()])
    register_source(session, url.replace("postgres@", "postgres:hunter2@"), queue.database.schema)
    frame = session.read.format(FORMAT).option("queue", "work").load()
    assert frame.count() == 1  # planned
    rows(queue, "ALTER TABLE {s}.job_archive RENAME TO moved")
    with pytest.raises(PySparkException, match="job_archive") as caught:
        frame.count()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", few(["timestamp", "date"], 1))
def test_infinity_is_refused_and_not_read_as_a_day_long_ago(
    queue: SqlQueue, reader: DataFrameReader, kind: str
) -> None:
    archive(queue, [Done({"t": "infinity"})])
    frame = reader.option("columns", json.dumps({"t": {"path": "payload.t", "type": kind}})).schema(f"t {kind}").load()
    with pytest.raises(PySparkException, match="column 't' holds a value outside the years 1 to 9999"):
        frame.count()


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
