"""Human work: jobs that people take, do, review and give back, with every step kept, beside those that run by themselves."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.people.human_work import HumanWork as HumanWork
    from dagster_sqlqueue.people.model import Action as Action
    from dagster_sqlqueue.people.model import AutomationRule as AutomationRule
    from dagster_sqlqueue.people.model import JobEvent as JobEvent
    from dagster_sqlqueue.people.model import Stage as Stage
    from dagster_sqlqueue.people.model import Task as Task
    from dagster_sqlqueue.people.model import TaskState as TaskState
    from dagster_sqlqueue.people.state_machine import replay as replay
else:
    # The help of the command line needs the models alone, and no driver.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "human_work": ["HumanWork"],
            "model": ["Action", "AutomationRule", "JobEvent", "Stage", "Task", "TaskState"],
            "state_machine": ["replay"],
        },
    )

__all__ = [
    "Action",
    "AutomationRule",
    "HumanWork",
    "JobEvent",
    "Stage",
    "Task",
    "TaskState",
    "replay",
]
