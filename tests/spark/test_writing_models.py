"""Rows that are written to a queue whose payload model the source knows: what fits arrives as an enqueue stores it, and
of what does not nothing arrives, with an error that names the row, its job and the field.
"""

import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from dagster_sqlqueue import QueueSpec, Sensitive, SqlQueue, versioned
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.gate.patience import PATIENCE
from tests.spark.test_writing import nothing_is_left, payloads, write
from tests.support import Work, rows, until
from tests.support.few import few

SHARES_A_SCHEMA = True

JOB = "0190a0a0-0000-7000-8000-000000000001"


class Line(BaseModel):
    pieces: int = Field(gt=0)


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    account: str = Field(alias="accountName")
    day: date
    price: Decimal = Decimal(1)
    lines: list[Line] = []
    secret: Annotated[str, Sensitive(), Field(max_length=8)] = ""

    @field_validator("account")
    @classmethod
    def _known(cls, name: str) -> str:
        if name.startswith("nobody"):
            raise ValueError("there is no such account")
        return name


class Either(BaseModel):
    n: int | str


class Parcel(BaseModel):
    tags: list[str] = []
    place: str = Field("", alias="region")


Register = Callable[..., SparkSession]


@pytest.fixture
def register(session: SparkSession, queue: SqlQueue, url: str) -> Register:
    """Makes the format known with models, and returns the session."""

    def registered(payload: Any) -> SparkSession:
        register_source(session, url, queue.database.schema, payload=payload)
        return session

    return registered


def test_what_fits_is_stored_as_an_enqueue_stores_it(queue: SqlQueue, register: Register) -> None:
    spark = register({"work": Order})
    price = "12345678901234567.0000000000000001"
    text = f'{{"accountName": "a", "day": "2013-01-02", "price": "{price}", "lines": [{{"pieces": 1}}], "more": 1}}'
    write(spark.createDataFrame([(text,)], "payload string"))
    write(spark.sql("SELECT 'b' AS accountName, DATE '2013-01-02' AS day, 1.50BD AS price"), payloadColumns="*")
    write(spark.sql("SELECT named_struct('accountName', 'c', 'day', DATE '2013-01-02') AS payload"))
    rest = {"lines": [], "secret": ""}
    assert payloads(queue) == [
        {"accountName": "a", "day": "2013-01-02", "price": price, **rest, "lines": [{"pieces": 1}]},
        {"accountName": "b", "day": "2013-01-02", "price": "1.50", **rest},
        {"accountName": "c", "day": "2013-01-02", "price": "1", **rest},
    ]
    queue.create_queue(QueueSpec("beside", Order))
    queue.enqueue(QueueSpec("beside", Order), Order(accountName="c", day=date(2013, 1, 2)))
    ((alike,),) = rows(queue, "SELECT payload FROM {s}.job WHERE queue = 'beside'")
    assert alike == {"accountName": "c", "day": "2013-01-02", "price": "1", **rest}


@pytest.mark.parametrize(
    ("query", "message"),
    few(
        [
            (
                f"SELECT '{JOB}' AS id, '{{\"accountName\": \"a\", \"day\": \"soon\"}}' AS payload",
                r"partition 0, row 0: the payload does not fit Order of queue 'work': day: .*date.* \(job " + JOB + r"\);"
                " nothing was enqueued",
            ),
            (
                "SELECT named_struct('accountName', 'a', 'day', DATE '2013-01-02', 'lines',"
                " array(named_struct('pieces', 1), named_struct('pieces', 0))) AS payload",
                r"row 0: the payload does not fit Order of queue 'work': lines\.1\.pieces: Input should be greater than 0",
            ),
            ("SELECT 'a' AS accountName, 1 AS price", "day: Field required"),
            (
                "SELECT 'nobody' AS accountName, DATE '2013-01-02' AS day",
                "accountName: Value error, there is no such account",
            ),
            (
                "SELECT CAST(NULL AS string) AS accountName, DATE '2013-01-02' AS day",
                "accountName: Input should be a valid str",
            ),
            ("SELECT '[]' AS payload", "partition 0, row 0: the payload is not a JSON object"),
        ],
        2,
    ),
)  # fmt: skip
def test_what_does_not_fit_is_named_and_nothing_is_enqueued(
    queue: SqlQueue, register: Register, query: str, message: str
) -> None:
    frame = register({"work": Order}).sql(query)
    with pytest.raises(PySparkException, match=message):
        write(frame, **({} if "payload" in frame.columns else {"payloadColumns": "*"}))
    assert payloads(queue) == []
    nothing_is_left(queue)


@pytest.mark.prove
def test_one_row_that_does_not_fit_keeps_all_partitions_out(queue: SqlQueue, register: Register) -> None:
    spark = register(Work)
    frame = spark.range(0, 3_000, 1, 3).selectExpr("if(id = 2500, NULL, id) AS n")
    with pytest.raises(PySparkException, match=r"partition 2, row 500: the payload does not fit Work .*: n: "):
        write(frame, payloadColumns="n")

    def swept() -> bool:
        # Spark gives a write up while tasks of other partitions may still be staging: what they leave goes after a day.
        rows(queue, "UPDATE {s}.staged_attempt SET staged_at = now() - interval '25 hours'")
        queue.maintain()
        return rows(queue, "SELECT 1 FROM {s}.staged_job UNION ALL SELECT 1 FROM {s}.staged_attempt") == []

    until(swept, "nothing staged")
    assert payloads(queue) == []
    write(frame.where("n IS NOT NULL"), payloadColumns="n")
    assert sorted(payload["n"] for payload in payloads(queue)) == [n for n in range(3_000) if n != 2500]


