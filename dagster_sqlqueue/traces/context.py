"""The W3C trace context among a job's tags: `traceparent:00-…`, and `tracestate:…` where there is one. No I/O."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.queue.validation import MOST_TAGS
from dagster_sqlqueue.topics import Message

_FIELDS = ("traceparent", "tracestate")
_LONGEST = 512
"""What W3C asks everybody to pass on of a state; one that is longer is left out, as it allows."""
_PROPAGATOR = TraceContextTextMapPropagator()


def inject(job: Any, *, context: Context | None = None) -> Any:
    """The job, or the message for a topic, with a trace context among its tags.

    A job that has one already keeps it. A job that can take no further tag is returned unchanged, and every job
    where there is no span: nothing is refused because of a trace.

    Args:
        job: a payload, a `NewJob` with more to say, or a topic's `Message`, whose jobs have its tags.
        context: the context to carry; None for the current one.

    Returns:
        A `Message` for one, else a `NewJob`; or what was given if nothing was added.
    """
    return with_tags(job, context_tags(context))


def extract(tags: Sequence[str]) -> Context:
    """The context that a job's tags carry; an empty one if they carry none, or one that cannot be read."""
    carrier = {}
    for tag in tags:
        name, colon, text = tag.partition(":")
        if colon and name in _FIELDS:
            carrier[name] = text
    return _PROPAGATOR.extract(carrier, context=Context())


def context_tags(context: Context | None = None) -> list[str]:
    """A context as tags: none if there is no span in it."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    tags = [f"{name}:{carrier[name]}" for name in _FIELDS if carrier.get(name)]
    return [tag for tag in tags if len(tag) <= _LONGEST]


def with_tags(job: Any, tags: Sequence[str]) -> Any:
    """A job or message with more tags, where it may have them."""
    new = job if isinstance(job, NewJob | Message) else NewJob(job)
    own = new.tags
    # What is no collection of texts is left as it is: the core refuses it, with words of its own.
    if not tags or not isinstance(own, Sequence | set | frozenset) or isinstance(own, str | bytes):
        return job
    carried = any(isinstance(tag, str) and tag.startswith("traceparent:") for tag in own)
    if carried or len(own) + len(tags) > MOST_TAGS:
        return job
    return replace(new, tags=(*own, *tags))
