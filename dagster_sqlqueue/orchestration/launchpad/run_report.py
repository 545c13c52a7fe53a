"""The report of a launchpad job: on its run's page, and on the queue's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import dagster as dg

from dagster_sqlqueue import display
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.assets import asset_key_among
from dagster_sqlqueue.orchestration.markdown import SHOWN
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.redaction import discreet
from dagster_sqlqueue.queue.selection import JobRow

_LONG = 200


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a launchpad job.

    Attributes:
        queue: the queue of the decision; None: no queue in particular.
        said: the result in a sentence.
        counts: numbers of jobs, by name.
        shown: Markdown, by name.
        changed: whether anything was changed: then the queue's page shows the report.
    """

    queue: str | None
    said: str
    counts: Mapping[str, int] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    changed: bool = False


def report_output(
    context: dg.OpExecutionContext, report: Report, asset_keys: Mapping[str, dg.AssetKey]
) -> dg.Output[None]:
    """Report in the run's log, in the metadata of its output, and, if something was changed, on the queue's page."""
    context.log.info("%s", report.said)
    shown = {name: dg.MetadataValue.md(text) for name, text in report.shown.items()}
    if report.changed and report.queue is not None:
        key = asset_key_among(asset_keys, report.queue)
        # Without the counts: on the queue's page each would be one more plot beside those of its statistics.
        context.log_event(dg.AssetObservation(key, description=report.said, metadata={"result": report.said, **shown}))
    metadata: dict[str, Any] = {"result": report.said, "changed": report.changed, **report.counts, **shown}
    if report.queue is not None:
        metadata["queue_name"] = report.queue
    return dg.Output(None, metadata=metadata)


def job_table(
    source: SqlQueue, queue: str, jobs: Sequence[JobRow], outcomes: Mapping[UUID, str], *, payloads: bool
) -> str:
    """List the first jobs of a queue as they were found, a line each, with the outcome of the verb."""
    more = ["payload"] if payloads else []
    rows = [
        [
            job.id,
            job.state,
            job.priority,
            when(job),
            f"{job.attempt}/{job.max_attempts}",
            keys(job),
            job.error or "",
            outcomes.get(job.id, "was gone by then"),
            *([job.payload] if payloads else []),
        ]
        for job in discreet(source, queue, jobs[:SHOWN])
    ]
    head = ["job", "was", "priority", "when", "attempts", "keys and tags", "error", "outcome", *more]
    return table(head, rows, len(jobs), "jobs")


def skipped_table(skipped: Mapping[UUID, str]) -> str:
    """List the jobs that were left unchanged, with the reasons."""
    return table(["job", "left unchanged, because"], list(skipped.items())[:SHOWN], len(skipped), "jobs")


def table(head: Sequence[str], rows: Sequence[Sequence[object]], total: int, what: str) -> str:
    """Write a table of the first rows, with the total below."""
    if not rows:
        return f"There are no {what}."
    return markdown.table(head, rows, _LONG) + markdown.first_of(total, what)


def when(job: JobRow) -> str:
    """Describe when a job is due, or what it waits for, or when it ended."""
    if job.finished_at:
        return f"ended {display.moment(job.finished_at)}"
    if job.waits_for_turn:
        return "after others of its key"
    if job.available_at is None:
        return "when it is released"
    return f"{'lease ends' if job.state == 'running' else 'due'} {display.moment(job.available_at)}"


def keys(job: JobRow) -> str:
    """List the keys of a job, with their names, and its tags."""
    named = {"unique": job.unique_key, "order": job.ordering_key}
    words = [f"{name} {key}" for name, key in named.items() if key is not None]
    return ", ".join([*words, *(f"#{tag}" for tag in job.tags)])


def jobs(number: int, kind: str = "") -> str:
    """Write a number of jobs."""
    return f"{number:,} {kind}{'job' if number == 1 else 'jobs'}"
