"""What a topic, a subscription and a message are, and what publishing returns. No I/O."""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic
from uuid import UUID

from pydantic import BaseModel

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import Payload
from dagster_sqlqueue.payload.serialization import AnyObject

if TYPE_CHECKING:
    from dagster_sqlqueue.queue.intake import Rejected

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")


class SubscriptionMode(enum.StrEnum):
    """Who gets a message that fits several subscriptions of a topic."""

    COPY = "copy"
    """This one gets it, whichever others do."""
    MOVE = "move"
    """One of its group gets it: they compete, and have equal shares."""


@dataclass(frozen=True, slots=True)
class TopicSpec(Generic[Payload]):
    """A topic as its publishers declare it.

    Args:
        name: 1 to 200 letters, digits, `_`, `.` or `-`, beginning with a letter.
        payload: the pydantic model that every payload of the topic fits. The queues that subscribe read the same JSON:
            their models are to fit it too.

    Raises:
        InvalidInput: the name is not usable.
    """

    name: str
    payload: type[Payload]

    def __post_init__(self) -> None:
        check_name("topic", self.name)

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"topic {self.name!r}"


def topic_of(topic: "TopicSpec[Any] | str", payload: object = None) -> "TopicSpec[Any]":
    """The topic as declared; one that is only named takes any JSON object, or a model's instance as it is.

    Raises:
        InvalidInput: it is neither a `TopicSpec` nor a usable name.
    """
    if isinstance(topic, TopicSpec):
        return topic
    return TopicSpec(topic, type(payload) if isinstance(payload, BaseModel) else AnyObject)


def check_name(what: str, name: object) -> str:
    """The name, if a topic, a subscription or a group may have it.

    Raises:
        InvalidInput: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{what} {name!r:.220} is not usable: 1 to 200 letters, digits, '_', '.' or '-', beginning with a letter"
        )
    return name


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which messages of a topic become jobs of a queue.

    Attributes:
        topic, name: what it is known by.
        queue: where its jobs go.
        mode: `copy`: it gets every message that fits. `move`: of those of its group that a message fits, one gets it.
        group: of a `move` subscription; None: the topic's only group.
        payload: JSON text that a message's payload contains; None: any.
        tags: words of which a message has all; empty: any.
        priority: of its jobs; None: the message's.
        delay_seconds: its jobs become due so much later than the message says.
        created_at: when it was made, by the database's clock.
    """

    topic: str
    name: str
    queue: str
    mode: SubscriptionMode
    group: str | None
    payload: str | None
    tags: Sequence[str]
    priority: int | None
    delay_seconds: float
    created_at: datetime


def subscription_of(row: Sequence[Any]) -> Subscription:
    """The subscription in a row of `subscriptions.sql`."""
    topic, name, queue, mode, group, payload, tags, priority, delay_seconds, created_at = row
    return Subscription(
        topic,
        name,
        queue,
        SubscriptionMode(mode),
        group,
        payload,
        tuple(tags or ()),
        priority,
        delay_seconds,
        created_at,
    )


@dataclass(frozen=True, slots=True)
class Message(Generic[Payload]):
    """A message to be published, with everything beside the payload that may be said about it.

    Args:
        payload: the model's instance, or a mapping that fits it.
        id: the message's id, for a publisher that can send the same message again; made if None.
        tags: words to filter by; its jobs have them too.
        run_at: the moment its jobs become due, with a time zone; None for at once.
        priority: of its jobs, 0 to 9, higher first.
        ordering_key: its jobs have it: in a queue that is ordered they take turns.
    """

    payload: Payload | Mapping[str, Any]
    id: UUID | None = None
    tags: Sequence[str] = ()
    run_at: datetime | None = None
    priority: int = 0
    ordering_key: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """What a message became.

    Attributes:
        subscription: that it fitted.
        queue: of the subscription.
        id: the job's.
        inserted: False: the job had been enqueued before, and was left as it is.
    """

    subscription: str
    queue: str
    id: UUID
    inserted: bool


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a message: a job for each subscription that it fitted, none where `jobs` is empty.

    Attributes:
        topic: that it was published to.
        id: the message's; sent again with it, it lands once.
        jobs: what it became, by receiver.
    """

    topic: str
    id: UUID
    jobs: Sequence[PublishedJob]

    @property
    def matched(self) -> bool:
        """Whether it fitted any subscription; if not, nothing is left of it."""
        return bool(self.jobs)


@dataclass(frozen=True, slots=True)
class PublishedMany:
    """What became of many messages.

    Attributes:
        messages: published, those that fitted no subscription among them.
        unmatched: fitted no subscription: nothing is left of them.
        inserted: jobs that were enqueued.
        duplicates: jobs that had been enqueued before and were left as they are.
        rejected: messages that were left out, because they are not usable; only with `on_bad_row="skip"`.
    """

    messages: int
    unmatched: int
    inserted: int
    duplicates: int
    rejected: "list[Rejected]" = field(default_factory=list)
