"""What a read returns: live jobs, typed payloads, ranges, and what its filters leave."""

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.functions import spark_partition_id
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import payload_schema, register_source
from tests.spark.support import NOON, Done, archive, listed
from tests.support import Work, claim, rows
from tests.support.few import few

SHARES_A_SCHEMA = True


class Inner(BaseModel):
    n: int


class Order(BaseModel):
    account: str
    amount: Decimal
    pieces: int
    weight: float
    paid: bool
    day: date
    at: datetime
    key: UUID
    note: str | None = None
    inner: Inner
    lines: list[int]
    state: str


ORDER = Order(
    account="ünï'cødé \\ \" 🛫",
    amount=Decimal("12345678901234567890.5"),
    pieces=2**40,
    weight=0.1,
    paid=True,
    day=date(2013, 1, 31),
    at=datetime(2013, 1, 31, 23, 30, tzinfo=UTC),
    key=UUID(int=7),
    inner=Inner(n=3),
    lines=[1, 2],
    state="new",
)


def test_a_models_fields_come_as_columns_of_their_types(session: SparkSession, queue: SqlQueue, url: str) -> None:
    orders = QueueSpec("orders", Order)
    queue.create_queue(orders)
    queue.enqueue(orders, ORDER)
    ((stored,),) = rows(queue, "SELECT payload FROM {s}.job WHERE queue = 'orders'")
    archive(queue, [Done(stored)], "orders")
    register_source(session, url, queue.database.schema, payload={"orders": Order})
    reader = session.read.format(FORMAT).option("queue", "orders").option("payload_prefix", "p_")
    for frame in (reader.load(), reader.option("state", "live").load()):
        assert "payload" not in frame.columns
        (row,) = frame.select(
            "p_account", "p_amount", "p_pieces", "p_weight", "p_paid", "p_day", "p_at", "p_key", "p_note", "p_inner",
            "p_lines", "p_state",
        ).collect()  # fmt: skip
        at = ORDER.at.astimezone().replace(tzinfo=None)
        assert tuple(row)[:9] == (
            ORDER.account, ORDER.amount, ORDER.pieces, 0.1, True, ORDER.day, at, str(ORDER.key), None
        )  # fmt: skip
        assert (row.p_inner.asDict(), row.p_lines, row.p_state) == ({"n": 3}, [1, 2], "new")
    with pytest.raises(PySparkException, match="the field 'state' of the payload has the name of a column"):
        session.read.format(FORMAT).option("queue", "orders").load()
    other = session.read.format(FORMAT).option("queue", "work")
    assert "payload" in other.load().columns


@pytest.mark.prove
def test_the_option_wins_over_the_registered_model(session: SparkSession, queue: SqlQueue, url: str) -> None:
    archive(queue, [Done({"n": 1, "note": "x"})])
    register_source(session, url, queue.database.schema, payload=Work)
    reader = session.read.format(FORMAT).option("queue", "work")
    assert [(row.n, row.note) for row in reader.load().collect()] == [(1, "x")]
    assert listed(reader.option("payload", "n decimal(5,1)").schema("n decimal(5,1)").load()) == [(Decimal("1.0"),)]


