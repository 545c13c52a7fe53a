"""NaN and the infinities are no JSON: wherever they are in a payload or a result, they are refused and never become null."""

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Json, computed_field, field_serializer

from dagster_sqlqueue import Done, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.payload.serialization import AnyObject, payload_text, result_text
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.topics import Topics
from tests.support import Work, value
from tests.support.leased import publish, seal

NAN = math.nan


class Open(BaseModel):
    """Takes fields that it does not declare."""

    model_config = ConfigDict(extra="allow")
    n: int = 0
    anything: Any = None
    more: dict[str, Any] = {}


class Outer(BaseModel):
    inner: Open


class Queued(BaseModel):
    parts: deque[dict[str, Any]]


class Numbers(BaseModel):
    parts: Iterable[float]


class Texts(BaseModel):
    content: Json[Any]


@dataclasses.dataclass
class Point:
    x: float


REFUSED: dict[str, tuple[Callable[[], Any], type[BaseModel], str]] = {
    "undeclared": (lambda: {"x": NAN}, Open, "x is nan"),
    "undeclared, of an instance": (lambda: Open(x=NAN), Open, "x is nan"),  # type: ignore[call-arg]
    "undeclared, deep inside": (lambda: {"x": {"y": [1, NAN]}}, Open, r"x\.y\.1 is nan"),
    "undeclared, of a nested model": (lambda: {"inner": {"x": -math.inf}}, Outer, r"inner\.x is -inf"),
    "a model in something undeclared": (lambda: {"x": [Open(y=NAN)]}, Open, r"x\.0\.y is nan"),  # type: ignore[call-arg]
    "anything": (lambda: {"anything": math.inf}, Open, "anything is inf"),
    "anything, in a tuple": (lambda: {"anything": (1, NAN)}, Open, r"anything\.1 is nan"),
    "anything, in a set": (lambda: {"anything": {NAN}}, Open, r"anything\.0 is nan"),
    "anything, in a deque": (lambda: {"anything": deque([1, NAN])}, Open, r"anything\.1 is nan"),
    "a deque that is declared": (lambda: {"parts": deque([{"x": NAN}])}, Queued, r"parts\.0\.x is nan"),
    "a generator": (lambda: {"x": (n for n in [1, NAN])}, Open, "x is an iterator"),
    "a generator inside": (lambda: {"x": {"y": [map(float, ["1", "inf"])]}}, Open, r"x\.y\.0 is an iterator"),
    "declared to be iterable": (lambda: {"parts": (n for n in [1.0, NAN])}, Numbers, "parts is an iterator"),
    "keys that are one in JSON": (lambda: {"x": {1: NAN, "1": 5}}, Open, "x has the key '1' twice"),
    "anything, as a key": (lambda: {"anything": {NAN: 1}}, Open, "anything is nan"),
    "anything, in a dataclass": (lambda: {"anything": Point(NAN)}, Open, r"anything\.x is nan"),
    "a mapping": (lambda: {"more": {"y": NAN}}, Open, r"more\.y is nan"),
    "a mapping that is no dict": (lambda: MappingProxyType({"x": NAN}), Open, "x is nan"),
    "beside a null": (lambda: {"anything": None, "x": NAN}, Open, "x is nan"),
    "under a number as a key": (lambda: {"anything": {1: {2.5: NAN}}}, Open, r"anything\.1\.2\.5 is nan"),
    "a JSON text": (lambda: {"content": '{"x": [NaN]}'}, Texts, r"content\.x\.0 is nan"),
    "a JSON text, undeclared": (lambda: {"content": '{"x": -Infinity}'}, Texts, r"content\.x is -inf"),
    "any object": (lambda: {"x": {"y": NAN}}, AnyObject, "NaN, Infinity and numbers beyond the range of a double"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_by_its_place(queue: SqlQueue, case: str) -> None:
    make, model, said = REFUSED[case]
    spec = QueueSpec("work", model)
    with pytest.raises(InvalidPayload, match=f"row 0: .*{said}"):
        queue.enqueue(spec, make())
    with pytest.raises(InvalidPayload, match=f"row 0: .*{said}"):
        queue.enqueue_many(spec, [make()])
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_a_topic_refuses_it_too(queue: SqlQueue) -> None:
    with pytest.raises(InvalidPayload, match=r"row 0: .*NaN"):
        Topics(queue).publish("orders", {"x": NAN})


class Careful(BaseModel):
    """Says itself what becomes of a number that JSON lacks, and computes one that is not stored."""

    model_config = ConfigDict(extra="allow")
    x: float | None = None

    @field_serializer("x")
    def _written(self, x: float | None) -> float | None:
        return None if x is None or math.isnan(x) else x

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float:
        """No part of what is stored."""
        return NAN


TAKEN: list[tuple[Any, type[BaseModel], str]] = [
    ({"x": None, "y": [None]}, Open, '"x":null'),
    ({"x": "NaN null None", "y": "Infinity"}, Open, "NaN null None"),
    ({"x": (n for n in [1, 2])}, Open, '"x":[1,2]'),
    ({"x": Decimal("NaN")}, Open, '"x":"NaN"'),
    ({"x": {"None": 1, "NaN": None}}, Open, '"NaN":null'),
    ({"x": NAN}, Careful, '{"x":null}'),
    ({"x": 1e308, "y": -1e308, "z": 5e-324, "none": None}, Open, "308"),
    ({"content": '{"x": null}'}, Texts, "null"),
]


@pytest.mark.parametrize(("payload", "model", "written"), TAKEN, ids=range(len(TAKEN)))
def test_what_only_looks_like_it_is_taken(payload: Any, model: type[BaseModel], written: str) -> None:
    assert written in payload_text(QueueSpec("work", model), payload, 0)


@pytest.mark.parametrize(
    ("result", "said"),
    [(NAN, "it is nan"), ({"a": [1, math.inf]}, r"a\.1 is inf"), ({"a": {NAN: 1}}, "a is nan"), ((NAN,), "0 is nan")],
)
def test_of_a_result_as_well(result: Any, said: str) -> None:
    with pytest.raises(
        InvalidInput, match=f"the result cannot be written as JSON: {said}, a number that JSON does not"
    ):
        result_text(result)


def test_of_what_a_batch_gives_as_well(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(2)])
    batch = seal(queue)
    with pytest.raises(InvalidInput, match="the output cannot be written as JSON: at is nan"):
        publish(queue, batch, NAN)  # type: ignore[arg-type]
    (job,) = value(queue, "SELECT array_agg(id) FROM {s}.job WHERE payload ->> 'n' = '1'")
    with pytest.raises(InvalidInput, match="the result cannot be written as JSON: x is nan"):
        batches.report(queue, batch, [(job, Done({"x": NAN}))])
    publish(queue, batch)
