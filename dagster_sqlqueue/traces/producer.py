"""Enqueueing under a span whose context the jobs carry."""

from collections.abc import AsyncIterator, Iterable
from typing import Any, overload
from uuid import UUID

from opentelemetry.trace import Span, TracerProvider, get_tracer

from dagster_sqlqueue.db.retries import mapped
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.insert import Enqueued
from dagster_sqlqueue.queue.intake import each
from dagster_sqlqueue.topics import Topics
from dagster_sqlqueue.traces import attributes
from dagster_sqlqueue.traces.context import with_tags
from dagster_sqlqueue.traces.sending import sending
from dagster_sqlqueue.traces.topics import TracedTopics


@overload
def traced(what: SqlQueue, *, tracer_provider: TracerProvider | None = None) -> "TracedQueue": ...


@overload
def traced(what: Topics, *, tracer_provider: TracerProvider | None = None) -> TracedTopics: ...


def traced(what: SqlQueue | Topics, *, tracer_provider: TracerProvider | None = None) -> "TracedQueue | TracedTopics":
    """The same queues, or topics, on the same connections; what is enqueued or published is a span that the jobs carry on.

    Args:
        what: the queues, which stay the caller's to close, or the topics.
        tracer_provider: makes the spans; None for the application's.
    """
    return (TracedTopics if isinstance(what, Topics) else TracedQueue)(what, tracer_provider)  # type: ignore[arg-type]


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
        with sending(self._tracer, spec.name, "send") as (span, tags):
            return _told_one(span, super().enqueue(spec, with_tags(job, tags), **how))

    def enqueue_many(self, spec: QueueSpec[Any], jobs: Iterable[Any], **how: Any) -> Enqueued:
        """`SqlQueue.enqueue_many` under one span, which all of the jobs carry on."""
        with sending(self._tracer, spec.name, "send") as (span, tags):
            return _told_many(span, super().enqueue_many(spec, mapped(jobs, lambda job: with_tags(job, tags)), **how))

    async def aenqueue(self, spec: QueueSpec[Any], job: Any, **how: Any) -> UUID | None:
        """`SqlQueue.aenqueue` under a span."""
        with sending(self._tracer, spec.name, "send") as (span, tags):
            return _told_one(span, await super().aenqueue(spec, with_tags(job, tags), **how))

    async def aenqueue_many(self, spec: QueueSpec[Any], jobs: Any, **how: Any) -> Enqueued:
        """`SqlQueue.aenqueue_many` under one span, which all of the jobs carry on."""

        async def tagged() -> AsyncIterator[Any]:
            async for job in each(jobs):
                yield with_tags(job, tags)

        with sending(self._tracer, spec.name, "send") as (span, tags):
            return _told_many(span, await super().aenqueue_many(spec, tagged(), **how))


def _told_one(span: Span, job_id: UUID | None) -> UUID | None:
    span.set_attribute(attributes.ENQUEUED, int(job_id is not None))
    if job_id is not None:
        span.set_attribute(attributes.MESSAGE_ID, str(job_id))
    return job_id


def _told_many(span: Span, enqueued: Enqueued) -> Enqueued:
    span.set_attribute(attributes.BATCH_COUNT, enqueued.inserted + enqueued.replaced)
    return enqueued
