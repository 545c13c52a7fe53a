"""A job queue inside the SQL database a team already has, worked off by Dagster, analysed by Spark."""

from typing import TYPE_CHECKING

from dagster_sqlqueue.__about__ import __version__ as __version__
from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.consumer import AssignedSource as AssignedSource
    from dagster_sqlqueue.consumer import Consumer as Consumer
    from dagster_sqlqueue.consumer import DrainSummary as DrainSummary
    from dagster_sqlqueue.consumer import Manager as Manager
    from dagster_sqlqueue.consumer import WeightedConsumers as WeightedConsumers
    from dagster_sqlqueue.db.database import Database as Database
    from dagster_sqlqueue.errors import QueueError as QueueError
    from dagster_sqlqueue.model.backoff import Backoff as Backoff
    from dagster_sqlqueue.model.ids import stable_id as stable_id
    from dagster_sqlqueue.model.job import ClaimedJob as ClaimedJob
    from dagster_sqlqueue.model.job import Job as Job
    from dagster_sqlqueue.model.job import Mode as Mode
    from dagster_sqlqueue.model.job import NewJob as NewJob
    from dagster_sqlqueue.model.outcome import Cancel as Cancel
    from dagster_sqlqueue.model.outcome import Done as Done
    from dagster_sqlqueue.model.outcome import Hold as Hold
    from dagster_sqlqueue.model.outcome import Reject as Reject
    from dagster_sqlqueue.model.outcome import Retry as Retry
    from dagster_sqlqueue.model.outcome import Snooze as Snooze
    from dagster_sqlqueue.model.queue import PoisonPolicy as PoisonPolicy
    from dagster_sqlqueue.model.queue import QueueSettings as QueueSettings
    from dagster_sqlqueue.model.queue import QueueSpec as QueueSpec
    from dagster_sqlqueue.model.queue import RateLimit as RateLimit
    from dagster_sqlqueue.model.queue import Strategy as Strategy
    from dagster_sqlqueue.orchestration.component import SqlQueueComponent as SqlQueueComponent
    from dagster_sqlqueue.payload.redaction import Sensitive as Sensitive
    from dagster_sqlqueue.payload.versions import versioned as versioned
    from dagster_sqlqueue.queue import Ending as Ending
    from dagster_sqlqueue.queue import Enqueued as Enqueued
    from dagster_sqlqueue.queue import Kept as Kept
    from dagster_sqlqueue.queue import SqlQueue as SqlQueue
    from dagster_sqlqueue.queue.claim_filter import ClaimFilter as ClaimFilter
    from dagster_sqlqueue.queue.selection import JobRow as JobRow
    from dagster_sqlqueue.queue.selection import Selection as Selection
    from dagster_sqlqueue.queue.stats import QueueStats as QueueStats
    from dagster_sqlqueue.worker.handlers import handles as handles
else:
    # A worker of Spark's, which needs none of these, starts in a third of the time, and Dagster is there for its
    # component alone. `dg` finds that by looking at what this module says it has.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "consumer": ["AssignedSource", "Consumer", "DrainSummary", "Manager", "WeightedConsumers"],
            "db.database": ["Database"],
            "errors": ["QueueError"],
            "model.backoff": ["Backoff"],
            "model.ids": ["stable_id"],
            "model.job": ["ClaimedJob", "Job", "Mode", "NewJob"],
            "model.outcome": ["Cancel", "Done", "Hold", "Reject", "Retry", "Snooze"],
            "model.queue": ["PoisonPolicy", "QueueSettings", "QueueSpec", "RateLimit", "Strategy"],
            "orchestration.component": ["SqlQueueComponent"],
            "payload.redaction": ["Sensitive"],
            "payload.versions": ["versioned"],
            "queue": ["Ending", "Enqueued", "Kept", "SqlQueue"],
            "queue.claim_filter": ["ClaimFilter"],
            "queue.selection": ["JobRow", "Selection"],
            "queue.stats": ["QueueStats"],
            "worker.handlers": ["handles"],
        },
    )

__all__ = [
    "AssignedSource",
    "Backoff",
    "Cancel",
    "ClaimFilter",
    "ClaimedJob",
    "Consumer",
    "Database",
    "Done",
    "DrainSummary",
    "Ending",
    "Enqueued",
    "Hold",
    "Job",
    "JobRow",
    "Kept",
    "Manager",
    "Mode",
    "NewJob",
    "PoisonPolicy",
    "QueueError",
    "QueueSettings",
    "QueueSpec",
    "QueueStats",
    "RateLimit",
    "Reject",
    "Retry",
    "Selection",
    "Sensitive",
    "Snooze",
    "SqlQueue",
    "SqlQueueComponent",
    "Strategy",
    "WeightedConsumers",
    "__version__",
    "handles",
    "stable_id",
    "versioned",
]
