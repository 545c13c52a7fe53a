"""The command that waits for a job: `wait`."""

from typing import Annotated

import typer
from rich.text import Text

from dagster_sqlqueue import display, results
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.queue.redaction import discreet
from dagster_sqlqueue.results.model import JobOutcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(wait)


def wait(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id, as printed by enqueue.")],
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="How long to wait: 90s, 5m. Default: no limit."),
    ] = None,
) -> None:
    """Wait until a job has ended, and show its result or error.

    The exit code is 0 if it succeeded, 8 if it failed or was cancelled, and 9 if it did not end in time; it is then still
    on the queue. With --json, everything about the job is printed, as by `show --json`.

    Example: sqlqueue wait 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --timeout 5m
    """
    id = options.job_id("the job", job)
    seconds = options.kept("--timeout", timeout, None, options.seconds)
    with session.queue() as source, results.Results(source) as waiting:
        outcome = waiting.wait(id, timeout_seconds=seconds)
        found = source.job(id)
        (found,) = discreet(source, found.queue, [found])
    if session.as_json:
        render.emit_json(views.job_json(found))
    else:
        render.say(f"job {found.id} {_ended(outcome)}")
        if found.result is not None:
            render.say(json_text.indented(found.result))
        if found.error is not None and not outcome.succeeded:
            render.say(Text(display.printable(found.error.rstrip(), lines=True), style="red"))
    if not outcome.succeeded:
        raise typer.Exit(Code.NOT_SUCCEEDED)


def _ended(outcome: JobOutcome) -> str:
    when = f", {display.moment(outcome.finished_at)}" if outcome.finished_at else ""
    return f"{'was ' if outcome.state == ArchiveState.CANCELLED else ''}{outcome.state}{when}"
