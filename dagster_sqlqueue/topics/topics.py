"""`Topics`: the topics of one schema, with the verbs of publishers and of subscriptions."""

from dagster_sqlqueue.topics.publishing import PublishingVerbs
from dagster_sqlqueue.topics.subscriptions import SubscriptionVerbs


class Topics(PublishingVerbs, SubscriptionVerbs):
    """The topics of one schema: what is published to one becomes a job for each subscription that it fits.

    Args:
        queue: the queues of the schema.
    """
