"""Rows of a data frame as jobs: which columns they may have, and what becomes of their values, told without Spark."""

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    Base64Bytes,
    Base64Str,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    create_model,
    field_validator,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.spark import nested
from dagster_sqlqueue.spark.job_rows import JobRows
from dagster_sqlqueue.spark.payload_models import payload_models
from tests.support import rows

SHARES_A_SCHEMA = True

COLUMNS = StructType([StructField("region", StringType()), StructField("n", StringType())])


def rows_of(model: type[BaseModel]) -> JobRows:
    return JobRows("work", COLUMNS, "*", payload_models(model).of("work"))


def parcel(field: Any, name: str = "place", *, by_name: bool = False) -> type[BaseModel]:
    config = ConfigDict(validate_by_name=by_name, validate_by_alias=True)
    made: type[BaseModel] = create_model("Parcel", __config__=config, **{name: (str, field)})
    return made


@pytest.mark.parametrize(
    "model",
    [
        parcel(Field(""), "region"),
        parcel(Field("", alias="region")),
        parcel(Field("", validation_alias="region")),
        parcel(Field("", alias="other", validation_alias="region")),
        parcel(Field("", validation_alias=AliasChoices("other", "region"))),
        parcel(Field("", validation_alias=AliasPath("region", 0))),
        parcel(Field("", validation_alias=AliasChoices("other", AliasPath("region", "name")))),
        parcel(Field("", validation_alias="other"), "region", by_name=True),
    ],
)
def test_a_column_that_a_model_reads_and_that_is_a_setting_is_asked_for(model: type[BaseModel]) -> None:
    with pytest.raises(InvalidInput, match="column 'region' is a field of Parcel and a setting of the job"):
        rows_of(model)


@pytest.mark.parametrize(
    "model",
    [
        parcel(Field("")),
        parcel(Field("", serialization_alias="region")),
        parcel(Field("", alias="region", validation_alias="other")),
        parcel(Field("", validation_alias="other"), "region"),
    ],
)
def test_a_column_that_a_model_does_not_read_is_a_setting(model: type[BaseModel]) -> None:
    rows_of(model)


def stored(model: type[BaseModel] | None, row: dict[str, Any], schema: pa.Schema, columns: str | None = "*") -> str:
    """The payload of the job that a row becomes."""
    made = JobRows("work", from_arrow_schema(schema), columns, payload_models(model).of("work"))
    ((values, *_),) = made.jobs(pa.Table.from_pylist([row], schema).to_batches(), 0)
    return cast(str, values["payload"])


class Seen(BaseModel):
    at: datetime
    others: list[datetime]


@pytest.mark.parametrize("model", [None, Seen])
def test_a_moment_by_local_mean_time_has_an_offset_that_json_can_name(model: type[BaseModel] | None) -> None:
    moments = [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1850, 6, 1, 12, 0, 0, 250_000, UTC),
        datetime(2013, 7, 4, tzinfo=UTC),
    ]
    moment = pa.timestamp("us", "Africa/Monrovia")  # -00:43:08, until 1972 -00:44:30
    row = {"at": moments[0], "others": moments}
    payload = json.loads(stored(model, row, pa.schema({"at": moment, "others": pa.list_(moment)})))
    assert [datetime.fromisoformat(at) for at in payload["others"]] == moments
    assert payload["at"] == payload["others"][0] == f"0001-01-02T00:00:00{'+00:00' if model is None else 'Z'}"
    assert nested.parse(json.dumps(payload["others"]), "array<timestamp>", lenient=False) == moments


class Words(BaseModel):
    text: bytes
    words: list[bytes] = []


class Root(RootModel[bytes]):
    model_config = ConfigDict(val_json_bytes="hex", ser_json_bytes="hex")


@dataclass
class Beside:
    data: bytes


