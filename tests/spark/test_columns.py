"""Columns, in a read and in a consumption alike: what they may be called, their types, and fields that do not fit them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any

import pytest
from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    HttpUrl,
    IPvAnyAddress,
    Json,
    NaiveDatetime,
    PastDate,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import fields
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.gate.patience import sized
from tests.spark.daily_support import DAYS, EVENTS, READS, compute, expected, in_table, prepare
from tests.spark.daily_support import consume as consume_daily
from tests.spark.support import NOON, Done, archive
from tests.support import Work, rows

SHARES_A_SCHEMA = True


def typed(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema}


def test_the_payloads_field_of_a_name_in_the_option_columns_makes_room_for_it() -> None:
    given = {
        "queue": "work",
        "payload": "day string, n int",
        "columns": '{"Day": {"path": "payload.on", "type": "date"}}',
    }
    known = fields.columns(given)
    assert "day" not in known
    assert (known["Day"].kind, known["Day"].field, known["n"].kind) == ("date", "payload.on", "int")


@dataclass
class Place:
    city: str
    floor: int | None = None


class Visit(BaseModel):
    at: AwareDatetime
    left: AwareDatetime | None = None
    naive: NaiveDatetime
    past: PastDate
    page: HttpUrl
    address: IPvAnyAddress
    text: Json[Any]
    moment: Json[datetime]
    place: Place
    other: Place | None = None
    price: int | float
    steps: Iterable[int]


VISIT: dict[str, Any] = {
    "at": "2013-01-31T12:00:00+02:00",
    "naive": "2013-01-31T12:00:00",
    "past": "2013-01-31",
    "page": "https://example.org/a?b=c",
    "address": "10.0.0.1",
    "text": '{"a": 1}',
    "moment": '"2013-01-31T12:00:00Z"',
    "place": {"city": "Lima"},
    "price": 1.5,
    "steps": [1, 2],
}


def test_types_of_pydantics_are_read_as_they_were_put_in(session: SparkSession, queue: SqlQueue, url: str) -> None:
    visits = QueueSpec("visits", Visit)
    queue.create_queue(visits)
    queue.enqueue(visits, VISIT)
    register_source(session, url, queue.database.schema, payload={"visits": Visit})
    read = session.read.format(FORMAT).options(queue="visits", state="live").load()
    with consume(queue, session, visits, key="k") as work:
        for frame in (read, work.jobs()):
            assert {name: typed(frame)[name] for name in Visit.model_fields} == {
                **dict.fromkeys(Visit.model_fields, "string"),
                **dict.fromkeys(("at", "left", "naive"), "timestamp"),
                "past": "date",
                "price": "double",
            }
            seconds = [sf.unix_timestamp(name).alias(name) for name in ("at", "naive")]
            (row,) = frame.select(*seconds, "left", "past", "page", "address", "price", "other").collect()
            ten, noon = (int(datetime(2013, 1, 31, hour, tzinfo=UTC).timestamp()) for hour in (10, 12))
            assert tuple(row) == (ten, noon, None, date(2013, 1, 31), VISIT["page"], "10.0.0.1", 1.5, None)
            (texts,) = frame.select("text", "moment", "place", "steps").collect()
            assert [json.loads(text) for text in texts] == [
                {"a": 1}, "2013-01-31T12:00:00Z", {"city": "Lima", "floor": None}, [1, 2],
            ]  # fmt: skip


class Named(BaseModel):
    user: str = Field(alias="user-id")
    size: int = Field(alias="größe")
    dotted: int = Field(alias="a.b")
    number: int = Field(alias="ID")
    taken: int = Field(alias="payload_ID")
    state: str


NAMED = {"user-id": "anna", "größe": 3, "a.b": 4, "ID": 5, "payload_ID": 6, "state": "new"}


def test_whatever_the_fields_are_called_they_are_consumed(queue: SqlQueue, spark: SparkSession) -> None:
    people = QueueSpec("people", Named)
    queue.create_queue(people)
    queue.enqueue(people, NAMED)
    names = ["user-id", "größe", "a.b", "payload_payload_ID", "payload_ID", "state"]
    with consume(queue, spark, people, key="k") as work:
        jobs = work.jobs()
        assert jobs.columns == ["id", "attempt", "created_at", *names]
        (row,) = jobs.select("id", *(f"`{name}`" for name in names)).collect()
        assert tuple(row)[1:] == tuple(NAMED.values())
        (found,) = work.arrow().to_pylist()
        assert [found[name] for name in names] == list(NAMED.values())
        own = work.jobs({"state": {"path": "payload.state"}, "attempt_": {"path": "payload.ID.a"}})
        assert [tuple(row) for row in own.select("state", "attempt_").collect()] == [("new", None)]
        for columns, said in (
            ({"Attempt": {"path": "payload.a"}}, "'Attempt' has the name of a column that every job has"),
            ({"a": {"path": "payload.a"}, "A": {"path": "payload.b"}}, "columns has 'A' twice"),
        ):
            with pytest.raises(InvalidInput, match=said):
                work.jobs(columns)


@pytest.mark.parametrize(
    "field", [StructField("n", LongType(), False), StructField("started_at", TimestampType(), False)]
)
def test_a_column_that_a_job_may_lack_is_not_asked_for_as_not_nullable(
    queue: SqlQueue, reader: DataFrameReader, field: StructField
) -> None:
    archive(queue, [Done({"n": 1}), Done({})])
    schema = StructType([StructField("id", StringType()), field])
    with pytest.raises(PySparkException, match=rf"column '{field.name}' is asked for as not nullable.*leave NOT NULL"):
        reader.option("payload", "n bigint").schema(schema).load().collect()


def test_sealed_jobs_with_a_field_that_does_not_fit_are_read_all_the_same(queue: SqlQueue, spark: SparkSession) -> None:
    works = QueueSpec("works", Work, max_attempts=5)
    queue.create_queue(works)
    queue.enqueue_many(works, [{"n": n} for n in range(3)])
    rows(queue, "UPDATE {s}.job SET payload = payload || '{{\"n\": \"many\"}}' WHERE payload ->> 'n' = '2'")
    with consume(queue, spark, works, key="k") as work:
        jobs = work.jobs(on_bad_value="null")
        assert {row.n for row in jobs.collect()} == {0, 1, None}
        assert set(work.arrow(on_bad_value="null")["n"].to_pylist()) == {0, 1, None}
        with pytest.raises(InvalidInput, match=r"'payload.n' is 'many'.*set on_bad_value to null"):
            work.arrow()
        with pytest.raises(InvalidInput, match="'on_bad_value' is 'skip'; it is fail or null"):
            work.jobs(on_bad_value="skip")  # type: ignore[arg-type]
        assert work.fail(jobs.where("n IS NULL"), "no number") == 1
    assert rows(queue, "SELECT state, count(*) FROM {s}.job_archive WHERE queue = 'works' GROUP BY 1 ORDER BY 1") == [
        ("failed", 1),
        ("succeeded", 2),
    ]


class Sold(BaseModel):
    day: Annotated[date, PlainSerializer(lambda day: day.strftime("%d.%m.%Y"))]
    price: int

    @field_serializer("price")
    def _price(self, price: int) -> str:
        return f"{price} EUR"


class Envelope(Sold):
    @model_serializer(mode="wrap")
    def _wrapped(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"body": handler(self)}


def test_what_serializers_write_is_read_as_they_wrote_it(queue: SqlQueue) -> None:
    for name, model in (("sold", Sold), ("enveloped", Envelope)):
        spec = QueueSpec(name, model)
        queue.create_queue(spec)
        queue.enqueue(spec, model(day=date(2013, 4, 3), price=3))
    with consume(queue, None, QueueSpec("sold", Sold), key="k") as work:
        assert work.arrow().select(["day", "price"]).to_pylist() == [{"day": "03.04.2013", "price": "3 EUR"}]
    with consume(queue, None, QueueSpec("enveloped", Envelope), key="k") as work:
        with pytest.raises(InvalidInput, match="Envelope has a serializer of its own"):
            work.arrow()
        found = work.arrow({"day": {"path": "payload.body.day"}, "n": {"path": "payload.n"}})
        assert found.select(["day", "n"]).to_pylist() == [{"day": "03.04.2013", "n": None}]


@pytest.mark.prove
def test_an_archive_read_may_leave_types_out_and_take_what_does_not_fit_for_null(
    queue: SqlQueue, spark: SparkSession
) -> None:
    prepare(queue)
    # Not counted among the sizes, and its size is no number.
    archive(queue, [Done({**EVENTS[0], "size": "large"})])
    columns = {**READS.columns, "account": {"path": "payload.account"}}
    with pytest.raises(InvalidInput, match=r"'payload\.size' is 'large'"):
        consume_daily(queue, spark, None, DAYS[:1], read=ArchiveRead("work", columns))
    rows(queue, "UPDATE {s}.job SET run_at = now() WHERE queue = 'daily'")

    def fitting(events: DataFrame) -> DataFrame:
        return compute(events.where("size IS NOT NULL"))

    read = ArchiveRead("work", columns, on_bad_value="null")
    consume_daily(queue, spark, None, DAYS[:1], read=read, compute=fitting)
    assert in_table(queue) == expected(DAYS[:1])
    with pytest.raises(InvalidInput, match="'on_bad_value' is 'skip'; it is fail or null"):
        ArchiveRead("work", columns, on_bad_value="skip")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'Attempt' has the name of a column that every job has"):
        ArchiveRead("work", {**columns, "Attempt": {"path": "payload.attempt"}})


def test_a_limit_is_kept_before_filters_whether_they_are_pushed_or_not(
    session: SparkSession, queue: SqlQueue, url: str
) -> None:
    archive(queue, [Done({"n": n}, at=NOON.replace(minute=n)) for n in range(20)])
    found = []
    try:
        for pushing in sized([True], [False, True]):
            register_source(session, url, queue.database.schema, payload=Work, push_filters=pushing)
            reader = session.read.format(FORMAT).option("queue", "work").option("limit", 5)
            found += [reader.load().where(condition).count() for condition in ("n >= 10", "n >= 3")]
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == [0, 2] * sized(1, 2)


def test_a_day_that_is_no_date_fails_no_day_and_a_field_that_does_not_fit_fails_its_own(
    queue: SqlQueue, spark: SparkSession
) -> None:
    prepare(queue)
    archive(queue, [Done({**EVENTS[0], "day": "soon"}), Done({**EVENTS[0], "day": "soon"}, state="failed")])
    archive(queue, [Done({**EVENTS[0], "day": DAYS[1], "size": "large"}, state="failed")])
    ((job,),) = rows(queue, "SELECT CAST(id AS text) FROM {s}.job_archive WHERE payload ->> 'size' = 'large'")
    for day in (DAYS[0], DAYS[2]):
        consume_daily(queue, spark, None, [day])
    assert in_table(queue) == expected((DAYS[0], DAYS[2]))
    said = rf"job {job}: the field 'payload\.size' is 'large', and the column 'size' is bigint"
    with pytest.raises(InvalidInput, match=said):
        consume_daily(queue, spark, None, DAYS[1:2])
