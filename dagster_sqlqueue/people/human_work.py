"""`HumanWork`: the work of people in one schema, with the verbs of tasks and of the rules by which jobs become tasks."""

from dagster_sqlqueue.people.rules import RuleVerbs
from dagster_sqlqueue.people.tasks import TaskVerbs


class HumanWork(TaskVerbs, RuleVerbs):
    """The work of people in the queues of one schema: jobs that are held until a person has done them.

    The verbs that take `jobs` decide about one job or several of one queue in one transaction, all of them or none, and note
    each step in the job's history. All of them raise:

    - `InvalidInput`: an argument is not usable;
    - `UnknownJob`: there is no such job;
    - `DecisionRefused`: it does not fit what has become of a task, or who did the work; or its `revision` is not the one
      that was given with the decision.

    Nothing was changed then.

    Args:
        queue: the queues of the schema.
    """
