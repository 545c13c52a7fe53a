"""Lists and objects of the payload as columns: their types, their values beside those of Spark's `from_json`, and what does
not fit.
"""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest
from pydantic import BaseModel, Field, Json, PlainSerializer, model_serializer
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import conditions, fields, kinds, nested
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.payload_columns import payload_schema
from dagster_sqlqueue.spark.source import register_source
from dagster_sqlqueue.spark.spark_types import kind_of, spark_type
from tests.support import rows

SHARES_A_SCHEMA = True
NOON = datetime(2013, 1, 31, 12, tzinfo=UTC)


class Address(BaseModel):
    street: str
    zip_code: int | None = Field(default=None, alias="zip-code")


class Line(BaseModel):
    article: str
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)]
    days: list[date] = []


class Order(BaseModel):
    account: str
    tags: list[str]
    sizes: set[int] | None = None
    address: Address | None = None
    lines: list[Line]
    stock: dict[str, float] = {}
    seen: dict[str, list[datetime]] = {}
    marks: tuple[bool, ...] = ()


ORDERS = QueueSpec("orders", Order)
COLUMNS = {
    "account": "string",
    "tags": "array<string>",
    "sizes": "array<bigint>",
    "address": "struct<street:string,`zip-code`:bigint>",
    "lines": "array<struct<article:string,price:decimal(8,2),days:array<date>>>",
    "stock": "map<string,double>",
    "seen": "map<string,array<timestamp>>",
    "marks": "array<boolean>",
}
PAYLOADS: list[dict[str, Any]] = [
    {
        "account": "a",
        "tags": ["new", 'quo"ted', "ü\u2028", ""],
        "sizes": [3],
        "address": {"street": "O'Hare", "zip-code": 60666},
        "lines": [{"article": "x", "price": "1.50", "days": ["2013-01-31"]}, {"article": "y", "price": "-2"}],
        "stock": {"x": 0.1, "y z": -1e30},
        "seen": {"x": ["2013-01-31T12:00:00+02:00", "2013-01-31T12:00:00.123456Z"], "y": []},
        "marks": [True, False],
    },
    {"account": "b", "tags": [], "address": {"street": ""}, "lines": []},
]


WHERE = {"queue": "orders", "payload": "tags array<string>", "where": '[{"column": "tags", "op": "=", "value": "x"}]'}


def test_models_lists_and_dicts_have_types_of_their_own() -> None:
    assert kinds.parse_ddl(payload_schema(Order)) == COLUMNS


class Tree(BaseModel):
    n: int
    below: list["Tree"] = []


class Named(BaseModel):
    name: str

    @model_serializer
    def text(self) -> str:
        return self.name


class Odd(BaseModel):
    anything: list[Any]
    by_name: dict[str, Any]
    bare: list  # type: ignore[type-arg]
    pair: tuple[int, str]
    either: list[int | str]
    tree: Tree
    named: Named
    text: list[Json[Any]]
    joined: Annotated[list[int], PlainSerializer(lambda value: ",".join(map(str, value)))]
    one_of: Address | Line
    kinds: list[Literal["a", "b"]]