def test_a_sensitive_value_is_not_quoted(queue: SqlQueue, register: Register) -> None:
    frame = register(Order).sql("SELECT 'a' AS accountName, DATE '2013-01-02' AS day, 'correct horse' AS secret")
    with pytest.raises(PySparkException, match=r"secret: is not usable \(sensitive, so not quoted\)") as caught:
        write(frame, payloadColumns="*")
    assert "correct horse" not in str(caught.value)


@pytest.mark.prove
def test_each_queue_has_its_own_model(queue: SqlQueue, register: Register) -> None:
    queue.create_queue(QueueSpec("free", Work))
    spark = register({"work": Work})
    frame = spark.sql("SELECT 'x' AS n")
    with pytest.raises(PySparkException, match="does not fit Work of queue 'work': n: "):
        write(frame, payloadColumns="*")
    write(frame, payloadColumns="*", queue="free")
    assert payloads(queue) == [{"n": "x"}]


def test_payloads_get_the_version_of_their_model(queue: SqlQueue, register: Register) -> None:
    # It travels by value, as every model of a script or a notebook does.
    email = create_model("Email", __module__="__main__", to=(list[str], ...))
    spark = register(versioned(3, {2: lambda old: {"to": [old["address"]]}})(email))
    write(spark.sql("SELECT array('now') AS to"), payloadColumns="*")
    write(spark.sql("""SELECT '{"$version": 2, "address": "then"}' AS payload"""))
    assert payloads(queue) == [{"$version": 3, "to": ["now"]}, {"$version": 3, "to": ["then"]}]
    with pytest.raises(PySparkException, match="row 0: the payload has version 4, this process knows versions 2 to 3"):
        write(spark.sql("""SELECT '{"$version": 4, "to": []}' AS payload"""))
    assert len(payloads(queue)) == 2


@pytest.mark.prove
def test_a_model_without_columns_is_written_and_a_read_says_so(queue: SqlQueue, register: Register) -> None:
    spark = register({"work": Either})
    write(spark.sql("SELECT 1 AS n"), payloadColumns="n")
    with pytest.raises(PySparkException, match=r"does not fit Either .*: n\.int: .*; n\.str: "):
        write(spark.sql("SELECT array(1) AS n"), payloadColumns="n")
    reader = spark.read.format(FORMAT).options(queue="work", state="live")
    with pytest.raises(PySparkException, match=r"Either\.n is int \| str, which no one type of column holds"):
        reader.load()
    assert [row.n for row in reader.option("payload", "n string").load().collect()] == ["1"]


def test_a_model_of_a_function_is_read_by_and_a_write_says_that_it_cannot_travel(
    queue: SqlQueue, register: Register
) -> None:
    class Local(BaseModel):
        n: int

    spark = register(Local)
    assert spark.read.format(FORMAT).options(queue="work", state="live").load().select("n").collect() == []
    with pytest.raises(PySparkException, match=r"Local cannot be pickled for Spark's tasks .*: define it in a module"):
        write(spark.sql("SELECT 1 AS n"), payloadColumns="n")


def test_a_model_that_is_not_where_spark_runs_is_named(
    queue: SqlQueue, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ModuleType("known_to_this_process_only")
    monkeypatch.setitem(sys.modules, here.__name__, here)
    hidden = create_model("Hidden", __module__=here.__name__, n=(int, ...))
    monkeypatch.setattr(here, "Hidden", hidden, raising=False)
    spark = register(hidden)
    assert spark.read.format(FORMAT).options(queue="work", state="live").load().select("n").collect() == []
    with pytest.raises(
        PySparkException, match=r"model Hidden cannot be loaded where Spark runs \(ModuleNotFoundError: .*"
    ):
        write(spark.sql("SELECT 1 AS n"), payloadColumns="n")
    assert payloads(queue) == []


@pytest.mark.prove
def test_a_stream_ends_at_what_does_not_fit_and_goes_on_without_it(
    queue: SqlQueue, register: Register, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    spark = register({"work": Work})
    stream = spark.readStream.schema("n int, note string").json(str(landing))

    def run(condition: str) -> None:
        writer = stream.where(condition).writeStream.format(FORMAT)
        writer = writer.options(queue="work", payloadColumns="*", checkpointLocation=str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    (landing / "0.json").write_text('{"n": 0, "note": "fits"}\n')
    run("true")
    (landing / "1.json").write_text('{"n": 1, "note": "fits"}\n{"n": 2}\n')
    with pytest.raises(StreamingQueryException, match=r"row 1: the payload does not fit Work of queue 'work': note: "):
        run("true")
    assert [payload["n"] for payload in payloads(queue)] == [0]
    nothing_is_left(queue)
    run("note IS NOT NULL")
    assert payloads(queue) == [{"n": n, "note": "fits"} for n in range(2)]
    nothing_is_left(queue)


@pytest.mark.parametrize("column", few(["array('x') AS tags", "'a' AS region"], 1))
def test_a_column_that_may_be_a_field_or_a_setting_is_asked_for(
    queue: SqlQueue, register: Register, column: str
) -> None:
    name = column.split()[-1]
    frame = register({"work": Parcel}).sql(f"SELECT {column}, 5 AS n")
    with pytest.raises(PySparkException, match=f"column '{name}' is a field of Parcel and a setting of the job"):
        write(frame, payloadColumns="*")
    assert payloads(queue) == []
    write(frame, payloadColumns=f"n, {name}")
    assert [payload[name] for payload in payloads(queue)] == [["x"] if name == "tags" else "a"]
