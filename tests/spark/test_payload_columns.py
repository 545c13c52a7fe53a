"""Typed columns: what a model's fields become, how schemas are read, and which texts can be cast, on each server."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional
from uuid import UUID

import psycopg
import pytest
from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FutureDate,
    HttpUrl,
    IPvAnyAddress,
    Json,
    NaiveDatetime,
    PastDate,
    PlainSerializer,
    RootModel,
    SerializerFunctionWrapHandler,
    StrictFloat,
    StrictInt,
    WrapSerializer,
    field_serializer,
    model_serializer,
)

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import kinds
from dagster_sqlqueue.spark.kinds import cast_or_null, parse_ddl
from dagster_sqlqueue.spark.payload_columns import payload_schema


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Inner(BaseModel):
    n: int


Account = NewType("Account", str)


class Everything(BaseModel):
    text: str
    account: Account
    whole: int
    real: float
    yes: bool
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)]
    amount: Decimal
    maybe_price: Annotated[Decimal, Field(max_digits=6, decimal_places=3)] | None = None
    day: date
    at: datetime
    clock: time
    key: UUID
    maybe: Optional[int] = None  # noqa: UP045 the older way to write it
    or_none: date | None = None
    colour: Colour
    level: Level
    kind: Literal["a", "b"]
    number: Literal[1, 2] | None = None
    inner: Inner
    several: list[int]
    by_name: dict[str, int]
    anything: Any = None
    from_: str = Field(alias="from")


def test_each_field_has_its_type() -> None:
    assert parse_ddl(payload_schema(Everything)) == {
        "text": "string",
        "account": "string",
        "whole": "bigint",
        "real": "double",
        "yes": "boolean",
        "price": "decimal(12,2)",
        "amount": "decimal(38,18)",
        "maybe_price": "decimal(6,3)",
        "day": "date",
        "at": "timestamp",
        "clock": "string",
        "key": "string",
        "maybe": "bigint",
        "or_none": "date",
        "colour": "string",
        "level": "bigint",
        "kind": "string",
        "number": "bigint",
        "inner": "struct<n:bigint>",
        "several": "array<bigint>",
        "by_name": "map<string,bigint>",
        "anything": "string",
        "from": "string",
    }


@dataclass
class Tree:
    n: int
    below: "Tree | None" = None


class ByItsJson(BaseModel):
    at: AwareDatetime
    maybe_at: AwareDatetime | None = None
    noted: Annotated[AwareDatetime, Field(description="when")] | None = None
    naive: NaiveDatetime
    past: PastDate
    future: FutureDate | None = None
    page: HttpUrl
    link: AnyUrl | None = None
    address: IPvAnyAddress
    text: Json[Any]
    moment: Json[datetime]
    maybe_text: Json[int] | None = None
    tree: Tree
    maybe_tree: Tree | None = None
    number: int | float
    strict: StrictInt | StrictFloat | None = None
    several: Iterable[int]
    either: HttpUrl | str
    impedance: complex


def test_a_type_of_pydantics_is_what_its_json_is() -> None:
    assert parse_ddl(payload_schema(ByItsJson)) == {
        "at": "timestamp",
        "maybe_at": "timestamp",
        "noted": "timestamp",
        "naive": "timestamp",
        "past": "date",
        "future": "date",
        "page": "string",
        "link": "string",
        "address": "string",
        "text": "string",
        "moment": "string",
        "maybe_text": "string",
        "tree": "string",
        "maybe_tree": "string",
        "number": "double",
        "strict": "double",
        "several": "string",
        "either": "string",
        "impedance": "string",
    }


class Mixed(BaseModel):
    n: int | str


class Thing:
    """Nothing that pydantic knows."""


class Odd(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: Thing


class Moments(BaseModel):
    at: date | datetime


class Words(RootModel[dict[str, str]]):
    pass


class Envelope(BaseModel):
    n: int

    @model_serializer(mode="wrap")
    def _wrapped(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"body": handler(self)}


German = Annotated[date, PlainSerializer(lambda day: day.strftime("%d.%m.%Y"))]


class Written(BaseModel):
    day: German
    or_none: German | None = None
    days: list[German] = []
    stamp: Annotated[datetime, PlainSerializer(lambda at: int(at.timestamp() * 1_000), return_type=int)]
    real: Annotated[date, WrapSerializer(lambda at, _: at.year, return_type=float), Field(description="a year")]
    price: int
    cents: Decimal
    late: bool = False
    unsaid: int = 1

    @field_serializer("price")
    def _price(self, price: int) -> str:
        return f"{price} EUR"

    @field_serializer("cents", "late", mode="wrap")
    def _whole(self, value: Any, _handler: Any, _info: Any) -> int:
        return int(value * 100)

    @field_serializer("unsaid")
    def _unsaid(self, n: int):  # type: ignore[no-untyped-def]
        return f"<{n}>"


def test_a_field_with_a_serializer_is_of_the_type_that_this_writes() -> None:
    assert parse_ddl(payload_schema(Written)) == {
        "day": "string",
        "or_none": "string",
        "days": "array<string>",
        "stamp": "bigint",
        "real": "double",
        "price": "string",
        "cents": "bigint",
        "late": "bigint",
        "unsaid": "string",
    }


class Epochs(BaseModel):
    model_config = ConfigDict(ser_json_temporal="seconds")

    at: datetime
    day: date | None = None
    aware: AwareDatetime
    several: list[datetime]
    past: dict[str, PastDate] = {}
    text: str
    inner: Inner


class Around(BaseModel):
    at: datetime
    epochs: Epochs


def test_dates_and_moments_that_a_model_writes_as_numbers_are_numbers() -> None:
    assert parse_ddl(payload_schema(Around)) == {
        "at": "timestamp",
        "epochs": "struct<at:double,day:double,aware:double,several:array<double>,past:map<string,double>,text:string,"
        "inner:struct<n:bigint>>",
    }


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Mixed, "Mixed.n is int | str, which no one type of column holds; name the columns instead, like: n string"),
        (Odd, "Odd.thing is Thing, which no one type of column holds"),
        (Moments, "Moments.at is datetime.date | datetime.datetime"),
        (Words, "Words has no fields of its own"),
        (BaseModel, "BaseModel has no fields of its own"),
        (dict, "the payload's model is <class 'dict'>; give a subclass of pydantic.BaseModel"),
        (None, "the payload's model is None; give a subclass"),
        (
            Envelope,
            "Envelope has a serializer of its own, and is stored with the fields that this writes; name the columns",
        ),
    ],
)
def test_what_has_no_one_type_is_named(model: type[BaseModel], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        payload_schema(model)
    assert said in str(caught.value)


def test_a_schema_is_read_as_spark_writes_it() -> None:
    given = "a STRING,`b c` Decimal(10, 2) ,c: long, `d``e` timestamp, e integer, f numeric(5)"
    assert parse_ddl(given) == {
        "a": "string",
        "b c": "decimal(10,2)",
        "c": "bigint",
        "d`e": "timestamp",
        "e": "int",
        "f": "decimal(5,0)",
    }
    assert parse_ddl(kinds.ddl(parse_ddl(given))) == parse_ddl(given)


def test_a_timestamp_is_written_as_one_with_a_zone() -> None:
    given = {"timestamp": "TIMESTAMP", "x": "map<string,array<struct<timestamp:timestamp,n:int>>>", "n": "long"}
    written = "`timestamp` timestamp_ltz, `x` map<string,array<struct<timestamp:timestamp_ltz,n:int>>>, `n` bigint"
    assert kinds.ddl(given) == written
    assert parse_ddl(written) == {**given, "timestamp": "timestamp", "n": "bigint"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "payload is not usable at ''"),
        ("a", "payload is not usable at 'a'"),
        ("a string,", "payload is not usable at ''"),
        ("a array<text>", "the type of 'a' is array<text>; types are string, smallint"),
        ("a struct<b int, c>, c int", "the type of 'a' is struct<b int, c>"),
        ("a string NOT NULL", "the type of 'a' is string NOT NULL"),
        ("a decimal(40,2)", "the type of 'a' is decimal(40,2)"),
        ("a decimal(4,5)", "the type of 'a' is decimal(4,5)"),
        ("a text", "the type of 'a' is text"),
        ("a int, A string", "payload names 'A' twice"),
    ],
)
def test_a_schema_that_cannot_be_read_is_named(given: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_ddl(given)
    assert said in str(caught.value)


@pytest.fixture(scope="module")
def asking(any_server: str) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        yield connection


NOON = datetime(2013, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "smallint",
            {"5": 5, "-32768": -32768, " 7 ": 7},
            ["32768", "", "x", "5.0", "1e3", "--1", "99999999999999999999999"],
        ),
        ("int", {"2147483647": 2**31 - 1}, ["2147483648", "9" * 500]),
        ("bigint", {"9223372036854775807": 2**63 - 1}, ["9223372036854775808", "true"]),
        ("float", {"0.5": 0.5, "1e10": 1e10}, ["1e39", "1e-60", "x"]),
        ("double", {"0.1": 0.1, "-1.5e300": -1.5e300, ".5": 0.5, "0": 0.0}, ["1e309", "1e-400", "", "1e", "abc", "1,5"]),
        ("boolean", {"true": True, "false": False, "YES": True}, ["maybe", "2", ""]),
        ("decimal(5,2)", {"123.45": Decimal("123.45"), "-999.99": Decimal("-999.99")}, ["1000", "999.995", "x", "NaN"]),
        ("date", {"2013-01-31": date(2013, 1, 31), "2012-02-29": date(2012, 2, 29)}, ["2013-02-30", "2013-13-01", ""]),
        (
            "timestamp",
            {
                "2013-01-31T12:00:00Z": NOON,
                "2013-01-31T07:00:00-05:00": NOON,
                "2013-01-31 12:00": NOON,
                "2013-01-31T12:00:00.000000+0000": NOON,
            },
            ["2013-01-32T12:00:00Z", "2013-02-30T12:00:00Z", "2013-01-31T25:00:00Z", "noonish", ""],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_cast_is_null(
    asking: "psycopg.Connection[Any]", kind: str, good: dict[str, Any], bad: list[str]
) -> None:
    # The server's own answer where it has one, and ours for servers that have none: both are right on each.
    for server in {asking.info.server_version, 150000}:
        query = (
            f"SELECT {cast_or_null('v', kind, server)} FROM unnest(%s::text[]) WITH ORDINALITY AS t (v, n) ORDER BY n"
        )
        found = [one for (one,) in asking.execute(query.encode().replace(b"%", b"%"), [[*good, *bad, None]])]
        assert found == [*good.values(), *[None] * len(bad), None], (server, bad)
