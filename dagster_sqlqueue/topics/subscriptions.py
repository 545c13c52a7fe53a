"""Verbs of subscriptions: create, change, remove and list them, while publishers run."""

from collections.abc import Sequence
from typing import Any

from dagster_sqlqueue.db.executors import CallerConnection, Executor
from dagster_sqlqueue.errors import InvalidInput, UnknownSubscription
from dagster_sqlqueue.model.numbers import is_delay, is_whole
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.claim_filter import ClaimFilter, check_filter
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs
from dagster_sqlqueue.topics.model import (
    Message,
    Subscription,
    SubscriptionMode,
    TopicSpec,
    check_name,
    subscription_of,
    topic_of,
)
from dagster_sqlqueue.topics.publication import new_row

_FILTER_BYTES = 10_000
"""A filter is read at each publishing: it has the size of a condition, not of a list."""
_MOST_TAGS = 100
_TAG_LENGTH = 1_000
"""What a message may have."""
_SHOWN = 20


class SubscriptionVerbs(ServiceVerbs):
    """What the owners of queues do with topics."""

    def subscribe(
        self,
        topic: "TopicSpec[Any] | str",
        name: str,
        queue: str,
        *,
        filter: ClaimFilter | None = None,
        mode: SubscriptionMode | str = SubscriptionMode.COPY,
        group: str | None = None,
        priority: int | None = None,
        delay_seconds: float = 0.0,
        connection: CallerConnection | None = None,
    ) -> Subscription:
        """Make a subscription, or give the one of that name these settings. Publishers need no change.

        Every message whose publishing begins after this has returned is matched by it.

        Args:
            topic: as declared, or its name; it need not be known.
            name: of the subscription within its topic: 1 to 200 letters, digits, `_`, `.` or `-`, beginning with a letter.
            queue: where the jobs go; must exist. Two subscriptions may share one.
            filter: which messages: those that have its tags and contain its payload. None: all. Its `scan` plays no part.
            mode: `copy`: this subscription gets every message that fits. `move`: of the subscriptions of its group that
                a message fits, exactly one gets it.
            group: of subscriptions with mode `move` that compete; None: the topic's only group.
            priority: of the jobs, 0 to 9; None: the message's.
            delay_seconds: the jobs become due so much later than the message says.
            connection: the caller's, whose transaction it joins; None: a transaction of its own.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: the queue does not exist; nothing was changed.
        """
        parameters: dict[str, Any] = {
            "topic": topic_of(topic).name,
            "name": check_name("subscription", name),
            "queue": check_queue_name(queue),
            "mode": str(_mode(mode, group)),
            "move_group": None if group is None else check_name("group", group),
            "payload": None,
            "tags": None,
            "priority": priority,
            "delay_seconds": delay_seconds,
        }
        if filter is not None:
            parameters["payload"], parameters["tags"] = _wanted(_checked(filter))
        if priority is not None and not is_whole(priority, 0, 9):
            raise InvalidInput(f"priority is {priority!r}; it must be 0 to 9, higher first, or None for the message's")
        if not is_delay(delay_seconds):
            raise InvalidInput(
                f"delay_seconds is {delay_seconds!r}; it must be seconds, not negative and at most a hundred years"
            )
        executor = self.database.joined(connection)
        while not (rows := executor.run("subscribe", parameters)):
            self.queue.catalog.check_exists(queue, executor)
        return subscription_of(rows[0])

    def unsubscribe(
        self, topic: "TopicSpec[Any] | str", name: str, *, connection: CallerConnection | None = None
    ) -> Subscription:
        """Take a subscription away. The jobs that it has got stay; a message whose publishing began before may still
        become one.

        Args:
            topic: as declared, or its name.
            name: of the subscription.
            connection: as for `subscribe`.

        Returns:
            The subscription as it was.

        Raises:
            InvalidInput: a name is not usable.
            UnknownSubscription: the topic has none of that name.
        """
        parameters = {"topic": topic_of(topic).name, "name": check_name("subscription", name)}
        executor = self.database.joined(connection)
        if rows := executor.run("unsubscribe", parameters):
            return subscription_of(rows[0])
        raise self._unknown(parameters["topic"], name, executor)

    def subscriptions(
        self, topic: "TopicSpec[Any] | str | None" = None, *, queue: str | None = None
    ) -> list[Subscription]:
        """The subscriptions, by topic and name.

        Args:
            topic: only its; None: of all topics.
            queue: only those that enqueue to it; None: to any.

        Raises:
            InvalidInput: a name is not usable.
            UnknownQueue: the queue does not exist.
        """
        parameters = {
            "topic": None if topic is None else topic_of(topic).name,
            "queue": None if queue is None else check_queue_name(queue),
        }
        rows = self.database.run("subscriptions", parameters)
        if queue is not None and not rows:
            self.queue.catalog.check_exists(queue)
        return [subscription_of(row) for row in rows]

    def matches(self, filter: ClaimFilter | Subscription, payload: Any, *, tags: Sequence[str] = ()) -> bool:
        """Whether a message fits a filter, or a subscription's, as the database sees it. Nothing is published.

        Args:
            filter: the filter.
            payload: a model's instance, or a mapping.
            tags: of the message.

        Raises:
            InvalidPayload, InvalidInput: the message could not be published.
        """
        # Any name does: it is only there for messages about the payload.
        row = new_row("any", Message(payload, tags=tags))
        if not isinstance(filter, ClaimFilter | Subscription):
            raise InvalidInput(
                f"filter is a {type(filter).__name__}; give a ClaimFilter(payload=…, tags=…), or a subscription"
            )
        wanted_payload, wanted_tags = _wanted(filter)
        parameters = {
            "filter_payload": wanted_payload,
            "filter_tags": wanted_tags,
            "payload": row.columns["payload"],
            "tags": row.columns["tags"] or "{}",
        }
        ((fits,),) = self.database.run("filter_matches", parameters)
        return bool(fits)

    def _unknown(self, topic: str, name: str, executor: Executor) -> UnknownSubscription:
        names = [row[1] for row in executor.run("subscriptions", {"topic": topic, "queue": None})]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        there = ", ".join(names[:_SHOWN]) + more or "none"
        return UnknownSubscription(
            f"topic {topic!r} has no subscription {name!r} in schema {self.database.schema!r} of {self.database.where}"
            f" (there are: {there})"
        )


