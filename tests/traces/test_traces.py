"""Trace context from enqueue to handler."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

import psycopg
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from pydantic import BaseModel

from dagster_sqlqueue import (
    Cancel,
    Consumer,
    Done,
    Hold,
    Job,
    Mode,
    NewJob,
    QueueSpec,
    Reject,
    Retry,
    Sensitive,
    Snooze,
    SqlQueue,
    handles,
)
from dagster_sqlqueue.consumer import hooked
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.traces import TraceHooks, extract, inject
from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, value
from tests.traces.support import Recorded, ids, parent, traced

REMOTE = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, TraceFlags(1))
TRACEPARENT = "traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Card(BaseModel):
    number: Annotated[str, Sensitive()]
    holder: str


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def context(state: TraceState | None = None) -> Any:
    """A context that came from somewhere else."""
    span = SpanContext(REMOTE.trace_id, REMOTE.span_id, True, REMOTE.trace_flags, state)
    return set_span_in_context(NonRecordingSpan(span))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_trace_goes_from_one_process_to_another_and_a_retry_stays_in_it(url: str, queue: SqlQueue) -> None:
    def spans(end: str) -> list[dict[str, Any]]:
        words = [sys.executable, "-m", "tests.traces.processes", end, url, queue.database.schema]
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    send, request = spans("produce")
    first, second = spans("consume")
    assert [span["name"] for span in (request, send, first, second)] == [
        "request",
        "send work",
        "process work",
        "process work",
    ]
    assert send["parent"] == request["ids"]
    assert first["parent"] == second["parent"] == send["ids"]
    assert {span["ids"][0] for span in (send, first, second)} == {request["ids"][0]}
    assert first["ids"] != second["ids"]
    job_id = str(value(queue, "SELECT id FROM {s}.job_archive"))
    for span in (send, first, second):
        assert span["attributes"]["messaging.message.id"] == job_id
    shown = [
        [span["attributes"][f"sqlqueue.job.{name}"] for name in ("attempt", "outcome")] for span in (first, second)
    ]
    assert shown == [[1, "retry"], [2, "done"]]


def test_attributes_follow_the_conventions(queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded) -> None:
    job_id = traced(queue, recorded).enqueue(spec, Work(n=1))
    Consumer(queue, spec, lambda job: None, hooks=[recorded.hooks]).drain()
    send, process = recorded.one("send work"), recorded.one("process work")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span, operation in ((send, "send"), (process, "process")):
        assert (
            attributes(span).items()
            >= {
                "messaging.system": "sqlqueue",
                "messaging.destination.name": "work",
                "messaging.operation.name": operation,
                "messaging.operation.type": operation,
                "messaging.message.id": str(job_id),
            }.items()
        )
        assert span.status.status_code is StatusCode.UNSET
    assert attributes(process)["sqlqueue.job.max_attempts"] == 3
    assert attributes(process)["sqlqueue.job.lease_no"] == 1


@pytest.mark.parametrize(
    ("outcome", "name", "failed"),
    [
        (None, "done", False),
        (Done({"a": 1}), "done", False),
        (Snooze(600), "snooze", False),
        (Hold("look"), "hold", False),
        (Cancel(), "cancel", False),
        (Retry("again", after=600), "retry", True),
        (Reject("wrong"), "reject", True),
        (7, "reject", True),
    ],
)
def test_the_outcome_is_recorded(
    queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded, outcome: Any, name: str, failed: bool
) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=1))
    Consumer(queue, spec, lambda job: outcome, hooks=[recorded.hooks]).drain()
    span = recorded.one("process work")
    assert attributes(span)["sqlqueue.job.outcome"] == name
    assert span.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert span.parent is None, "a job without a context begins a trace"


@pytest.mark.parametrize("mode", Mode)
def test_an_exception_is_recorded_and_nothing_of_the_payload(
    queue: SqlQueue, schema: str, recorded: Recorded, mode: Mode
) -> None:
    cards = QueueSpec("cards", Card, max_attempts=1)
    queue.create_queue(cards)
    traced(queue, recorded).enqueue(cards, Card(number="4111-1111", holder="Ada"))

    def charge(job: Job[Card]) -> None:
        raise LookupError(f"no account of {job.payload.holder} for {job.payload.number}") from ValueError("4111-1111")

    summary = Consumer(queue, cards, charge, hooks=[recorded.hooks], mode=mode).drain()
    assert summary.failed == 1
    span = recorded.one("process cards")
    (event,) = span.events
    recorded_error = dict(event.attributes or {})
    assert event.name == "exception"
    assert recorded_error["exception.type"] == attributes(span)["error.type"] == "LookupError"
    assert "in charge" in str(recorded_error["exception.stacktrace"])
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["sqlqueue.job.outcome"] == "retry"
    assert "4111" not in recorded.everything()
    assert "Ada" not in recorded.everything()
    assert value(queue, "SELECT error LIKE '%Ada%' FROM {s}.job_archive"), "the words are with the job"


def test_texts_of_outcomes_and_refusals_are_not_recorded(queue: SqlQueue, recorded: Recorded) -> None:
    cards = QueueSpec("cards", Card)
    queue.create_queue(cards)
    sending = traced(queue, recorded)
    with pytest.raises(InvalidPayload):
        sending.enqueue(cards, {"number": "4111-1111", "holder": ["Ada"]})
    (refused,) = recorded.spans()
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(refused)["error.type"] == "dagster_sqlqueue.errors.InvalidPayload"
    sending.enqueue(cards, Card(number="4111-1111", holder="Ada"))
    Consumer(queue, cards, lambda job: Reject(f"{job.payload}"), hooks=[recorded.hooks]).drain()
    assert recorded.one("process cards")
    assert "4111" not in recorded.everything()
    assert "Ada" not in recorded.everything()


def test_many_carry_one_span_on(queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded) -> None:
    sending = traced(queue, recorded)
    jobs = [Work(n=1), {"n": 2}, NewJob(Work(n=3), tags=["eu"]), NewJob(Work(n=4), unique_key="k")]
    assert sending.enqueue_many(spec, (job for job in jobs)).inserted == 4
    send = recorded.one("send work")
    assert attributes(send)["messaging.batch.message_count"] == 4
    claimed = claim(queue)
    (tag,) = {next(tag for tag in job.tags if tag.startswith("traceparent:")) for job in claimed}
    assert tag == f"traceparent:00-{ids(send)[0]}-{ids(send)[1]}-{send.context.trace_flags:02x}"
    assert sorted(len(job.tags) for job in claimed) == [1, 1, 1, 2]


def test_a_duplicate_is_recorded(queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded) -> None:
    sending = traced(queue, recorded)
    for _ in range(2):
        sending.enqueue(spec, NewJob(Work(n=1), unique_key="k"))
    first, second = recorded.spans("send work")
    assert (attributes(first)["sqlqueue.enqueued"], attributes(second)["sqlqueue.enqueued"]) == (1, 0)
    assert "messaging.message.id" not in attributes(second)


def test_it_joins_the_caller_s_transaction(
    url: str, queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded
) -> None:
    sending = traced(queue, recorded)
    with psycopg.connect(url) as connection:
        sending.enqueue(spec, Work(n=1), connection=connection)
        connection.rollback()
    assert queue.depth("work").live == 0


def test_what_is_awaited_carries_it_too(url: str, queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded) -> None:
    sending = traced(queue, recorded)

    async def jobs() -> AsyncIterator[Work]:
        for n in range(2, 5):
            yield Work(n=n)

    async def put() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await sending.aenqueue(spec, Work(n=1), connection=connection)
            await sending.aenqueue_many(spec, jobs(), connection=connection)
            await sending.aenqueue_many(spec, [Work(n=5)], connection=connection)

    asyncio.run(put())
    Consumer(queue, spec, lambda job: None, hooks=[recorded.hooks]).drain()
    above = [parent(span) for span in recorded.spans("process work")]
    one, three, last = (ids(span) for span in recorded.spans("send work"))
    assert sorted(filter(None, above)) == sorted([one, three, three, three, last])


def test_inject_carries_a_context(queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded) -> None:
    queue.enqueue(
        spec, inject(NewJob(Work(n=1), tags=("eu",), priority=3), context=context(TraceState([("shop", "a")])))
    )
    (job,) = claim(queue)
    assert job.priority == 3
    assert list(job.tags) == ["eu", TRACEPARENT, "tracestate:shop=a"]
    found = get_current_span(extract(job.tags)).get_span_context()
    assert (found.trace_id, found.span_id, found.is_remote) == (REMOTE.trace_id, REMOTE.span_id, True)
    assert found.trace_state.get("shop") == "a"


def test_without_a_span_a_job_stays_as_it_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    for job in (Work(n=1), {"n": 1}, NewJob(Work(n=1), tags=["eu"])):
        assert inject(job) is job
    # Without an SDK the spans are none, and nothing is carried.
    SqlQueue(queue.database, hooks=[TraceHooks()]).enqueue(spec, Work(n=1))
    assert claim(queue)[0].tags == []


def test_no_job_is_refused_because_of_a_trace(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    full = NewJob(Work(n=1), tags=[f"t{n}" for n in range(100)])
    assert inject(full, context=context()) is full
    room = replace(full, tags=full.tags[:99])
    assert len(inject(room, context=context()).tags) == 100
    long = TraceState([("shop", "x" * 250), ("other", "y" * 255)])
    assert inject(Work(n=1), context=context(long)).tags == (TRACEPARENT,)
    for wrong in ("eu", 7):
        with pytest.raises(InvalidInput, match="tags is"):
            queue.enqueue(spec, inject(NewJob(Work(n=1), tags=wrong), context=context()))  # type: ignore[arg-type]


def test_a_context_that_is_there_already_stays(recorded: Recorded) -> None:
    before = inject(Work(n=1), context=context())
    with recorded.provider.get_tracer("shop").start_as_current_span("request"):
        assert inject(before) is before


@pytest.mark.parametrize(
    "tag",
    ["traceparent:", "traceparent:00-0-0-01", "traceparent", "tracestate:a=b", TRACEPARENT.replace("00-", "ff-", 1)],
)
def test_a_context_that_cannot_be_read_begins_a_trace(
    queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded, tag: str
) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), tags=[tag]))
    Consumer(queue, spec, lambda job: None, hooks=[recorded.hooks]).drain()
    assert recorded.one("process work").parent is None


def test_what_a_handler_does_is_below_its_span_and_a_consumer_s_own_span_is_linked(
    queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded
) -> None:
    tracer = recorded.provider.get_tracer("shop")
    sending = traced(queue, recorded)
    other = QueueSpec("other", Work)
    queue.create_queue(other)

    def handle(job: Job[Work]) -> None:
        sending.enqueue(other, Work(n=2))

    sending.enqueue(spec, Work(n=1))
    with tracer.start_as_current_span("drain"):
        Consumer(queue, spec, handle, hooks=[recorded.hooks]).drain()
    process = recorded.one("process work")
    assert parent(process) == ids(recorded.one("send work"))
    assert [link.context.span_id for link in process.links] == [recorded.one("drain").context.span_id]
    assert parent(recorded.one("send other")) == ids(process)


def test_async_handlers_are_traced_side_by_side(queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded) -> None:
    sending = traced(queue, recorded)
    sent = {sending.enqueue(spec, Work(n=n)): ids(recorded.spans()[-1]) for n in range(3)}
    begun: list[int] = []

    async def handle(job: Job[Work]) -> Retry | None:
        begun.append(job.payload.n)
        while len(begun) < 3:
            await asyncio.sleep(0)
        return Retry("again", after=600) if job.payload.n == 1 else None

    Consumer(queue, spec, handle, hooks=[recorded.hooks]).drain()
    processed = recorded.spans("process work")
    assert {attributes(span)["messaging.message.id"]: parent(span) for span in processed} == {
        str(job): span for job, span in sent.items()
    }
    assert sorted(attributes(span)["sqlqueue.job.outcome"] for span in processed) == ["done", "done", "retry"]


@pytest.mark.parametrize(
    ("returned", "outcome", "failed"),
    [
        (None, "done", False),
        (Snooze(600), "snooze", False),
        ([None, Done(), None], "done", False),
        ([None, Retry("again", after=600), None], None, True),
        ([None], "reject", True),
        ("wrong", "reject", True),
    ],
)
def test_a_batch_is_one_span_that_is_linked_with_those_of_its_jobs(
    queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded, returned: Any, outcome: str | None, failed: bool
) -> None:
    sending = traced(queue, recorded)
    single = QueueSpec("single", Work, bucket_count=1, max_attempts=1)
    queue.create_queue(single)
    for n in range(2):
        sending.enqueue(single, Work(n=n))
    queue.enqueue(single, Work(n=2))
    sent = [ids(span) for span in recorded.spans("send single")]
    Consumer(queue, single, lambda jobs: returned, batch=True, hooks=[recorded.hooks]).drain()
    process = recorded.one("process single")
    assert (parent(process), attributes(process)["messaging.batch.message_count"]) == (None, 3)
    assert [f"{link.context.span_id:016x}" for link in process.links] == [span for _, span in sent]
    assert attributes(process).get("sqlqueue.job.outcome") == outcome
    assert process.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert "messaging.message.id" not in attributes(process)


def test_a_handler_that_something_else_calls_is_traced_and_keeps_its_name_and_annotation(
    queue: SqlQueue, spec: QueueSpec[Work], recorded: Recorded
) -> None:
    def handle(job: Job[Work]) -> None:
        """What it does."""

    under_span = hooked(handle, [recorded.hooks])
    assert handles(spec)(under_span).handler.__doc__ == "What it does."
    with pytest.raises(InvalidInput, match=r"takes Job\[Work\]"):
        handles(QueueSpec("cards", Card))(under_span)
    queue.enqueue(spec, Work(n=1))
    Consumer(queue, spec, under_span).drain()
    assert recorded.one("process work")
