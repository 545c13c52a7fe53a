"""Publishing under a span whose context the jobs of every subscription carry."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from opentelemetry.trace import Span, TracerProvider, get_tracer

from dagster_sqlqueue.db.retries import mapped
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.queue.intake import each
from dagster_sqlqueue.topics import Message, Published, PublishedMany, Topics, TopicSpec
from dagster_sqlqueue.topics.model import topic_of
from dagster_sqlqueue.traces import attributes
from dagster_sqlqueue.traces.context import with_tags
from dagster_sqlqueue.traces.sending import sending


class TracedTopics(Topics):
    """What `traced` makes of topics: each call of `publish` or `publish_many`, awaited or not, is a producer's span, a child
    of the current one. A span holds the topic, the message's id and how many jobs it became, and of an error its class;
    nothing of a payload, and no error's words, which may quote one.
    """

    def __init__(self, topics: Topics, tracer_provider: TracerProvider | None = None) -> None:
        super().__init__(topics.queue)
        self._tracer = get_tracer("dagster_sqlqueue", tracer_provider=tracer_provider)

    def publish(self, topic: TopicSpec[Any] | str, payload: Any, *, tags: Sequence[str] = (), **how: Any) -> Published:
        """`Topics.publish` under a span."""
        with sending(self._tracer, topic_of(topic).name, "publish") as (span, more):
            own = with_tags(Message(payload, tags=tags), more).tags
            return _told_one(span, super().publish(topic, payload, tags=own, **how))

    def publish_many(self, topic: TopicSpec[Any] | str, messages: Iterable[Any], **how: Any) -> PublishedMany:
        """`Topics.publish_many` under one span, which the jobs of all messages carry on."""
        with sending(self._tracer, topic_of(topic).name, "publish") as (span, more):
            tagged = mapped(messages, lambda message: _with(message, more))
            return _told_many(span, super().publish_many(topic, tagged, **how))

    async def apublish(
        self, topic: TopicSpec[Any] | str, payload: Any, *, tags: Sequence[str] = (), **how: Any
    ) -> Published:
        """`Topics.apublish` under a span."""
        with sending(self._tracer, topic_of(topic).name, "publish") as (span, more):
            own = with_tags(Message(payload, tags=tags), more).tags
            return _told_one(span, await super().apublish(topic, payload, tags=own, **how))

    async def apublish_many(self, topic: TopicSpec[Any] | str, messages: Any, **how: Any) -> PublishedMany:
        """`Topics.apublish_many` under one span, which the jobs of all messages carry on."""

        async def tagged() -> AsyncIterator[Any]:
            async for message in each(messages):
                yield _with(message, more)

        with sending(self._tracer, topic_of(topic).name, "publish") as (span, more):
            return _told_many(span, await super().apublish_many(topic, tagged(), **how))


def _with(message: Any, tags: Sequence[str]) -> Any:
    # A job is no message: the room of topics refuses it, with words of its own.
    return with_tags(message if isinstance(message, Message | NewJob) else Message(message), tags)


def _told_one(span: Span, published: Published) -> Published:
    span.set_attribute(attributes.MESSAGE_ID, str(published.id))
    span.set_attribute(attributes.ENQUEUED, sum(job.inserted for job in published.jobs))
    return published


def _told_many(span: Span, published: PublishedMany) -> PublishedMany:
    span.set_attribute(attributes.BATCH_COUNT, published.messages)
    span.set_attribute(attributes.ENQUEUED, published.inserted)
    return published
