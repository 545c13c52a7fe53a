"""Consumers: claim batch after batch, call a handler, and write what became of each job."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.consumer.consumer import Consumer as Consumer
    from dagster_sqlqueue.consumer.hooks import ConsumerHooks as ConsumerHooks
    from dagster_sqlqueue.consumer.hooks import HandlerCall as HandlerCall
    from dagster_sqlqueue.consumer.hooks import hooked as hooked
    from dagster_sqlqueue.consumer.manager import AssignedSource as AssignedSource
    from dagster_sqlqueue.consumer.manager import Manager as Manager
    from dagster_sqlqueue.consumer.settlement import DrainSummary as DrainSummary
    from dagster_sqlqueue.consumer.weighted import WeightedConsumers as WeightedConsumers
else:
    # Importing one of the names does not load the modules of the others.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "consumer": ["Consumer"],
            "hooks": ["ConsumerHooks", "HandlerCall", "hooked"],
            "manager": ["AssignedSource", "Manager"],
            "settlement": ["DrainSummary"],
            "weighted": ["WeightedConsumers"],
        },
    )

__all__ = [
    "AssignedSource",
    "Consumer",
    "ConsumerHooks",
    "DrainSummary",
    "HandlerCall",
    "Manager",
    "WeightedConsumers",
    "hooked",
]
