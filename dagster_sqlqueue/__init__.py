"""A job queue inside the SQL database a team already has, worked off by Dagster, analysed by Spark."""

import importlib
from typing import TYPE_CHECKING

from dagster_sqlqueue.__about__ import __version__ as __version__

if TYPE_CHECKING:
    from dagster_sqlqueue.consumer import Consumer as Consumer
    from dagster_sqlqueue.database import Database as Database
    from dagster_sqlqueue.errors import QueueError as QueueError
    from dagster_sqlqueue.filters import ClaimFilter as ClaimFilter
    from dagster_sqlqueue.model import Job as Job
    from dagster_sqlqueue.model import Mode as Mode
    from dagster_sqlqueue.model import NewJob as NewJob
    from dagster_sqlqueue.orchestration.component import SqlQueueComponent as SqlQueueComponent
    from dagster_sqlqueue.outcomes import Cancel as Cancel
    from dagster_sqlqueue.outcomes import Done as Done
    from dagster_sqlqueue.outcomes import Hold as Hold
    from dagster_sqlqueue.outcomes import Reject as Reject
    from dagster_sqlqueue.outcomes import Retry as Retry
    from dagster_sqlqueue.outcomes import Snooze as Snooze
    from dagster_sqlqueue.queue import SqlQueue as SqlQueue
    from dagster_sqlqueue.sensitive import Sensitive as Sensitive
    from dagster_sqlqueue.settings import Backoff as Backoff
    from dagster_sqlqueue.settings import PoisonPolicy as PoisonPolicy
    from dagster_sqlqueue.settings import QueueSpec as QueueSpec
    from dagster_sqlqueue.settings import RateLimit as RateLimit
    from dagster_sqlqueue.settings import Strategy as Strategy
    from dagster_sqlqueue.settling import DrainSummary as DrainSummary
    from dagster_sqlqueue.versions import versioned as versioned
    from dagster_sqlqueue.worker.declaring import handles as handles
else:
    # Each is imported when somebody asks for it: a worker of Spark's, which needs none of them, starts in a third of the
    # time, and Dagster is there for its component alone. `dg` finds that by looking at what this module says it has.
    _MODULES = {
        "consumer": ["Consumer"],
        "database": ["Database"],
        "errors": ["QueueError"],
        "filters": ["ClaimFilter"],
        "model": ["Job", "Mode", "NewJob"],
        "orchestration.component": ["SqlQueueComponent"],
        "outcomes": ["Cancel", "Done", "Hold", "Reject", "Retry", "Snooze"],
        "queue": ["SqlQueue"],
        "sensitive": ["Sensitive"],
        "settings": ["Backoff", "PoisonPolicy", "QueueSpec", "RateLimit", "Strategy"],
        "settling": ["DrainSummary"],
        "versions": ["versioned"],
        "worker.declaring": ["handles"],
    }
    _PLACES = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *_PLACES})