def test_what_has_no_one_type_is_the_string_of_its_json() -> None:
    found = kinds.parse_ddl(payload_schema(Odd))
    assert found.pop("tree") == "struct<n:bigint,below:array<string>>"
    assert (found.pop("kinds"), found.pop("text")) == ("array<string>", "array<string>")
    assert set(found.values()) == {"string"}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("ARRAY< string >", "array<string>"),
        ("struct<a INT, `b c`: array<decimal(10, 2)>>", "struct<a:int,`b c`:array<decimal(10,2)>>"),
        ("map<string,map<string,long>>", "map<string,map<string,bigint>>"),
        ("map<int,string>", None),
        ("array<text>", None),
        ("array<int", None),
        ("array<int>>", None),
        ("array<int,int>", None),
        ("struct<>", None),
        ("struct<a int, A int>", None),
        ("struct<a int NOT NULL>", None),
    ],
)  # fmt: skip
def test_a_nested_type_is_read_as_spark_writes_it(given: str, kind: str | None) -> None:
    assert kinds.kind(given) == kind
    if kind is not None:
        assert kinds.parse_ddl(kinds.ddl({"x": kind, "y": "int"})) == {"x": kind, "y": "int"}
        assert kind_of(spark_type(kind)) == kind


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", {"1.50": "1.50", '"x"': "x", "true": "true", '[1, {"a": null}]': '[1, {"a": null}]'}, []),
        ("smallint", {"5": 5, '" 7 "': 7}, ["32768", "5.0", "true", "[1]", '""', "1e3"]),
        ("bigint", {"9223372036854775807": 2**63 - 1}, ["9223372036854775808"]),
        ("float", {"0.5": 0.5, '"NaN"': None}, ["1e39"]),
        ("double", {"0.1": 0.1, '"-Infinity"': float("-inf"), "0": 0.0}, ["1e309", '"x"', "{}"]),
        ("boolean", {"true": True, '"off"': False, "1": True}, ["2", '"maybe"']),
        ("decimal(5,2)", {'"123.455"': Decimal("123.46"), "-999.99": Decimal("-999.99")}, ["1000", "999.995", '"NaN"']),
        ("date", {'"2012-02-29"': date(2012, 2, 29)}, ['"2013-02-29"', '"soon"', '"20130131"', "20130131"]),
        (
            "timestamp",
            {
                f'"2013-01-31{at}"': datetime(2013, 1, 31, 12, tzinfo=UTC)
                for at in ("T12:00:00Z", "T07:00-05", " 12:00 +00:00", "T11:59:59.9999996Z", "T12:00:00.000000499Z")
            },
            ['"2013-01-31T25:00:00Z"', '"noon"', '"9999-12-31T23:00:00-14:00"', '"9999-12-31T23:59:59.9999999Z"'],
        ),
    ],
)
def test_values_in_a_list_are_cast_as_columns_are(kind: str, good: dict[str, Any], bad: list[str]) -> None:
    for text, value in good.items():
        (found,) = nested.parse(f"[{text}]", f"array<{kind}>", lenient=False)
        assert found == value or (value is None and found != found)
    for text in bad:
        assert nested.parse(f"[{text}]", f"array<{kind}>", lenient=True) == [None]
        with pytest.raises(nested.Unfit, match=r"\[0\] is .*, which is not "):
            nested.parse(f"[{text}]", f"array<{kind}>", lenient=False)


def test_fractions_of_a_microsecond_are_rounded_as_the_database_rounds_them(queue: SqlQueue) -> None:
    texts = [
        f"2013-01-31T23:59:59{digits}+05:30" for digits in (".1234564", ".1234565", ".12345650", ".999999500", ".4")
    ]
    moments = rows(
        queue,
        "SELECT CAST(t AS timestamptz) FROM unnest(CAST(%s AS text[])) WITH ORDINALITY AS u (t, n) ORDER BY n",
        texts,
    )
    assert nested.parse(json.dumps(texts), "array<timestamp>", lenient=False) == [at for (at,) in moments]


@pytest.mark.parametrize("kind", ["array<string>", "array<array<bigint>>"])
def test_what_is_nested_too_deeply_does_not_fit(kind: str) -> None:
    text = "[" * 3_000 + "]" * 3_000
    assert nested.parse(text, kind, lenient=True) is None
    with pytest.raises(nested.Unfit, match=f"^it is nested too deeply for {kind}$"):
        nested.parse(text, kind, lenient=False)


def test_a_job_nested_too_deeply_is_named_or_null(queue: SqlQueue) -> None:
    prepare(queue)
    ((job,),) = rows(
        queue,
        "UPDATE {s}.job SET payload = payload || jsonb_build_object('tags', CAST(%s AS jsonb))"
        " WHERE payload->>'account' = 'a' RETURNING id",
        "[" * 3_000 + "]" * 3_000,
    )
    with consume(queue, None, ORDERS, key="k") as work:
        assert sorted(work.arrow(on_bad_value="null")["tags"].to_pylist(), key=str) == [None, []]
        with pytest.raises(InvalidInput, match=rf"job {job}: the field 'payload.tags' is '\[+…', .*nested too deeply"):
            work.arrow()


def reader(session: SparkSession, **options: str) -> DataFrameReader:
    return session.read.format(FORMAT).options(**{"queue": "orders", "state": "live", **options})


