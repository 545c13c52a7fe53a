"""`sqlqueue enqueue`: one job from the command line, or many from standard input."""

import sys
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer
from uuid_utils.compat import uuid7

from dagster_sqlqueue.cli import options, render
from dagster_sqlqueue.cli.codes import Code
from dagster_sqlqueue.cli.lines import Lines, parsed, progress, say_rejected
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model import NewJob
from dagster_sqlqueue.payloads import AnyObject as AnyObject
from dagster_sqlqueue.putting import Enqueued, OnConflict
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.settings import QueueSpec

_NOTHING = "; nothing was enqueued"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, panel="Put in")(enqueue)


def enqueue(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")],
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON",
            show_default=False,
            help="One JSON object; - or nothing for many on standard input, one a line.",
        ),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="0..9", help="Higher runs first.")] = 0,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            show_default=False,
            help="When it becomes due, as 2026-01-31T08:00:00Z or +02:00; else now.",
        ),
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", show_default=False, help="At most one live job of the queue has it; a second is left out."
        ),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Jobs with the same key share a bucket; in an ordered queue they run one after another.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", show_default=False, help="A word to find the job by; may be given several times."),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="The region whose buckets take it; else any bucket."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default=False, help="How long it may run, 90 or 5min, instead of the queue's timeout."
        ),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help="Runs it gets, instead of the queue's number."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            show_default=False,
            help="A waiting job with the same unique key takes the content of this one, instead of leaving this one out.",
        ),
    ] = False,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            show_default=False,
            help="Leave out the lines of standard input that are not usable, and name them (exit code 6); else one bad line"
            " refuses them all.",
        ),
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="UUID", show_default=False, help="Its id, to be able to send it again: it lands once."
        ),
    ] = None,
) -> None:
    """Put one job on a queue, or many from standard input.

    Many are one transaction: all of them are enqueued, or none if one line is refused. The options hold for each of
    them.

    The payload is taken as it is; whether it fits the queue's own model shows when a consumer reads it.

    Examples: sqlqueue enqueue orders '{"order": 1}' --priority 9 --tag eu

    sqlqueue enqueue orders - < orders.jsonl
    """
    settings: dict[str, Any] = {
        "priority": priority,
        "run_at": None if run_at is None else options.moment("--run-at", run_at),
        "unique_key": unique_key,
        "ordering_key": ordering_key,
        "tags": tuple(tag or ()),
        "region": region,
        "timeout_seconds": None if timeout is None else options.seconds("--timeout", timeout),
        "max_attempts": None if max_attempts is None else options.whole("--max-attempts", max_attempts),
        "id": None if job_id is None else options.job_id("--id", job_id),
    }
    spec = QueueSpec(queue, AnyObject)
    if payload is None and sys.stdin.isatty():
        raise InvalidInput("no payload: give a JSON object, or - and the objects on standard input, one a line")
    on_conflict: OnConflict = "replace" if replace else "ignore"
    if payload not in (None, "-"):
        if skip_bad:
            raise InvalidInput("--skip-bad is about the lines of standard input, and a payload was given")
        own = settings["id"] or uuid7()
        job = NewJob(parsed(payload, "the payload", _NOTHING), **{**settings, "id": own})
        with session.queue() as target:
            try:
                made = target.enqueue(spec, job, on_conflict=on_conflict)
            except InvalidInput as error:
                raise InvalidInput(f"{str(error).removeprefix('row 0: ')}; nothing was enqueued") from None
        _tell(session, queue, Enqueued(int(made == own), int(made is None), int(made not in (None, own))), made)
        return
    only = next(
        (f"--{name.replace('_', '-')} names one job" for name in ("id", "unique_key") if settings[name] is not None),
        None,
    )
    with session.queue() as target, progress("jobs") as advance:
        lines = Lines(lambda found: NewJob(found, **settings), _NOTHING, advance, skip_bad=skip_bad, only=only)
        done = _from_lines(target, spec, lines, on_conflict)
    _tell(session, queue, done)


def _from_lines(
    queue: SqlQueue, spec: QueueSpec[AnyObject], lines: "Lines[NewJob[AnyObject]]", on_conflict: OnConflict
) -> Enqueued:
    try:
        done = queue.enqueue_many(spec, lines, on_conflict=on_conflict, on_bad_row=lines.on_bad_row)
    except InvalidInput as error:
        raise InvalidInput(lines.with_line(str(error))) from None
    rejected = lines.with_lines(done.rejected)
    if not (done.inserted or done.duplicates or done.replaced or rejected):
        raise InvalidInput("standard input held no payload: write one JSON object a line")
    return Enqueued(done.inserted, done.duplicates, done.replaced, rejected)


def _tell(session: Session, queue: str, done: Enqueued, job_id: UUID | None = None) -> None:
    if session.as_json:
        rejected = [{"line": bad.row, "error": bad.error} for bad in done.rejected]
        found = {"queue": queue, **asdict(done), "rejected": rejected}
        render.emit_json({**found, "id": job_id} if job_id else found)
    elif job_id:
        render.say(f"enqueued {job_id} on {queue}{', in place of what it was' if done.replaced else ''}")
    else:
        _say(queue, done)
    if done.rejected:
        raise typer.Exit(Code.PARTLY)


def _say(queue: str, done: Enqueued) -> None:
    replaced = f"; {done.replaced:,} replaced what waited under their unique keys" if done.replaced else ""
    left_out = f"; {done.duplicates:,} left out: a live job has the same unique key or id" if done.duplicates else ""
    refused = f"; {len(done.rejected):,} refused" if done.rejected else ""
    jobs = f"{done.inserted:,} {'job' if done.inserted == 1 else 'jobs'}"
    render.say(f"enqueued {jobs} on {queue}{replaced}{left_out}{refused}")
    say_rejected(done.rejected)
