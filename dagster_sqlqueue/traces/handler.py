"""Handling a job under a span that belongs to the trace of whoever enqueued it."""

import traceback
from functools import wraps

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

from dagster_sqlqueue.consumer.caller import is_async
from dagster_sqlqueue.consumer.handler import Handler
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Job
from dagster_sqlqueue.model.outcome import Done, Outcome, Reject, Retry
from dagster_sqlqueue.model.queue import Payload
from dagster_sqlqueue.traces import attributes
from dagster_sqlqueue.traces.context import extract


def traced_handler(handler: Handler[Payload], *, tracer_provider: TracerProvider | None = None) -> Handler[Payload]:
    """A handler under a span: a consumer's, a child of the context that the job carries, one for each attempt.

    A job that carries none begins a trace of its own. The span that is current where the consumer runs, if there is one,
    is linked. The span holds the queue, the job's id, its attempt, and the outcome; of an exception its class and
    where it came from. It never holds anything of the payload, and no text of an exception or outcome, which may quote
    one: those are with the job in the database.

    Args:
        handler: called for one job at a time; the span is current meanwhile.
        tracer_provider: makes the spans; None for the application's.

    Raises:
        InvalidInput: the handler is `async`.
    """
    if is_async(handler):
        raise InvalidInput("the handler is async; make it a plain function, which may call asyncio.run(…) for its job")
    tracer = get_tracer("dagster_sqlqueue", tracer_provider=tracer_provider)

    @wraps(handler)
    def under_span(job: Job[Payload]) -> Outcome | None:
        around = get_current_span().get_span_context()
        with tracer.start_as_current_span(
            f"process {job.queue}",
            context=extract(job.tags),
            kind=SpanKind.CONSUMER,
            attributes={
                **attributes.attributes(job.queue, "process"),
                attributes.MESSAGE_ID: str(job.id),
                attributes.ATTEMPT: job.attempt,
                attributes.MAX_ATTEMPTS: job.max_attempts,
                attributes.LEASE_NO: job.lease_no,
            },
            links=[Link(around)] if around.is_valid else [],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                outcome = handler(job)
            except BaseException as error:
                _record(span, error)
                raise
            # What is no outcome the core makes a retry.
            known = isinstance(outcome, Outcome | None)
            span.set_attribute(attributes.OUTCOME, type(outcome or Done()).__name__.lower() if known else "retry")
            if not known or isinstance(outcome, Retry | Reject):
                span.set_status(Status(StatusCode.ERROR))
            return outcome

    return under_span


def _record(span: Span, error: BaseException) -> None:
    name = attributes.class_name(error)
    places = [
        f'  File "{at.filename}", line {at.lineno}, in {at.name}' for at in traceback.extract_tb(error.__traceback__)
    ]
    span.add_event("exception", {"exception.type": name, "exception.stacktrace": "\n".join([*places, name])})
    span.set_attribute(attributes.ERROR_TYPE, name)
    span.set_status(Status(StatusCode.ERROR))
    if isinstance(error, Exception):
        span.set_attribute(attributes.OUTCOME, "retry")
