"""The launchpad's verb `show`: one job with its state, history and error, and how to redrive it."""

import json
from collections.abc import Iterator, Sequence

from dagster_sqlqueue.display import moment
from dagster_sqlqueue.followers import Followers
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.launchpad.config import ShowConfig
from dagster_sqlqueue.orchestration.launchpad.run_report import Report, table, when
from dagster_sqlqueue.orchestration.markdown import SHOWN, fenced
from dagster_sqlqueue.orchestration.page_links import redrive_config
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.people import HumanWork, JobEvent
from dagster_sqlqueue.people.redaction import discreet_events
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.redaction import discreet
from dagster_sqlqueue.queue.selection import JobRow
from dagster_sqlqueue.results import Results


def show(source: SqlQueue, config: ShowConfig, redrive: str = "", queues: Sequence[str] = ()) -> Report:
    """Shows one job, live or ended: state, times, attempts, keys, error, the steps of people. Without an id it lists the
    latest dead letters. Changes nothing.
    """
    # The docstring is the description in the UI; `redrive` is the name of the launchpad's job that redrives dead letters,
    # and `queues` are those of this job.
    if config.id is None:
        return _latest(source, queues)
    found = source.job(config.id.strip())
    (job,) = discreet(source, found.queue, [found])
    events = discreet_events(source, HumanWork(source).history(job.id))
    shown = {"job": markdown.table(["job", str(job.id)], _facts(source, job))}
    if not job.archived:
        shown["why_not_claimed"] = "\n".join(f"- {markdown.cell(line, 400)}" for line in _reasons(source, job))
    if job.error is not None:
        shown["error"] = fenced(job.error)
    if config.show_payloads:
        shown["payload"] = fenced(json_text.indented(job.payload), "json")
        if job.result is not None:
            shown["result"] = fenced(json_text.indented(job.result), "json")
    if events:
        rows = [_event(event, config.show_payloads) for event in events[-SHOWN:]]
        shown["what_people_did"] = table(["no", "when", "who", "what", "why", "details"], rows, len(events), "steps")
    if redrive and job.state in (ArchiveState.FAILED, ArchiveState.CANCELLED):
        again = redrive_config(redrive, job.queue, [str(job.id)], dry_run=False)
        shown["to_redrive_it"] = f"Launch `{redrive}` with\n\n{fenced(again, 'yaml')}"
    counts = {"attempt": job.attempt, "max_attempts": job.max_attempts, "lease_no": job.lease_no}
    said = f"job {job.id} of queue {job.queue} is {job.state}, attempt {job.attempt} of {job.max_attempts}"
    return Report(job.queue, said, counts, shown)


def _latest(source: SqlQueue, queues: Sequence[str]) -> Report:
    """List the latest dead letters of these queues, or of all of the schema."""
    names = queues or [each.name for each in source.queues()]
    found = [
        (letter, name) for name in names for letter in discreet(source, name, source.dead_letters(name, limit=SHOWN))
    ]
    found.sort(key=lambda one: one[0].finished_at, reverse=True)
    rows = [
        [letter.id, name, moment(letter.finished_at), f"{letter.attempt}/{letter.max_attempts}", letter.error or ""]
        for letter, name in found[:SHOWN]
    ]
    of = f"queue {names[0]}" if len(names) == 1 else "the queues"
    there = "the latest dead letters are listed" if found else "there are no dead letters"
    said = f"{of}: no job was named, and {there}; give the id of a job to show it"
    listed = table(["job", "queue", "ended", "attempts", "error"], rows, len(rows), "dead letters")
    return Report(
        names[0] if len(names) == 1 else None, said, {"dead_letters_shown": len(rows)}, {"dead_letters": listed}
    )


def _reasons(source: SqlQueue, job: JobRow) -> list[str]:
    found = source.explain(job.id)
    return [reason.text for reason in found.reasons] or [found.text]


def _facts(source: SqlQueue, job: JobRow) -> Iterator[tuple[str, object]]:
    yield "queue", job.queue
    yield "state", job.state + (", asked to end" if job.cancel_requested_at else "")
    yield "attempt", f"{job.attempt} of {job.max_attempts}"
    if job.state == LiveState.RUNNING and (progress := Results(source).outcome(job.id).progress):
        yield "progress", f"{progress.percent:g} % {progress.message or ''}".rstrip()
    yield "when", when(job)
    yield "run at", moment(job.run_at)
    yield "enqueued at", moment(job.created_at)
    if job.started_at:
        yield "last started at", f"{moment(job.started_at)} by {job.claimed_by or 'an unknown consumer'}"
    if job.finished_at:
        yield "ended at", moment(job.finished_at)
    yield "bucket, priority", f"{job.bucket}, {job.priority}"
    yield "lease number", job.lease_no
    if job.unique_key is not None:
        yield "unique key", f"{job.unique_key}{', until it is claimed' if job.unique_until_claim else ''}"
    if job.ordering_key is not None:
        yield "ordering key", job.ordering_key
    if job.tags:
        yield "tags", ", ".join(job.tags)
    if job.region != "local":
        yield "region", job.region
    if not job.archived and (followers := Followers(source).of(job.id)):
        yield "followed by", len(followers)


def _event(event: JobEvent, details: bool) -> list[object]:
    # A step's details may hold the job's result, which is shown like a payload.
    brought = json.dumps(dict(event.details)) if event.details else ""
    if not details and "result" in event.details:
        brought = json.dumps({**event.details, "result": "not shown"})
    return [event.no, moment(event.at), event.actor, event.action, event.reason or "", brought]
