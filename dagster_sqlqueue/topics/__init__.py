"""Topics: publish once, one job for each subscription that the message fits."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.topics.model import Message as Message
    from dagster_sqlqueue.topics.model import Published as Published
    from dagster_sqlqueue.topics.model import PublishedJob as PublishedJob
    from dagster_sqlqueue.topics.model import PublishedMany as PublishedMany
    from dagster_sqlqueue.topics.model import Subscription as Subscription
    from dagster_sqlqueue.topics.model import SubscriptionMode as SubscriptionMode
    from dagster_sqlqueue.topics.model import TopicSpec as TopicSpec
    from dagster_sqlqueue.topics.topics import Topics as Topics
else:
    # The help of the command line needs the models alone, and no driver.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "model": [
                "Message",
                "Published",
                "PublishedJob",
                "PublishedMany",
                "Subscription",
                "SubscriptionMode",
                "TopicSpec",
            ],
            "topics": ["Topics"],
        },
    )

__all__ = [
    "Message",
    "Published",
    "PublishedJob",
    "PublishedMany",
    "Subscription",
    "SubscriptionMode",
    "TopicSpec",
    "Topics",
]
