"""The queues of one schema: enqueue, claim, complete, and what people and operators do with jobs and queues."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.queue.claim_request import MAX_BATCH as MAX_BATCH
    from dagster_sqlqueue.queue.complete import Kept as Kept
    from dagster_sqlqueue.queue.endings import Ending as Ending
    from dagster_sqlqueue.queue.hooks import EnqueueCall as EnqueueCall
    from dagster_sqlqueue.queue.hooks import EnqueueHooks as EnqueueHooks
    from dagster_sqlqueue.queue.insert import Enqueued as Enqueued
    from dagster_sqlqueue.queue.sql_queue import SqlQueue as SqlQueue
else:
    # What the tasks of Spark need of this package knows no driver.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "complete": ["Kept"],
            "endings": ["Ending"],
            "hooks": ["EnqueueCall", "EnqueueHooks"],
            "insert": ["Enqueued"],
            "sql_queue": ["SqlQueue"],
            "claim_request": ["MAX_BATCH"],
        },
    )

__all__ = [
    "MAX_BATCH",
    "Ending",
    "EnqueueCall",
    "EnqueueHooks",
    "Enqueued",
    "Kept",
    "SqlQueue",
]
