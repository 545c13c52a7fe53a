"""The commands that show jobs: `peek`, `list`, `show`, `explain`, `dead`."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from dagster_sqlqueue import display, followers, results
from dagster_sqlqueue.cli.commands.followers import followed_by
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Limit, Queue
from dagster_sqlqueue.cli.input.selection import filtered
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import DeadLetter, WaitingJob
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.queue.redaction import discreet
from dagster_sqlqueue.queue.selection import ARCHIVE_STATES, LIVE_STATES, Selection


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(peek)
    command(app, "list")(list_jobs)
    command(app)(show)
    command(app)(explain)
    command(app)(dead)


def peek(session: Session, queue: Queue, limit: Limit = "20") -> None:
    """List the jobs that would be claimed next, without claiming them.

    They are in the order of claims: by priority, then by due time. A running job is due when its lease expires, unless
    its consumer extends the lease by a heartbeat.

    Example: sqlqueue peek orders --limit 5
    """
    most = options.limit(limit)
    with session.queue() as source:
        jobs = discreet(source, queue, source.peek(queue, most))
    if session.as_json:
        render.emit_json([_job(job) for job in jobs])
        return
    if not jobs:
        render.say(f"no job of queue {queue} waits to be claimed")
        return
    render.table(
        ["id", "bucket", "prio", "state", "due", "tries", "keys", "payload"],
        [
            [
                job.id,
                job.bucket,
                job.priority,
                job.state,
                display.moment(job.available_at),
                f"{job.attempt}/{job.max_attempts}",
                views.keys(job),
                display.shortened(job.payload, 60),
            ]
            for job in jobs
        ],
        right=["bucket", "prio"],
    )


@filtered
def list_jobs(
    session: Session,
    queue: Queue,
    selection: Selection | None,
    limit: Limit = "50",
    archived: Annotated[
        bool,
        typer.Option(
            "--archived", show_default=False, help="List jobs that ended, the latest first. Default: live jobs."
        ),
    ] = False,
) -> None:
    """List the jobs of a queue: all of them, or those that match every condition.

    Live jobs are in the order of claims, by priority, then by due time; those that cannot be claimed yet (held, or waiting
    for their key) come last. With --archived, or a state of ended jobs, jobs that ended are listed, the latest first.

    Examples: sqlqueue list orders --state held

    sqlqueue list orders --state failed --error timeout --since 2026-01-31T08:00:00Z
    """
    state = selection.state if selection else None
    if archived and state in LIVE_STATES:
        raise InvalidInput(f"--archived lists jobs that ended, and {state} is a state of live ones; give one of them")
    ended = archived or state in ARCHIVE_STATES
    most = options.limit(limit)
    with session.queue() as source:
        found = discreet(source, queue, source.jobs(queue, selection, limit=most, archived=ended))
    if session.as_json:
        render.emit_json([views.job_json(job) for job in found])
        return
    if not found:
        matching = "matching " if selection else ""
        hint = "" if ended else "; list those that ended with --archived"
        render.say(f"queue {queue} has no {matching}{'ended' if ended else 'live'} jobs{hint}")
        return
    views.job_table(found)
    if len(found) == most:
        render.say(f"(the first {most:,}; --limit shows more)")


def show(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id, as shown by list and peek.")],
) -> None:
    """Show everything about one job, live or ended: state, progress, times, attempts, keys, error, payload, result.

    Example: sqlqueue show 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    with session.queue() as source:
        found = source.job(options.job_id("the job", job))
        (found,) = discreet(source, found.queue, [found])
        following = followers.Followers(source).of(found.id)
        progress = results.Results(source).outcome(found.id).progress if found.state == LiveState.RUNNING else None
    if session.as_json:
        more = {"followers": [asdict(one) for one in following], "progress": views.progress_json(progress)}
        render.emit_json({**views.job_json(found), **more})
        return
    render.say(f"job {found.id}")
    rows = list(views.job_rows(found, progress))
    render.pairs([*rows, ("followed by", followed_by(following))] if following else rows)


def explain(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id, as shown by list and peek.")],
) -> None:
    """Say why a job is not claimed: scheduled, paused, held, leased, behind its key, at a limit, or behind other jobs.

    Example: sqlqueue explain 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    with session.queue() as source:
        found = source.explain(options.job_id("the job", job))
        names = source.catalog.sensitive_names(found.queue)
        error = found.error
        if names and error is not None:
            (shown,) = discreet(source, found.queue, [source.job(found.id)])
            error = shown.error
    if session.as_json:
        reasons = [reason._asdict() for reason in found.reasons]
        own = {"id": found.id, "queue": found.queue, "state": found.state, "claimable": found.claimable}
        render.emit_json({**own, "reasons": reasons, "error": error})
        return
    render.say(f"job {found.id} of queue {found.queue} is {found.state}")
    for reason in found.reasons:
        render.say(display.printable(reason.text))
    if not found.reasons:
        render.say(found.text)
    if error is not None:
        render.say(Text(display.printable(error.rstrip(), lines=True), style="red"))


def dead(
    session: Session,
    queue: Queue,
    limit: Limit = "20",
    full: Annotated[
        bool, typer.Option("--full", help="Show the whole error and payload of each, not one line.")
    ] = False,
) -> None:
    """List the dead letters with their errors, the latest first.

    A dead letter is a job that used up its attempts, or was rejected.

    Example: sqlqueue dead orders --full
    """
    most = options.limit(limit)
    with session.queue() as source:
        source.settings(queue)
        letters = discreet(source, queue, source.dead_letters(queue, most))
    if session.as_json:
        render.emit_json([_job(letter) for letter in letters])
        return
    if not letters:
        render.say(f"queue {queue} has no dead letters")
        return
    if full:
        for letter in letters:
            _in_full(letter)
        return
    render.table(
        ["id", "finished", "tries", "keys", "error", "payload"],
        [
            [
                letter.id,
                display.moment(letter.finished_at),
                f"{letter.attempt}/{letter.max_attempts}",
                views.keys(letter),
                Text(display.shortened(letter.error or "", 80), style="red"),
                display.shortened(letter.payload, 40),
            ]
            for letter in letters
        ],
    )


def _in_full(letter: DeadLetter) -> None:
    render.say(Text(f"{letter.id}  {display.moment(letter.finished_at)}", style="bold"))
    attempt = f"attempt {letter.attempt} of {letter.max_attempts}"
    render.say(f"{attempt}  bucket {letter.bucket}  {views.keys(letter)}".rstrip())
    render.say(f"payload {display.printable(letter.payload)}")
    render.say(Text(display.printable((letter.error or "no error was stored").rstrip(), lines=True), style="red"))
    render.say()


def _job(job: WaitingJob | DeadLetter) -> dict[str, Any]:
    return {**asdict(job), "payload": json_text.read(job.payload)}
