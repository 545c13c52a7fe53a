"""Verbs of people: read, take, do, review and give back tasks."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.executors import CallerConnection
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.outcome import Json
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.payload.serialization import result_text
from dagster_sqlqueue.people.model import Action, JobEvent, Stage, Task, check_name, check_reason, event_of, task_of
from dagster_sqlqueue.people.rules import check_flag, check_limit
from dagster_sqlqueue.people.transitions import MOST_JOBS, Jobs, Transitions
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.selection import delay_or_moment, job_id
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs

_MOST_LISTED = 10_000
_STAGES = (Stage.OPEN, Stage.ASSIGNED, Stage.IN_REVIEW)


class TaskVerbs(ServiceVerbs):
    """What people do with tasks.

    Args:
        queue: the queues of the schema.
    """

    def __init__(self, queue: SqlQueue) -> None:
        super().__init__(queue)
        self._transitions = Transitions(queue)

    def task(self, job: UUID | str) -> Task:
        """The task of a job, as it is now.

        Raises:
            InvalidInput: this is no job id.
            UnknownJob: there is no such job.
            DecisionRefused: the job is not people's.
        """
        (found,) = self._transitions.tasks([job_id(job)])
        return found

    def history(self, job: UUID | str) -> list[JobEvent]:
        """Who did what to a job, when and why, from the beginning; empty if it never was people's.

        Raises:
            InvalidInput: this is no job id.
            UnknownJob: there is no such job, live or ended, and nothing is known of it.
        """
        wanted = job_id(job)
        rows = self.database.run("job_history", {"id": wanted})
        if not rows:
            self.queue.job(wanted)
        return [event_of(row) for row in rows]

    def take(
        self,
        operator: str,
        queue: str,
        *,
        limit: int = 1,
        reason: str | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Take the next open tasks of a queue, the longest available first. Two who take at once never get the same.

        Args:
            operator: who takes them.
            queue: its name.
            limit: the most tasks, 1 to 1,000.
            reason: why, if there is something to say.
            connection: as for `assign`.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        parameters = {
            "operator": check_name("operator", operator),
            "queue": check_queue_name(queue),
            "limit": check_limit(limit, MOST_JOBS),
            "reason": check_reason(reason),
        }
        executor = self.database.within(connection) or self.database
        rows = executor.run("task_take", parameters)
        if not rows:
            self.queue.catalog.check_exists(queue, executor)
        return [task_of(row) for row in rows]

    def my_jobs(self, operator: str, *, queue: str | None = None, limit: int = 100) -> list[Task]:
        """The tasks assigned to an operator, and those submitted by it that wait for review; the longest available first.

        Args:
            operator: who.
            queue: only of this one; None: of all.
            limit: the most tasks, 1 to 10,000.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue.
        """
        parameters = {
            "operator": check_name("operator", operator),
            "queue": None if queue is None else check_queue_name(queue),
            "limit": check_limit(limit, _MOST_LISTED),
        }
        rows = self.database.run("tasks_of_operator", parameters)
        if queue is not None and not rows:
            self.queue.catalog.check_exists(queue)
        return [task_of(row) for row in rows]

    def tasks(self, queue: str, stage: Stage | str = Stage.OPEN, *, limit: int = 100) -> list[Task]:
        """The tasks of a queue that are in one stage, the longest available first.

        Args:
            queue: its name.
            stage: `open`, `assigned` or `in_review`.
            limit: the most tasks, 1 to 10,000.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue.
        """
        if stage not in _STAGES:
            raise InvalidInput(f"stage is {str(stage)!r}; it must be one of {', '.join(_STAGES)}")
        check_limit(limit, _MOST_LISTED)
        parameters = {"queue": check_queue_name(queue), "stage": str(stage), "limit": limit}
        rows = self.database.run("tasks_of_stage", parameters)
        if not rows:
            self.queue.catalog.check_exists(queue)
        return [task_of(row) for row in rows]

    def assign(
        self,
        jobs: Jobs,
        operator: str,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Assign tasks to an operator, whether they are open or assigned to another one.

        Args:
            jobs: their ids.
            operator: whose they are to be.
            by: who says so.
            reason: why, if there is something to say.
            revision: of the one task, as it was read; it is left if it has another one by now.
            connection: a psycopg or SQLAlchemy connection or an ORM session whose transaction the step joins: it is taken
                when that is committed. None: a transaction of its own.
        """
        details = {"assignee": check_name("operator", operator)}
        return self._transitions.step(
            jobs, Action.ASSIGN, by, reason, details=details, revision=revision, connection=connection
        )

    def unassign(
        self,
        jobs: Jobs,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Open tasks that are assigned again: anybody may take them. Arguments as for `assign`."""
        return self._transitions.step(jobs, Action.UNASSIGN, by, reason, revision=revision, connection=connection)

    def hold(
        self,
        jobs: Jobs,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Put tasks on hold without a date: they cannot be taken or submitted before they are resumed. Arguments as for
        `assign`.
        """
        return self._transitions.step(jobs, Action.HOLD, by, reason, revision=revision, connection=connection)

    def resume(
        self,
        jobs: Jobs,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Go on with tasks that are on hold. Arguments as for `assign`."""
        return self._transitions.step(jobs, Action.RESUME, by, reason, revision=revision, connection=connection)

    def reschedule(
        self,
        jobs: Jobs,
        until: datetime | timedelta | float,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Have tasks offered from another moment on; those that are assigned stay so.

        Args:
            jobs: their ids.
            until: the moment, with a time zone; or a timedelta or seconds from now. What has passed means now.
            by: who says so.
            reason: why, if there is something to say.
            revision: as for `assign`.
            connection: as for `assign`.
        """
        seconds, moment = delay_or_moment("until", until)

        def details(now: datetime) -> Mapping[str, Any]:
            later = now + timedelta(seconds=seconds or 0) if moment is None else max(moment, now)
            return {"until": later.isoformat()}

        return self._transitions.step(
            jobs, Action.RESCHEDULE, by, reason, details=details, revision=revision, connection=connection
        )

    def submit(
        self,
        jobs: Jobs,
        operator: str,
        result: Json = None,
        *,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Submit tasks as done. Their jobs end as succeeded, or wait for an approval.

        Args:
            jobs: their ids.
            operator: who did them: to whom they are assigned.
            result: JSON, of each of them.
            reason: what there is to say.
            revision: as for `assign`.
            connection: as for `assign`.
        """
        # As JSON has it: its names are texts, and can be brought into an order.
        text = result_text(result)
        details = {"result": None if text is None else json.loads(text)}
        return self._transitions.step(
            jobs, Action.SUBMIT, operator, reason, details=details, revision=revision, connection=connection
        )

    def approve(
        self,
        jobs: Jobs,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Approve what was done: the jobs end as succeeded, with the results of those who did them. Who did a task that
        needs four eyes cannot approve it. Arguments as for `assign`.
        """
        return self._transitions.step(jobs, Action.APPROVE, by, reason, revision=revision, connection=connection)

    def reject(
        self,
        jobs: Jobs,
        *,
        by: str,
        reason: str,
        reopen: bool = False,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Send what was done back, to those who did it.

        Args:
            jobs: their ids.
            by: who says so.
            reason: why: there has to be one.
            reopen: open them for anybody instead.
            revision: as for `assign`.
            connection: as for `assign`.
        """
        details = {"reopened": check_flag("reopen", reopen)}
        check_reason(reason, needed=True)
        return self._transitions.step(
            jobs, Action.REJECT, by, reason, details=details, revision=revision, connection=connection
        )

    def give_back(
        self,
        jobs: Jobs,
        *,
        by: str,
        reason: str | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Give jobs back to the automatic line: due now, with the attempts that they have left, and automatic whatever the
        queue's rule says. Arguments as for `assign`.
        """
        return self._transitions.step(jobs, Action.GIVE_BACK, by, reason, revision=revision, connection=connection)