class Doc(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")

    data: bytes | None = Field(None, alias="content")
    parts: dict[str, Words] = {}
    root: Root = Root(b"")
    beside: Beside = Beside(b"")
    coded: Base64Bytes = b""
    name: Base64Str = ""
    plain: str = ""


def test_binary_arrives_as_the_bytes_that_it_is() -> None:
    binary = pa.binary()
    words = pa.struct([("text", binary), ("words", pa.list_(binary))])
    schema = pa.schema(
        {
            "content": binary, "parts": pa.map_(pa.string(), words), "root": binary, "coded": binary, "name": binary,
            "beside": pa.struct([("data", binary)]), "plain": binary, "more": binary,
        }
    )  # fmt: skip
    odd = b"\xff\xfe\xfb\x00"
    part = {"text": "é".encode(), "words": [b"a", b""]}
    row = {"content": odd, "parts": {"x": part}, "root": odd, "beside": {"data": odd}, "coded": odd}
    text = stored(Doc, {**row, "name": b"n", "plain": b"p", "more": None}, schema)
    found = Doc.model_validate_json(text)
    assert (found.data, found.root.root, found.beside.data, found.coded) == (odd, odd, odd, odd)
    assert found.parts["x"] == Words(text=part["text"], words=part["words"])
    assert (found.name, found.plain) == ("n", "cA==")


def test_binary_that_is_no_text_is_refused_where_a_model_reads_text() -> None:
    schema = pa.schema({"payload": pa.struct([("text", pa.binary()), ("words", pa.list_(pa.binary()))])})
    row = {"payload": {"text": b"t", "words": [b"w", b"\xff"]}}
    with pytest.raises(
        InvalidPayload, match=r"^partition 0, row 0: .*Words of queue 'work': words\.1 is binary that is not"
    ):
        stored(Words, row, schema, None)
    assert stored(None, row, schema, None) == '{"text":"dA==","words":["dw==","/w=="]}'


class Priced(BaseModel):
    n: str

    @field_validator("n")
    @classmethod
    def _known(cls, name: str) -> str:
        return {"1": "one"}[name]


def test_an_error_of_the_models_own_code_says_of_which_row() -> None:
    batch = pa.RecordBatch.from_pylist([{"region": "eu", "n": "1"}, {"region": "eu", "n": "2"}])
    with pytest.raises(KeyError, match="'2'") as raised:
        list(rows_of(Priced).jobs([batch], 3))
    assert raised.value.__notes__ == ["partition 3, row 1; nothing was enqueued"]


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


TEXT = StringType()


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (struct(interval=LongType(), variants=ArrayType(struct(variant=TEXT)), **{"map<": MapType(TEXT, TEXT)}), False),
        (MapType(TEXT, struct(interval_id=TEXT)), False),
        (struct(a=DayTimeIntervalType()), True),
        (struct(a=CalendarIntervalType()), True),
        (struct(a=ArrayType(VariantType())), True),
        (MapType(TEXT, YearMonthIntervalType()), True),
        (struct(a=MapType(LongType(), TEXT)), True),
    ],
)
def test_types_that_json_cannot_hold_are_refused_whatever_fields_are_called(kind: DataType, refused: bool) -> None:
    with pytest.raises(InvalidInput, match="which JSON cannot hold") if refused else nullcontext():
        JobRows("work", struct(payload=kind), None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()),
            r"cannot be read \(.*\): dates and timestamps lie within",
        ),
        (
            pa.array([0, 300_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC")),
            r"cannot be read \(.*\): dates and timestamps lie within the years 1 to 9999",
        ),
        (pa.array([b"", b"\xff"]).view(pa.string()), "holds text that is not UTF-8"),
    ],
)
def test_a_value_that_python_does_not_have_is_named_by_its_row(value: pa.Array, said: str) -> None:
    good = pa.array([0] * 2, pa.int32())
    batches = [pa.RecordBatch.from_arrays([good, column], ["n", "odd"]) for column in (value.take([0, 0]), value)]
    made = JobRows("work", from_arrow_schema(batches[0].schema), "*")
    with pytest.raises(
        InvalidInput, match=r"^partition 7, row 3: column 'odd' holds .*; nothing was enqueued$"
    ) as caught:
        list(made.jobs(batches, 7))
    assert re.search(said, str(caught.value))
    inside = pa.RecordBatch.from_arrays([pa.StructArray.from_arrays([good, value], ["n", "odd"])], ["payload"])
    with pytest.raises(InvalidInput, match=r"^partition 0, row 1: column 'payload' holds"):
        list(JobRows("work", from_arrow_schema(inside.schema), None).jobs([inside], 0))


def test_a_payload_of_text_keeps_the_digits_of_its_numbers() -> None:
    schema = pa.schema({"payload": pa.string()})
    text = ' {"n": 1234567890.12345678901234, "m": [0.10]}'
    assert stored(None, {"payload": text}, schema, None) == text
    long = f'{{"s": "{"x" * 990_000}", {" " * 20_000}"n": 0.5}}'
    assert stored(None, {"payload": long}, schema, None) == long.replace(" ", "")
    with pytest.raises(
        InvalidPayload, match=r"row 0: the payload has 1,010,0\d\d bytes, the limit is 1,000,000; shorten"
    ):
        stored(None, {"payload": long.replace("0.5", "0.1234567890123456789")}, schema, None)
    tiny = '{"n":[1e-20000,0.%s1],"s":"e1234"}' % ("0" * 20_000)
    assert stored(None, {"payload": tiny}, schema, None) == '{"n":[0.0,0.0],"s":"e1234"}'
    words = '{"s": "e1234", "n": 0.1234567890123456789}'
    assert stored(None, {"payload": words}, schema, None) == words
    for odd in ('{"n": NaN}', '{"n": 1e999}', '{"s": "\\u0000"}', '{"n": 1,}', "[1.5]"):
        with pytest.raises(InvalidPayload, match=r"^partition 0, row 0: the payload"):
            stored(None, {"payload": odd}, schema, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":-0.0,"b":1E+2,"c":-0,"d":0e9999}',
        f'{{"a":0.{"0" * 9_990}1e-999}}',
        f'{{"a":1.{"1" * 9_999}}}',
        f'{{"a":{"9" * 4_000}}}',
        '{"a":"\\ud83d\\ude00\\/\\b\x7f\u2028","a":2.5}',
        f'{{"a":{"[" * 150}1.5{"]" * 150}}}',
        ' \r\n\t{"":1.50}\n',
    ],
)
def test_the_database_takes_a_text_that_was_checked(queue: SqlQueue, text: str) -> None:
    kept = stored(None, {"payload": text}, pa.schema({"payload": pa.string()}), None)
    ((found,),) = rows(queue, "SELECT CAST(CAST(%s AS jsonb) AS text)", kept)
    assert json.loads(found, parse_float=Decimal) == json.loads(text, parse_float=Decimal)