def test_an_error_says_of_the_value_it_names_why_that_is_none(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": "heavy", "tags": []})])
    archive(queue, [Done({"n": 1, "at": "soon", "tags": ["x"]})])
    # The read stumbles over one of the jobs, and the first bad column is another's.
    frame = reader.option("payload", "n int, at timestamp, tags array<int>").load()
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert "the field 'payload.at' is 'soon', and the column 'at' is timestamp: invalid input syntax for type" in str(
        caught.value
    )
    assert "heavy" not in str(caught.value)


def test_a_field_that_does_not_fit_names_its_job_or_is_null(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": n, "at": "2013-01-31"}) for n in range(20)])
    archive(queue, [Done({"n": "many", "at": "infinity"}), Done({"n": 10**9, "at": "2013-02-30"})])
    ((job,),) = rows(queue, "SELECT CAST(id AS text) FROM {s}.job_archive WHERE payload ->> 'n' = 'many'")
    reader = reader.option("payload", "n int, at timestamp")
    with pytest.raises(PySparkException) as caught:
        reader.schema("n int").load().collect()
    assert f"InvalidInput: job {job}: the field 'payload.n' is 'many', and the column 'n' is int" in str(caught.value)
    lenient = reader.option("on_bad_value", "null")
    found = listed(lenient.schema("n int, at timestamp").load())
    assert Counter(n for n, _ in found) == Counter([*range(20), None, 10**9])
    assert Counter(at is None for _, at in found) == {True: 2, False: 20}
    # A condition on such a field is not fulfilled, and does not fail either.
    where = reader.option("where", '[{"column": "n", "op": ">=", "value": 18}]').schema("id string")
    assert where.option("on_bad_value", "null").load().count() == 3
    # Nor where such a field fails the read: who asks for other jobs has nothing to do with this one.
    assert where.option("on_bad_value", "fail").schema("n int").load().count() == 3


def test_live_jobs_are_read_by_state_bucket_and_age(
    queue: SqlQueue, spec: QueueSpec[Work], reader: DataFrameReader
) -> None:
    queue.enqueue_many(spec, [{"n": n} for n in range(200)])
    claim(queue, 30)
    taken = {n for (n,) in rows(queue, "SELECT (payload ->> 'n')::integer FROM {s}.job WHERE state = 'running'")}
    live = (
        reader.option("state", "live").option("payload", "n int").schema("n int, state string, finished_at timestamp")
    )
    assert listed(live.load().select("n", "state", "finished_at")) == sorted(
        ((n, "running" if n in taken else "queued", None) for n in range(200)), key=repr
    )
    assert {n for (n,) in listed(live.option("states", "running").load().select("n"))} == taken
    live = live.option("states", "queued,running,held")
    by_bucket = dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket"))
    assert live.option("buckets", "0,2-3").load().count() == by_bucket[0] + by_bucket[2] + by_bucket[3]
    live = live.option("buckets", "0-1023")
    rows(queue, "UPDATE {s}.job SET created_at = '2013-01-01' WHERE CAST(payload ->> 'n' AS integer) < 5")
    assert live.option("created_until", "2013-01-02T00:00Z").load().count() == 5
    assert live.option("created_from", "2012-01-02T00:00Z").load().count() == 5
    # More slices than one: each bucket's jobs are in one of them, and all in the same snapshot.
    parts = live.option("created_until", "9999-01-01T00:00Z").option("target_rows", "1").load()
    read = [tuple(row) for row in parts.select("n", spark_partition_id()).collect()]
    assert sorted(n for n, _ in read) == list(range(200))
    assert len({part for _, part in read}) == len(by_bucket)


def test_an_empty_range_and_an_empty_queue_are_empty_frames(queue: SqlQueue, reader: DataFrameReader) -> None:
    assert reader.option("state", "live").load().count() == 0
    archive(queue, [Done()])
    none = reader.option("state", "archive").option("finished_from", "2020-01-01T00:00Z").load()
    assert none.groupBy("state").count().collect() == []
    assert none.rdd.getNumPartitions() == 1


@pytest.mark.prove
def test_the_database_is_named_by_an_option(session: SparkSession, queue: SqlQueue, url: str) -> None:
    archive(queue, [Done()])
    register_source(session)
    reader = session.read.format(FORMAT).options(queue="work", database_schema=queue.database.schema)
    with pytest.raises(PySparkException, match="was registered without a URL"):
        reader.load()
    with pytest.raises(PySparkException, match="names 'NOT_SET_ANYWHERE', which is not set"):
        reader.option("url_env", "NOT_SET_ANYWHERE").load()
    secret = make_url(url).set(password="hunter2").render_as_string(hide_password=False)
    plain = session.read.format(FORMAT).options(queue="work", database_schema=queue.database.schema)
    with pytest.raises(PySparkException, match="the option 'url' holds a password") as caught:
        plain.option("url", secret).load()
    assert "hunter2" not in str(caught.value)
    assert plain.option("url", url).load().count() == 1
    with pytest.raises(PySparkException, match="'url' and 'url_env' are both given"):
        plain.option("url_env", "X").load()


def test_filters_are_pushed_where_that_is_asked_for(session: SparkSession, queue: SqlQueue, url: str) -> None:
    archive(queue, [Done({"n": n, "note": f"note {n}"}, at=NOON + timedelta(hours=n)) for n in range(48)])
    archive(queue, [Done({"n": "many", "note": "bad"}, at=NOON + timedelta(days=9))])
    register_source(session, url, queue.database.schema, payload=Work, push_filters=True)
    try:

        def found(condition: Any) -> list[int]:
            frame = session.read.format(FORMAT).option("queue", "work").load().filter(condition)
            return sorted(row.n for row in frame.select("n").collect())

        # Each of these would meet the field that is no number, were the filter not the database's.
        early = sf.col("finished_at") < sf.lit(NOON + timedelta(days=3))
        assert found(early & (sf.col("n") >= 46)) == [46, 47]
        assert found(early & sf.col("n").isin(1, 2, 99)) == [1, 2]
        assert found(early & (sf.col("note") == "note 5")) == [5]
        assert found(early & (sf.col("note") > "note 8") & (sf.col("n") < 10)) == [9]
        assert found((sf.to_date("finished_at") == date(2013, 1, 2)) & (sf.col("state") == "succeeded")) != []
        assert found(early & ((sf.col("n") == 1) | sf.col("note").endswith(" 7"))) == [1, 7]
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


NUMBERS_SQL = """
    SELECT CAST(payload ->> 'n' AS bigint), payload ->> 'note' FROM {s}.job_archive WHERE queue = 'work' AND
"""


@pytest.mark.prove
def test_filters_that_follow_one_another_on_one_frame_give_what_sql_gives(
    session: SparkSession, queue: SqlQueue, url: str
) -> None:
    archive(queue, [Done({"n": n, "note": f"note {n % 5}"}, at=NOON + timedelta(hours=n)) for n in range(48)])
    register_source(session, url, queue.database.schema, payload=Work, push_filters=True)
    try:
        frame = session.read.format(FORMAT).option("queue", "work").load()
        first, second = sf.col("n") >= 10, sf.col("note") == "note 3"

        def found(filtered: DataFrame) -> list[tuple[int, str]]:
            return sorted((row.n, row.note) for row in filtered.select("n", "note").collect())

        def in_sql(condition: str) -> list[tuple[Any, ...]]:
            return sorted(rows(queue, NUMBERS_SQL + condition))

        both = in_sql("CAST(payload ->> 'n' AS bigint) >= 10 AND payload ->> 'note' = 'note 3'")
        assert len(both) == 7
        assert found(frame.filter(first).filter(second)) == both
        assert found(frame.filter(second).filter(first)) == both
        # A second query of a frame, with another filter. (One without any keeps the first one's in Spark 4.3.)
        fresh = session.read.format(FORMAT).option("queue", "work").load()
        assert found(fresh.filter(first)) == in_sql("CAST(payload ->> 'n' AS bigint) >= 10")
        assert found(fresh.filter(second)) == in_sql("payload ->> 'note' = 'note 3'")
        one, other = (session.read.format(FORMAT).option("queue", "work").load() for _ in range(2))
        two = one.filter(first).alias("a").join(other.filter(second).alias("b"), "n").select("n", "a.note")
        assert found(two) == both
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.prove
@pytest.mark.parametrize(
    "asked", few(["state string, n long, note string, finished_at timestamp", "n long, state string"], 1)
)
def test_a_pushed_filter_beside_options_and_fewer_columns_gives_what_sql_gives(
    session: SparkSession, queue: SqlQueue, url: str, asked: str
) -> None:
    states = ("succeeded", "failed", "cancelled")
    archive(
        queue,
        [Done({"n": n, "note": f"note {n % 5}"}, at=NOON + timedelta(hours=n), state=states[n % 3]) for n in range(96)],
    )
    # A pushed filter and an option that exclude this one both: neither casts it.
    archive(queue, [Done({"n": "many", "note": "note 3"}, at=NOON + timedelta(days=9), state="failed")])
    register_source(session, url, queue.database.schema, payload=Work, push_filters=True)
    try:
        reader = session.read.format(FORMAT).schema(asked)
        where = json.dumps([{"column": "note", "op": "in", "value": ["note 1", "note 3"]}])
        options = {"queue": "work", "states": "failed,cancelled", "where": where, "target_rows": "10"}
        until = (NOON + timedelta(hours=70)).isoformat()
        frame = reader.options(**options, finished_until=until).load()
        assert frame.columns == [part.split()[0] for part in asked.split(", ")]
        condition = (sf.col("n") > 20) & sf.col("state").isin("failed", "succeeded")
        if "finished_at" in asked:
            condition &= sf.col("finished_at") >= sf.lit(NOON + timedelta(hours=30))
        begin = 30 if "finished_at" in asked else 0
        expected = rows(
            queue,
            "SELECT CAST(payload ->> 'n' AS bigint), state FROM {s}.job_archive WHERE queue = 'work'"
            " AND state IN ('failed', 'cancelled') AND payload ->> 'note' IN ('note 1', 'note 3')"
            " AND finished_at < %s AND finished_at >= %s AND state IN ('failed', 'succeeded')"
            " AND CAST(payload ->> 'n' AS bigint) > 20 ORDER BY 1",
            *(NOON + timedelta(hours=hours) for hours in (70, begin)),
        )
        assert len(expected) > 3
        filtered = frame.filter(condition)
        assert sorted((row.n, row.state) for row in filtered.collect()) == expected
        assert filtered.select("state").count() == len(expected)
        assert sorted(row.n for row in filtered.select("n").collect()) == [n for n, _ in expected]
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "said"),
    few(
        [
            ({"colums": "{}"}, "did you mean 'columns'?"),
            ({"finish_from": "2013-01-01T00:00Z"}, "did you mean 'finished_from'?"),
            ({"payload": "n number"}, "payload: the type of 'n' is number"),
            ({"on_bad_value": "skip"}, "the option 'on_bad_value' is 'skip'; it is fail or null"),
            ({"split": "time", "state": "live"}, "live jobs are split by bucket"),
            ({"buckets": "1,x"}, "the option 'buckets' holds 'x'; write it like: 0,3,8-15"),
            ({"buckets": "5-1"}, "the option 'buckets' holds '5-1'"),
            ({"buckets": "0-1024"}, "the option 'buckets' holds '0-1024'; the last bucket is 1023"),
            ({"limit": "0"}, "the option 'limit' is '0'; it is a whole number from 1"),
            ({"max_connections": "-1"}, "the option 'max_connections' is '-1'"),
            ({"state": "live", "states": "succeeded"}, "the option 'states' names 'succeeded'; live states are queued"),
            ({"state": "live", "finished_from": "2013-01-01T00:00Z"}, "'finished_from' is for state 'archive' only"),
            ({"batch_id": "x"}, "the option 'batch_id' is for state 'batch' only"),
            ({"database_schema": "a b"}, "schema 'a b' is not usable"),
        ],
        1,
    ),
)
def test_a_bad_option_is_refused_before_anything_is_read(
    reader: DataFrameReader, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        reader.options(**options).load()
    assert said in str(caught.value)


def test_a_models_schema_can_be_given_as_an_option(queue: SqlQueue, reader: DataFrameReader) -> None:
    archive(queue, [Done({"n": 4, "note": "x"})])
    frame = reader.option("payload", payload_schema(Work)).load()
    assert [(row.n, row.note) for row in frame.collect()] == [(4, "x")]
