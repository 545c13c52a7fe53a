"""Topics: publish once, one job for each subscription that the message fits."""

from dagster_sqlqueue.topics.model import Message as Message
from dagster_sqlqueue.topics.model import Published as Published
from dagster_sqlqueue.topics.model import PublishedJob as PublishedJob
from dagster_sqlqueue.topics.model import PublishedMany as PublishedMany
from dagster_sqlqueue.topics.model import Subscription as Subscription
from dagster_sqlqueue.topics.model import SubscriptionMode as SubscriptionMode
from dagster_sqlqueue.topics.model import TopicSpec as TopicSpec
from dagster_sqlqueue.topics.topics import Topics as Topics
