"""Scheduled work: jobs enqueued by a cron expression or an interval, each tick once however many schedulers run.

A layer on top of the core's verbs, which do not know it.
"""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.schedules.model import CatchUp as CatchUp
    from dagster_sqlqueue.schedules.model import Schedule as Schedule
    from dagster_sqlqueue.schedules.scheduler import Scheduler as Scheduler
    from dagster_sqlqueue.schedules.schedules import Schedules as Schedules
    from dagster_sqlqueue.schedules.schedules import Ticked as Ticked
else:
    # The help of the command line needs the models alone, and no driver.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "model": ["CatchUp", "Schedule"],
            "scheduler": ["Scheduler"],
            "schedules": ["Schedules", "Ticked"],
        },
    )

__all__ = [
    "CatchUp",
    "Schedule",
    "Scheduler",
    "Schedules",
    "Ticked",
]
