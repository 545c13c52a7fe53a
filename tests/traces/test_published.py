"""Trace context from publishing to the handlers of every subscription."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.topics import Message, Topics, TopicSpec
from dagster_sqlqueue.traces import TraceHooks, inject
from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, value
from tests.traces.support import Recorded, ids, parent, traced

ORDERS = TopicSpec("orders", Work)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def topics(queue: SqlQueue) -> Topics:
    """With two subscriptions to the topic `orders`, of the queues `work` and `mail`."""
    queue.create_queue(QueueSpec("mail", Work))
    topics = Topics(queue)
    topics.subscribe("orders", "worker", "work")
    topics.subscribe("orders", "mailer", "mail", filter=ClaimFilter(tags=["eu"]))
    return topics


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def drain(topics: Topics, recorded: Recorded) -> None:
    for queue in ("work", "mail"):
        Consumer(topics.queue, QueueSpec(queue, Work), lambda job: None, hooks=[recorded.hooks]).drain()


def test_a_trace_goes_from_the_publisher_s_process_to_the_handler_s(url: str, topics: Topics) -> None:
    def spans(end: str) -> list[dict[str, Any]]:
        words = [sys.executable, "-m", "tests.traces.processes", end, url, topics.database.schema]
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    publish, request = spans("publish")
    first, second = spans("consume")
    assert [span["name"] for span in (request, publish, first, second)] == [
        "request",
        "publish orders",
        "process work",
        "process work",
    ]
    assert publish["parent"] == request["ids"]
    assert first["parent"] == second["parent"] == publish["ids"]
    assert {span["ids"][0] for span in (publish, first, second)} == {request["ids"][0]}


def test_every_subscription_s_job_continues_the_trace(topics: Topics, recorded: Recorded) -> None:
    with recorded.provider.get_tracer("shop").start_as_current_span("request"):
        done = Topics(traced(topics.queue, recorded)).publish(ORDERS, Work(n=1), tags=["eu"], priority=3)
    assert len(done.jobs) == 2
    drain(topics, recorded)
    request, publish = recorded.one("request"), recorded.one("publish orders")
    assert parent(publish) == ids(request)
    for name in ("process work", "process mail"):
        assert parent(recorded.one(name)) == ids(publish)
    assert (publish.kind, publish.status.status_code) == (SpanKind.PRODUCER, StatusCode.UNSET)
    assert attributes(publish) == {
        "messaging.system": "sqlqueue",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": str(done.id),
        "sqlqueue.enqueued": 2,
    }


def test_many_carry_one_span_on(topics: Topics, recorded: Recorded) -> None:
    messages = [Work(n=1), {"n": 2}, Message(Work(n=3), tags=["eu"])]
    done = Topics(traced(topics.queue, recorded)).publish_many(ORDERS, (message for message in messages))
    assert (done.messages, done.inserted) == (3, 4)
    drain(topics, recorded)
    publish = recorded.one("publish orders")
    processed = recorded.spans("process work") + recorded.spans("process mail")
    assert [parent(span) for span in processed] == [ids(publish)] * 4
    assert attributes(publish)["messaging.batch.message_count"] == 3
    assert attributes(publish)["sqlqueue.enqueued"] == 4


def test_what_is_awaited_carries_it_too(url: str, topics: Topics, recorded: Recorded) -> None:
    sending = Topics(traced(topics.queue, recorded))

    async def messages() -> AsyncIterator[Any]:
        yield Message(Work(n=2))
        yield Work(n=3)

    async def put() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await sending.apublish(ORDERS, Work(n=1), connection=connection)
            await sending.apublish_many(ORDERS, messages(), connection=connection)

    asyncio.run(put())
    drain(topics, recorded)
    one, two = (ids(span) for span in recorded.spans("publish orders"))
    assert sorted(parent(span) or () for span in recorded.spans("process work")) == sorted([one, two, two])


def test_it_joins_the_caller_s_transaction(url: str, topics: Topics, recorded: Recorded) -> None:
    with psycopg.connect(url) as connection:
        Topics(traced(topics.queue, recorded)).publish(ORDERS, Work(n=1), connection=connection)
        connection.rollback()
    assert value(topics.queue, "SELECT count(*) FROM {s}.job") == 0


def test_spans_of_refusals_name_only_the_class(topics: Topics, recorded: Recorded) -> None:
    sending = Topics(traced(topics.queue, recorded))
    wrong: Any = {"n": "secret"}
    with pytest.raises(InvalidPayload):
        sending.publish(ORDERS, wrong)
    with pytest.raises(InvalidInput, match="a topic takes messages, and this is a NewJob"):
        sending.publish_many(ORDERS, [NewJob(Work(n=1))])
    with pytest.raises(InvalidInput, match="tags is"):
        sending.publish(ORDERS, Work(n=1), tags="eu")
    first, *_ = recorded.spans("publish orders")
    assert attributes(first)["error.type"] == "dagster_sqlqueue.errors.InvalidPayload"
    assert {span.status.status_code for span in recorded.spans()} == {StatusCode.ERROR}
    assert "secret" not in recorded.everything()


def test_inject_carries_a_context_with_a_message(topics: Topics, recorded: Recorded) -> None:
    with recorded.provider.get_tracer("shop").start_as_current_span("request") as span:
        message = inject(Message(Work(n=1), tags=("a",), ordering_key="k"))
        assert inject(message) is message
    assert isinstance(message, Message)
    topics.publish_many(ORDERS, [message])
    (job,) = claim(topics.queue)
    own = span.get_span_context()
    assert list(job.tags) == ["a", f"traceparent:00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"]
    assert job.ordering_key == "k"


def test_without_a_span_nothing_is_carried_and_a_full_message_goes_without(topics: Topics, recorded: Recorded) -> None:
    # Without an SDK the spans are none.
    Topics(SqlQueue(topics.database, hooks=[TraceHooks()])).publish(ORDERS, Work(n=1))
    full = [f"t{number}" for number in range(100)]
    Topics(traced(topics.queue, recorded)).publish(ORDERS, Work(n=2), tags=full)
    assert sorted(len(job.tags) for job in claim(topics.queue)) == [0, 100]
