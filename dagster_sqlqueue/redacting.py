"""Jobs without the values of sensitive fields, for whatever shows jobs."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from dagster_sqlqueue.errors import UnknownJob
from dagster_sqlqueue.model import DeadLetter, WaitingJob
from dagster_sqlqueue.people import JobEvent, Task
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schedules import Schedule
from dagster_sqlqueue.selection import JobRow
from dagster_sqlqueue.sensitive import redacted, redacted_text, scrubbed, values_in

Shown = TypeVar("Shown", WaitingJob, DeadLetter, JobRow)


def discreet(source: SqlQueue, queue: str, jobs: Sequence[Shown]) -> list[Shown]:
    """Jobs of one queue, as they may be shown: payload and result redacted, the error without what the payload hides."""
    names = source.sensitive_names(queue) if jobs else frozenset()
    return [_redacted(job, names) for job in jobs] if names else list(jobs)


def discreet_schedule(source: SqlQueue, schedule: Schedule) -> Schedule:
    """A schedule, as it may be shown: the payload of its jobs redacted, the error without what the payload hides."""
    names = source.sensitive_names(schedule.queue)
    error = schedule.error and scrubbed(schedule.error, values_in(schedule.payload, names))
    return replace(schedule, payload=redacted(schedule.payload, names), error=error)


def discreet_tasks(source: SqlQueue, tasks: Sequence[Task]) -> list[Task]:
    """Tasks of people, as they may be shown: payload and result redacted."""
    names = {queue: source.sensitive_names(queue) for queue in {task.queue for task in tasks}}
    return [_redacted_task(task, names[task.queue]) if names[task.queue] else task for task in tasks]


def discreet_events(source: SqlQueue, events: Sequence[JobEvent]) -> list[JobEvent]:
    """A job's history, as it may be shown: results redacted, nothing in it that its payload hides."""
    names = source.sensitive_names(events[0].queue) if events else frozenset()
    if not names:
        return list(events)
    values: set[str] = set()
    with contextlib.suppress(UnknownJob):
        values = values_in(json.loads(source.job(events[0].job_id).payload), names)
    return [
        replace(
            event,
            reason=event.reason and scrubbed(event.reason, values),
            details=json.loads(scrubbed(json.dumps(redacted(event.details, names), ensure_ascii=False), values)),
        )
        for event in events
    ]


def _redacted_task(task: Task, names: frozenset[str]) -> Task:
    values = values_in(json.loads(task.payload), names) if task.payload else set()
    result = task.state.result and scrubbed(redacted_text(task.state.result, names), values)
    payload = task.payload and redacted_text(task.payload, names)
    return replace(task, payload=payload, state=replace(task.state, result=result))


def _redacted(job: Shown, names: frozenset[str]) -> Shown:
    values = values_in(json.loads(job.payload), names)
    shown = replace(
        job,
        payload=redacted_text(job.payload, names),
        error=None if job.error is None else scrubbed(job.error, values),
    )
    if isinstance(shown, JobRow) and shown.result is not None:
        return replace(shown, result=scrubbed(redacted_text(shown.result, names), values))
    return shown
