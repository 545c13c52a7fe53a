"""Jobs without the values of sensitive fields, for every command that shows jobs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from dagster_sqlqueue.model import DeadLetter, WaitingJob
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
