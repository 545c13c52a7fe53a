"""Spans around enqueues, publications and handlers, of which one is the child of the other, however far apart."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
)

from dagster_sqlqueue.consumer.handler import is_never_run
from dagster_sqlqueue.consumer.hooks import ConsumerHooks, HandlerCall
from dagster_sqlqueue.model.interrupts import is_interrupt
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.outcome import Done, Outcome, Reject, Retry
from dagster_sqlqueue.queue.hooks import EnqueueCall, EnqueueHooks
from dagster_sqlqueue.queue.insert import Enqueued
from dagster_sqlqueue.topics import Message, Published, PublishedMany
from dagster_sqlqueue.traces import attributes
from dagster_sqlqueue.traces.context import context_tags, extract, with_tags


class TraceHooks(EnqueueHooks, ConsumerHooks):
    """Makes spans, for the `hooks` of a `SqlQueue` and of a `Consumer`.

    Each call of `enqueue`, `enqueue_many`, `publish` or `publish_many`, awaited or not, is a producer's span, a child of the
    current one, which its jobs carry on. Each call of a handler is a consumer's span, a child of the one that its job
    carries, once for each attempt; a job that carries none begins a trace of its own. That of a handler which takes a batch
    begins a trace of its own, and is linked with those of its jobs. The span that is current where the consumer runs, if
    there is one, is linked.

    A span holds the queue or topic, the job's id and how many jobs there are, its attempt and its outcome; of an error its
    class, and where it came from. It never holds anything of a payload, and no text of an error or outcome, which may quote
    one: those are with the job in the database.

    Args:
        tracer_provider: makes the spans; None for the application's.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("dagster_sqlqueue", tracer_provider=tracer_provider)

    @contextmanager
    def around_enqueue(self, call: EnqueueCall) -> Iterator[None]:
        """A producer's span, which is carried on."""
        with self._tracer.start_as_current_span(
            f"{call.operation} {call.destination}",
            kind=SpanKind.PRODUCER,
            attributes=attributes.attributes(call.destination, call.operation),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            tags = context_tags()
            call.changes.append(
                lambda given: with_tags(_message(given) if call.operation == "publish" else given, tags)
            )
            try:
                yield
            except BaseException as error:
                span.set_attribute(attributes.ERROR_TYPE, attributes.class_name(error))
                span.set_status(Status(StatusCode.ERROR))
                raise
            _record_result(span, call.result)

    @contextmanager
    def around_handler(self, call: HandlerCall) -> Iterator[None]:
        """A consumer's span."""
        around = get_current_span().get_span_context()
        carried = [extract(job.tags) for job in call.jobs]
        senders = [get_current_span(context).get_span_context() for context in carried] if call.batch else []
        links = [Link(context) for context in (*senders, around) if context.is_valid]
        with self._tracer.start_as_current_span(
            f"process {call.jobs[0].queue}",
            context=Context() if call.batch else carried[0],
            kind=SpanKind.CONSUMER,
            attributes=_of_jobs(call),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _record_error(span, error)
                raise
            _record_outcome(span, call)


def _message(given: Any) -> Any:
    # A job is no message: the package `topics` refuses it, with its own message.
    return given if isinstance(given, Message | NewJob) else Message(given)


def _record_result(span: Span, result: object) -> None:
    match result:
        case Enqueued():
            span.set_attribute(attributes.BATCH_COUNT, result.inserted + result.replaced)
        case PublishedMany():
            span.set_attribute(attributes.BATCH_COUNT, result.messages)
            span.set_attribute(attributes.ENQUEUED, result.inserted)
        case Published():
            span.set_attribute(attributes.MESSAGE_ID, str(result.id))
            span.set_attribute(attributes.ENQUEUED, sum(job.inserted for job in result.jobs))
        case None:
            span.set_attribute(attributes.ENQUEUED, 0)
        case job_id:
            span.set_attribute(attributes.ENQUEUED, 1)
            span.set_attribute(attributes.MESSAGE_ID, str(job_id))


def _of_jobs(call: HandlerCall) -> attributes.Attributes:
    job = call.jobs[0]
    common = attributes.attributes(job.queue, "process")
    if call.batch:
        return {**common, attributes.BATCH_COUNT: len(call.jobs)}
    return {
        **common,
        attributes.MESSAGE_ID: str(job.id),
        attributes.ATTEMPT: job.attempt,
        attributes.MAX_ATTEMPTS: job.max_attempts,
        attributes.LEASE_NO: job.lease_no,
    }


def _record_outcome(span: Span, call: HandlerCall) -> None:
    """What the handler returned; of a batch with several kinds of outcomes only whether an error is among them."""
    several = (
        call.batch and isinstance(call.returned, Sequence) and not isinstance(call.returned, str | bytes | bytearray)
    )
    outcomes = call.returned if several else [call.returned]
    if any(is_never_run(one) for one in outcomes):
        # Its jobs are given back without an outcome.
        span.set_status(Status(StatusCode.ERROR))
        return
    fits = not several or len(outcomes) == len(call.jobs)
    # What is no outcome, or not one for each job, the core makes a reject.
    kinds = {type(one or Done()) if fits and isinstance(one, Outcome | None) else Reject for one in outcomes or [None]}
    if len(kinds) == 1:
        span.set_attribute(attributes.OUTCOME, next(iter(kinds)).__name__.lower())
    if kinds & {Retry, Reject}:
        span.set_status(Status(StatusCode.ERROR))


def _record_error(span: Span, error: BaseException) -> None:
    name = attributes.class_name(error)
    places = [
        f'  File "{at.filename}", line {at.lineno}, in {at.name}' for at in traceback.extract_tb(error.__traceback__)
    ]
    span.add_event("exception", {"exception.type": name, "exception.stacktrace": "\n".join([*places, name])})
    span.set_attribute(attributes.ERROR_TYPE, name)
    span.set_status(Status(StatusCode.ERROR))
    if not is_interrupt(error):
        span.set_attribute(attributes.OUTCOME, "retry")
