"""A producer's span."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from dagster_sqlqueue.traces import attributes
from dagster_sqlqueue.traces.context import context_tags


@contextmanager
def sending(tracer: Tracer, destination: str, operation: str) -> Iterator[tuple[Span, list[str]]]:
    """The span of one call, a child of the current one, and the tags with which jobs carry it on. Of an error it holds the
    class, and no words, which may quote a payload.

    Args:
        tracer: makes the span.
        destination: the queue or topic.
        operation: `send` or `publish`.
    """
    with tracer.start_as_current_span(
        f"{operation} {destination}",
        kind=SpanKind.PRODUCER,
        attributes=attributes.attributes(destination, operation),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span, context_tags()
        except BaseException as error:
            span.set_attribute(attributes.ERROR_TYPE, attributes.class_name(error))
            span.set_status(Status(StatusCode.ERROR))
            raise
