"""Enqueueing under a span whose context the jobs carry."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer

from dagster_sqlqueue.asynchronous import each
from dagster_sqlqueue.putting import Enqueued
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.settings import QueueSpec
from dagster_sqlqueue.traces import naming
from dagster_sqlqueue.traces.carrying import context_tags, with_tags


def traced(queue: SqlQueue, *, tracer_provider: TracerProvider | None = None) -> "TracedQueue":
    """The same queues on the same connections, whose enqueues are spans that the jobs carry on.

    Args:
        queue: the queues; they stay the caller's to close.
        tracer_provider: makes the spans; None for the application's.
    """
    return TracedQueue(queue, tracer_provider)


class TracedQueue(SqlQueue):
    """What `traced` makes: each call of `enqueue` or `enqueue_many`, awaited or not, is a producer's span, a child of the
    current one. A span holds the queue's name, the job's id and how many jobs were enqueued, and of an error its class;
    nothing of a payload, and no error's words, which may quote one.
    """

    def __init__(self, queue: SqlQueue, tracer_provider: TracerProvider | None = None) -> None:
        super().__init__(queue.database)
        self._tracer = get_tracer("dagster_sqlqueue", tracer_provider=tracer_provider)

    def enqueue(self, spec: QueueSpec[Any], job: Any, **how: Any) -> UUID | None:
        """`SqlQueue.enqueue` under a span."""
        with self._sending(spec) as (span, tags):
            return _told_one(span, super().enqueue(spec, with_tags(job, tags), **how))

    def enqueue_many(self, spec: QueueSpec[Any], jobs: Iterable[Any], **how: Any) -> Enqueued:
        """`SqlQueue.enqueue_many` under one span, which all of the jobs carry on."""
        with self._sending(spec) as (span, tags):
            return _told_many(span, super().enqueue_many(spec, (with_tags(job, tags) for job in jobs), **how))

    async def aenqueue(self, spec: QueueSpec[Any], job: Any, **how: Any) -> UUID | None:
        """`SqlQueue.aenqueue` under a span."""
        with self._sending(spec) as (span, tags):
            return _told_one(span, await super().aenqueue(spec, with_tags(job, tags), **how))

    async def aenqueue_many(self, spec: QueueSpec[Any], jobs: Any, **how: Any) -> Enqueued:
        """`SqlQueue.aenqueue_many` under one span, which all of the jobs carry on."""

        async def tagged() -> AsyncIterator[Any]:
            async for job in each(jobs):
                yield with_tags(job, tags)

        with self._sending(spec) as (span, tags):
            return _told_many(span, await super().aenqueue_many(spec, tagged(), **how))

    @contextmanager
    def _sending(self, spec: QueueSpec[Any]) -> Iterator[tuple[Span, list[str]]]:
        attributes = naming.attributes(spec.name, "send")
        with self._tracer.start_as_current_span(
            f"send {spec.name}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span, context_tags()
            except BaseException as error:
                span.set_attribute(naming.ERROR_TYPE, naming.class_name(error))
                span.set_status(Status(StatusCode.ERROR))
                raise


def _told_one(span: Span, job_id: UUID | None) -> UUID | None:
    span.set_attribute(naming.ENQUEUED, int(job_id is not None))
    if job_id is not None:
        span.set_attribute(naming.MESSAGE_ID, str(job_id))
    return job_id


def _told_many(span: Span, enqueued: Enqueued) -> Enqueued:
    span.set_attribute(naming.BATCH_COUNT, enqueued.inserted + enqueued.replaced)
    return enqueued
