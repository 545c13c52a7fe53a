"""What a topic takes as a message, kept as it is, and what it refuses: then nothing is published."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, SchemaMissing
from dagster_sqlqueue.topics import Message, PublishedMany, Topics, TopicSpec
from tests.support import Work
from tests.topics.support import ORDERS, count, jobs, subscribed


class Invoice(BaseModel):
    total: float


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"n": "x"}, r"row 0: the payload does not fit Work of topic 'orders': n: "),
        ({}, "n: Field required"),
        (Invoice(total=1), "the payload is a Invoice; topic 'orders' takes Work"),
        ({"n": 1, "note": "\x00"}, "NUL"),
        ({"n": 1, "note": "\ud800"}, "surrogate"),
        ({"n": 1, "note": "x" * 1_000_001}, "the limit is 1,000,000"),
        (None, "does not fit Work"),
    ],
)
def test_a_payload_that_does_not_fit_the_topic_is_refused(
    topics: Topics, queue: SqlQueue, payload: Any, message: str
) -> None:
    subscribed(topics, "work")
    with pytest.raises(InvalidPayload, match=message):
        topics.publish(ORDERS, payload)
    many = [Work(n=n) for n in range(1_100)]
    with pytest.raises(InvalidPayload, match="row 1100: "):
        topics.publish_many(ORDERS, [*many, payload])
    assert count(queue) == 0
    done = topics.publish_many(ORDERS, [*many, payload, Work(n=1)], on_bad_row="skip")
    assert (done.messages, done.inserted) == (1_101, 1_101)
    assert [bad.row for bad in done.rejected] == [1_100]
    assert not done.rejected[0].error.startswith("row")


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ({"n": 1, "deep": {"x": [None, 1.5]}}, {"n": 1, "deep": {"x": [None, 1.5]}}),
        (Invoice(total=2), {"total": 2.0}),
        ({}, {}),
    ],
)
def test_a_topic_that_is_only_named_takes_any_object(
    topics: Topics, queue: SqlQueue, payload: Any, stored: Any
) -> None:
    subscribed(topics, "work")
    topics.publish("orders", payload)
    assert jobs(queue, "payload") == [(stored,)]
    assert topics.publish_many("orders", [payload]).inserted == 1


@pytest.mark.parametrize("payload", [[1], "text", None, 7, {"a": float("nan")}, {"a": [float("inf")]}, {"a": object()}])
def test_a_topic_that_is_only_named_takes_nothing_else(topics: Topics, queue: SqlQueue, payload: Any) -> None:
    subscribed(topics, "work")
    with pytest.raises(InvalidPayload):
        topics.publish("orders", payload)
    assert count(queue) == 0


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"priority": 10}, "priority is 10"),
        ({"tags": "eu"}, "tags is 'eu'"),
        ({"tags": [""]}, "tags must be texts"),
        ({"tags": ["\x00"]}, "NUL"),
        ({"run_at": datetime(2030, 1, 1)}, "with a time zone"),
        ({"ordering_key": ""}, "ordering_key must be"),
        ({"id": "1"}, "it must be a uuid.UUID"),
    ],
)
def test_what_is_said_about_a_message_is_checked(
    topics: Topics, queue: SqlQueue, named: dict[str, Any], message: str
) -> None:
    subscribed(topics, "work")
    with pytest.raises(InvalidInput, match=message):
        topics.publish("orders", {}, **named)
    with pytest.raises(InvalidInput, match="row 1: "):
        topics.publish_many("orders", [{}, Message({}, **named)])
    assert count(queue) == 0


def test_other_mistakes(topics: Topics, queue: SqlQueue, url: str) -> None:
    wrong: Any = "perhaps"
    with pytest.raises(InvalidInput, match="on_bad_row is 'perhaps'; it must be 'raise' or 'skip'"):
        topics.publish_many("orders", [], on_bad_row=wrong)
    for topic in ("", "a b", "é", 7):
        with pytest.raises(InvalidInput, match=r"topic .* is not usable"):
            topics.publish(topic, {})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is not usable"):
        TopicSpec("1st", Work)
    with pytest.raises(InvalidInput, match="row 0: a topic takes messages, and this is a NewJob; give a Message"):
        topics.publish_many("orders", [NewJob({})])
    with SqlQueue(url, schema="nowhere") as nowhere, pytest.raises(SchemaMissing, match="sqlqueue migrate"):
        Topics(nowhere).publish("orders", {})
    assert topics.publish_many("orders", []) == PublishedMany(0, 0, 0, 0)


def test_one_that_fails_in_the_middle_publishes_nothing(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work")

    def broken() -> Iterator[Work]:
        yield from (Work(n=n) for n in range(1_250))
        raise RuntimeError("the source broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        topics.publish_many(ORDERS, broken())
    with pytest.raises(ZeroDivisionError):
        topics.publish_many(ORDERS, [Work(n=n) for n in range(600)], on_published=lambda done: 1 // 0)
    assert count(queue) == 0


def test_payloads_survive_as_they_are(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work", "mail")
    awkward = {"quote": "\"'\\", "braces": "{,}", "null": None, "e": "é🎈", "n": 10**30, "f": 1e-7}
    topics.publish("orders", awkward, tags=['a"b', "c,d", "{e}", "\\", " "])
    for text, tags in jobs(queue, "payload::text, tags"):
        assert json.loads(text) == awkward
        assert tags == ['a"b', "c,d", "{e}", "\\", " "]


def test_a_payload_of_another_model_is_refused_by_type_checkers_too(topics: Topics, queue: SqlQueue) -> None:
    class Other(BaseModel):
        name: str

    with pytest.raises(InvalidPayload, match="the payload is a Other"):
        topics.publish(ORDERS, Other(name="x"))  # type: ignore[misc]
    with pytest.raises(InvalidPayload, match="the payload is a Other"):
        topics.publish_many(ORDERS, [Message(Other(name="x"))])  # type: ignore[misc]
    topics.publish(ORDERS.name, Other(name="x"))
    assert count(queue) == 0
