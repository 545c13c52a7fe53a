"""Transitions of tasks: lock them, decide, write them with their event, all of them or none."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import tenacity

from dagster_sqlqueue.db.executors import CallerConnection, Executor
from dagster_sqlqueue.errors import DecisionRefused, InvalidInput
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.people.model import Action, JobEvent, Stage, Task, TaskState, check_name, check_reason, task_of
from dagster_sqlqueue.people.state_machine import after, ended, refusal
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.job_admin import Completed
from dagster_sqlqueue.queue.selection import Decided, Selection, job_id

MOST_JOBS = 1_000
"""That one call decides about: it is one transaction."""

Jobs = UUID | str | Sequence[UUID | str]
"""One job's id, or several."""

Details = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""What a step brings; or what says so, given the database's time."""

_PATIENCE_SECONDS = 5.0
_NOTHING = "; nothing was changed"


class _Busy(DecisionRefused):
    """Some of the jobs were locked by another transaction for a moment."""


class Transitions:
    """Takes tasks from one state to the next.

    Args:
        queue: the queues of the schema.
    """

    def __init__(self, queue: SqlQueue) -> None:
        self._queue = queue

    def tasks(self, ids: Sequence[UUID], executor: Executor | None = None) -> list[Task]:
        """The tasks of these jobs, which all have to be of one queue.

        Raises:
            InvalidInput: they are of several queues.
            UnknownJob, DecisionRefused: a job does not exist, or is not people's.
        """
        tasks = [task_of(row) for row in (executor or self._queue.database).run("tasks_by_id", {"ids": list(ids)})]
        there = {task.id for task in tasks}
        for id in ids:
            if id not in there:
                job = self._queue.job(id, executor=executor)
                hint = "" if job.archived else "; hand it over, or adopt it if it is held"
                ended_so = "ended as" if job.archived else "is"
                raise DecisionRefused(_message(id, f"people have no task of it: it {ended_so} {job.state}{hint}"))
        if len(queues := {task.queue for task in tasks}) > 1:
            raise InvalidInput(
                f"the jobs are of the queues {', '.join(sorted(queues))}; decide about one queue at a time"
            )
        return tasks

    def step(
        self,
        jobs: Jobs,
        action: Action,
        actor: str,
        reason: str | None,
        *,
        details: Details | None = None,
        revision: int | None = None,
        connection: CallerConnection | None = None,
    ) -> list[Task]:
        """Take a step with these tasks, all of them or none; returns them as they are then, by their ids.

        Args:
            jobs: the ids; they are of one queue.
            action: the step.
            actor: who takes it.
            reason: why.
            details: what it brings; or what says so, given the database's time.
            revision: of the one task, when it was decided; a task that has another one by now is left.
            connection: the caller's, whose transaction it joins; None: a transaction of its own.

        Raises:
            InvalidInput, UnknownJob, DecisionRefused: nothing was changed.
        """
        check_name("operator" if action is Action.SUBMIT else "by", actor)
        reason = check_reason(reason)
        ids = _ids(jobs)
        if revision is not None and (not is_whole(revision, 0) or len(ids) != 1):
            raise InvalidInput(f"revision is {revision!r}; it is the number that one task had, and goes with one job")
        joined = self._queue.database.within(connection)
        before = self.tasks(ids, joined)

        def all_of_them(executor: Executor, changed: Sequence[UUID] = ids) -> list[Task]:
            if set(changed) != set(ids):
                raise _Busy(_message(next(iter(set(ids) - set(changed))), "somebody else is deciding about it"))
            rows = executor.run("task_lock", {"ids": list(ids)})
            brings = details(rows[0][-1]) if callable(details) and rows else details
            given = brings if isinstance(brings, Mapping) else {}
            tasks = [task_of(row) for row in rows]
            if missing := set(ids) - {task.id for task in tasks}:
                raise DecisionRefused(_message(min(missing), "its task ended meanwhile"))
            # What ends has been decided about: its job, which was held, has ended already.
            new = then if ending else [self._decided(task, action, actor, given, revision) for task in tasks]
            same = [(task.id, task.state) for task in tasks] == [(task.id, task.state) for task in before]
            if (ending and not same) or (not ending and any(map(ended, new))):
                raise DecisionRefused(
                    f"somebody else decided about one of these jobs meanwhile; read the task again{_NOTHING}"
                )
            write(executor, tasks, new, action, actor, reason, given)
            return [
                Task(old.id, old.queue, state, old.opened_at, old.payload, not ending)
                for old, state in zip(before, new, strict=True)
            ]

        static = {} if callable(details) or details is None else details
        then = [self._decided(task, action, actor, static, revision) for task in before]
        ending = ended(then[0])
        if any(ended(state) != ending for state in then):
            raise InvalidInput(
                f"some of these jobs have to be reviewed and some not; decide about them apart{_NOTHING}"
            )
        if ending:
            return self._end(before, then, all_of_them, connection)
        if joined is None:
            return self._queue.database.transact(all_of_them)
        with joined.atomic() as executor:
            return all_of_them(executor)

    def _end(
        self,
        tasks: Sequence[Task],
        then: Sequence[TaskState],
        also: Callable[[Executor, Sequence[UUID]], list[Task]],
        connection: CallerConnection | None,
    ) -> list[Task]:
        """End tasks with their jobs: both or none."""
        queue = tasks[0].queue
        found: list[Task] = []

        def and_then(executor: Executor, changed: Sequence[UUID]) -> None:
            found[:] = also(executor, changed)

        completed = [
            Completed(task.id, str(state.done_by), None if state.result is None else json.loads(state.result))
            for task, state in zip(tasks, then, strict=True)
        ]

        def once() -> Decided:
            if then[0].stage is Stage.GIVEN_BACK:
                given_back = Selection(ids=[task.id for task in tasks])
                return self._queue.release_held(queue, given_back, also=and_then, connection=connection)
            return self._queue.complete_held(queue, completed, also=and_then, connection=connection)

        decided = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Busy),
            wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.2),
            stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
            reraise=True,
        )(once)
        for job, reason in decided.skipped.items():
            raise DecisionRefused(_message(job, reason))
        return found

    def _decided(
        self, task: Task, action: Action, actor: str, details: Mapping[str, Any], revision: int | None
    ) -> TaskState:
        state = task.state
        if not task.held:
            raise DecisionRefused(_message(task.id, "somebody decided about the job past its task, which is void"))
        if revision not in (None, state.revision):
            raise DecisionRefused(
                _message(
                    task.id, f"it is at revision {state.revision}, and this was decided at {revision}; read it again"
                )
            )
        if why := refusal(state, action, actor, assignee=details.get("assignee")):
            raise DecisionRefused(_message(task.id, why))
        if action is Action.RESCHEDULE:
            # When that is, the database says; it changes nothing about whether it can be.
            details = {"until": state.available_at.isoformat(), **details}
        return after(
            state, JobEvent(task.id, state.revision + 1, task.queue, task.opened_at, actor, action, None, details)
        )