def prepare(queue: SqlQueue) -> None:
    queue.create_queue(ORDERS)
    for payload in PAYLOADS:
        queue.enqueue(ORDERS, payload)


def test_they_are_what_spark_makes_of_the_payload(session: SparkSession, queue: SqlQueue, url: str) -> None:
    prepare(queue)
    register_source(session, url, queue.database.schema, payload={"orders": Order})
    text = reader(session, payload="account string").schema("payload string").load()
    schema = payload_schema(Order)
    expected = text.select(sf.from_json("payload", schema).alias("p")).select("p.*").orderBy("account")
    (first, second) = expected.collect()
    assert (first["lines"][1]["price"], second["address"]["zip-code"]) == (Decimal("-2.00"), None)
    paths = json.dumps({name: {"path": f"payload.{name}", "type": kind} for name, kind in COLUMNS.items()})
    with consume(queue, session, ORDERS, key="k") as work:
        frames = [
            work.jobs(),
            reader(session, state="batch", batch_id=str(work.batch.id)).load(),
            reader(session, payload=schema.replace("bigint", "LONG")).load(),
            reader(session, payload="account string", columns=paths).load(),
        ]
        for frame in frames:
            found = frame.select(*COLUMNS)
            assert {one.name: kind_of(one.dataType) for one in found.schema} == COLUMNS
            assert found.orderBy("account").collect() == [first, second]
        # The whole payload, as the job's model has it, beside one part that Spark takes by itself.
        (street,) = frames[0].where("array_contains(tags, 'new')").select("address.street").collect()
        assert street[0] == "O'Hare"
        table = work.arrow()
        assert pa.types.is_map(table.schema.field("stock").type)
        assert sorted(table["tags"].to_pylist()) == [[], PAYLOADS[0]["tags"]]
    deep = reader(session, state="archive", columns='{"zip": {"path": "payload.address.zip-code", "type": "int"}}')
    assert sorted(row[0] or 0 for row in deep.schema("zip int").load().collect()) == [0, 60666]


def test_what_does_not_fit_is_named_or_null(session: SparkSession, queue: SqlQueue, url: str) -> None:
    prepare(queue)
    odd = {"lines": [{"article": 5, "price": "1.50"}, {"article": "y", "price": "much"}], "tags": "new", "stock": None}
    ((job,),) = rows(
        queue,
        "UPDATE {s}.job SET payload = payload || CAST(%s AS jsonb) WHERE payload->>'account' = 'a' RETURNING id",
        json.dumps(odd),
    )
    register_source(session, url, queue.database.schema, payload={"orders": Order})
    for column, said in (
        ("lines", r"\[1\].price is \"much\", which is not decimal\(8,2\)"),
        ("tags", 'it is "new", which is not array<string>'),
    ):
        kind = COLUMNS[column]
        with pytest.raises(Exception, match=rf"job {job}: the field 'payload.{column}' is .*: {said}; mend or redrive"):
            reader(session).schema(f"{column} {kind}").load().collect()
    lenient = reader(session, on_bad_value="null").load().orderBy("account").select("lines", "tags", "stock")
    ((lines, tags, stock), _) = lenient.collect()
    assert [(line["article"], line["price"]) for line in lines] == [("5", Decimal("1.50")), ("y", None)]
    assert (tags, stock) == (None, None)
    (row,) = reader(session).schema("account string, stock map<string,double>").load().where("account = 'a'").collect()
    assert row["stock"] is None
    with pytest.raises(
        InvalidInput, match="where 'tags': the column is array<string>; conditions compare single values"
    ):
        conditions.tests(WHERE, fields.columns(WHERE))
    with pytest.raises(Exception, match="column 'tags' is array<string>, not array<int>"):
        reader(session).schema("tags array<int>").load().collect()


def test_filters_of_spark_on_them_are_its_own(session: SparkSession, queue: SqlQueue, url: str) -> None:
    prepare(queue)
    register_source(session, url, queue.database.schema, payload={"orders": Order}, push_filters=True)
    try:
        read = reader(session).load()
        found = read.where(
            "account = 'a' AND address.street = \"O'Hare\" AND tags = array('new', 'quo\"ted', 'ü\u2028', '')"
        )
        assert found.count() == 1
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")
        register_source(session, url, queue.database.schema)
