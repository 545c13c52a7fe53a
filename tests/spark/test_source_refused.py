"""What the data source refuses, and what its errors say: bad options, and servers that are gone."""

import json

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import conditions, fields
from dagster_sqlqueue.spark import options as parts
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.spark.support import Done, archive
from tests.support import rows
from tests.support.few import few

SHARES_A_SCHEMA = True


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
        ({"where": '[{"column": "payload", "op": "on", "value": "2013-01-01"}]'}, "on wants a list"),
        ({"where": '[{"column": "attempt", "op": "on", "value": ["2013-01-01"]}]'}, "on compares days, in a field"),
        ({"columns": '{"d": {"path": "payload.d"}}', "where": '[{"column": "d", "op": "on", "value": ["soon"]}]'},
         "'soon' is not a value of the type date"),
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


def test_a_range_that_ends_before_it_begins_is_refused(reader: DataFrameReader) -> None:
    backwards = reader.option("finished_from", "2013-01-02T00:00Z").option("finished_until", "2013-01-01T00:00Z")
    with pytest.raises(
        PySparkException, match="'finished_until' is '2013-01-01T00:00Z', which is before 'finished_from'"
    ):
        backwards.load().count()
    assert backwards.option("finished_until", "2013-01-02T00:00Z").load().count() == 0


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


@pytest.mark.own_schema
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
    with pytest.raises(PySparkException, match=f"column 't' is {kind}: it lies outside the years 1 to 9999"):
        frame.count()