def write(
    executor: Executor,
    tasks: Sequence[Task],
    new: Sequence[TaskState],
    action: Action,
    actor: str,
    reason: str | None,
    details: Mapping[str, Any],
) -> None:
    """Write what a step makes of tasks that this transaction has locked."""
    parameters: dict[str, Any] = {
        "ids": [task.id for task in tasks],
        "revisions": [task.state.revision for task in tasks],
        "actor": actor,
        "action": str(action),
        "reason": reason,
        "details": json.dumps(dict(details)),
    }
    if all(ended(state) for state in new):
        written = executor.run("task_end", parameters)
    else:
        columns = {
            "stages": [str(state.stage) for state in new],
            "assignees": [state.assignee for state in new],
            "done_bys": [state.done_by for state in new],
            "results": [state.result for state in new],
            "on_holds": [state.on_hold for state in new],
            "available_ats": [state.available_at for state in new],
        }
        written = executor.run("task_step", {**parameters, **columns})
    if len(written) != len(tasks):
        raise DecisionRefused(
            f"somebody else decided about one of these jobs at the same moment; read the task again{_NOTHING}"
        )


def _ids(jobs: Jobs) -> list[UUID]:
    several = [jobs] if isinstance(jobs, UUID | str) else list(jobs)
    ids = list(dict.fromkeys(map(job_id, several)))
    if not 1 <= len(ids) <= MOST_JOBS:
        raise InvalidInput(
            f"{len(ids):,} jobs are named; one call decides about 1 to {MOST_JOBS:,}, all of them or none"
        )
    return ids


def _message(job: UUID, why: str) -> str:
    return f"job {job}: {why}{_NOTHING}"
