"""Human work: jobs that people take, do, review and give back, with every step kept, beside those that run by themselves."""

from dagster_sqlqueue.people.human_work import HumanWork as HumanWork
from dagster_sqlqueue.people.model import Action as Action
from dagster_sqlqueue.people.model import AutomationRule as AutomationRule
from dagster_sqlqueue.people.model import JobEvent as JobEvent
from dagster_sqlqueue.people.model import Stage as Stage
from dagster_sqlqueue.people.model import Task as Task
from dagster_sqlqueue.people.model import TaskState as TaskState
from dagster_sqlqueue.people.state_machine import replay as replay