def _mode(mode: str, group: str | None) -> SubscriptionMode:
    try:
        found = SubscriptionMode(mode)
    except ValueError:
        raise InvalidInput(f"mode is {mode!r}; it must be 'copy' or 'move'") from None
    if group is not None and found is not SubscriptionMode.MOVE:
        raise InvalidInput(
            f"group is {group!r} and mode is 'copy'; only subscriptions with mode 'move' compete in a group"
        )
    return found


def _checked(filter: ClaimFilter) -> ClaimFilter:
    check_filter(filter)
    if len(filter.payload) > _FILTER_BYTES:
        raise InvalidInput(
            f"the filter's payload has {len(filter.payload):,} bytes, the limit is {_FILTER_BYTES:,}: it is read at each"
            " publishing; have the publisher add a tag instead"
        )
    if len(filter.tags) > _MOST_TAGS:
        raise InvalidInput(
            f"the filter has {len(filter.tags):,} tags; a message has {_MOST_TAGS} at most, so none fits"
        )
    for tag in filter.tags:
        if not 0 < len(tag) <= _TAG_LENGTH:
            raise InvalidInput(
                f"the filter has the tag {tag!r:.100}; a tag has 1 to {_TAG_LENGTH:,} characters, so no message has it"
            )
    return filter


def _wanted(filter: ClaimFilter | Subscription) -> tuple[str | None, list[str] | None]:
    """The JSON that a payload has to contain, and the words; None where anything does.

    `{}` is anything: asked whether a payload that is a list contains it, the database says no.
    """
    return None if filter.payload == "{}" else filter.payload, sorted(set(filter.tags)) or None
