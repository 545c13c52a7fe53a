"""Jobs without the values of sensitive fields, for whatever shows jobs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dagster_sqlqueue.model.job import DeadLetter, WaitingJob
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.payload.redaction import redacted_text, scrubbed, values_in
from dagster_sqlqueue.queue.selection import JobRow

if TYPE_CHECKING:
    from dagster_sqlqueue.queue.sql_queue import SqlQueue

Shown = TypeVar("Shown", WaitingJob, DeadLetter, JobRow)


def discreet(source: "SqlQueue", queue: str, jobs: Sequence[Shown]) -> list[Shown]:
    """Jobs of one queue, as they may be shown: payload and result redacted, the error without what the payload hides."""
    names = source.catalog.sensitive_names(queue) if jobs else frozenset()
    return [_redacted(job, names) for job in jobs] if names else list(jobs)


def _redacted(job: Shown, names: frozenset[str]) -> Shown:
    values = values_in(json_text.read(job.payload), names)
    shown = replace(
        job,
        payload=redacted_text(job.payload, names),
        error=None if job.error is None else scrubbed(job.error, values),
    )
    if isinstance(shown, JobRow) and shown.result is not None:
        return replace(shown, result=scrubbed(redacted_text(shown.result, names), values))
    return shown
