"""The commands that look: `peek`, `stats`, `dead`."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from dagster_sqlqueue.cli import render
from dagster_sqlqueue.cli.options import Limit, Queue
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.model import DeadLetter, WaitingJob
from dagster_sqlqueue.queue import SqlQueue

_CAP = 10_000
_HOUR = 3600.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, panel="Look")(peek)
    command(app, panel="Look")(stats)
    command(app, panel="Look")(dead)


def peek(session: Session, queue: Queue, limit: Limit = 20) -> None:
    """Show the jobs that would be claimed next, without claiming them.

    In the order of a claim: by priority, then by the moment they are due. For a running job that moment is the end of
    its lease: if its consumer falls silent, the job is due again then.
    """
    with session.queue() as source:
        jobs = source.peek(queue, limit)
    if session.as_json:
        render.emit_json([_job(job) for job in jobs])
        return
    if not jobs:
        render.say(f"queue {queue} is empty")
        return
    render.table(
        ["id", "bucket", "priority", "state", "due", "attempt", "keys", "payload"],
        [
            [
                job.id,
                job.bucket,
                job.priority,
                job.state,
                render.moment(job.available_at),
                f"{job.attempt}/{job.max_attempts}",
                _keys(job),
                render.shortened(job.payload, 60),
            ]
            for job in jobs
        ],
        right=["bucket", "priority"],
    )


def stats(
    session: Session,
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", show_default=False, help="One queue; else all of them.")
    ] = None,
) -> None:
    """Show how much each queue holds, how late it is, and what became of its jobs in the last hour.

    Figures that end in + were counted up to that number only, so that a look at a long queue stays cheap.
    """
    with session.queue() as source:
        names = [source.settings(queue).name] if queue else [settings.name for settings in source.queues()]
        found = [_stats(source, name) for name in names]
    if session.as_json:
        render.emit_json(found)
        return
    if not found:
        render.say("there is no queue yet; make one with: sqlqueue create NAME")
        return
    shown = ["ready", "running", "scheduled", "held"]
    render.table(
        ["queue", *shown, "oldest ready", "next due", "succeeded/h", "failed/h", "cancelled/h", "dead letters"],
        [
            [
                row["queue"],
                *(render.count(row[name], _CAP) for name in shown),
                render.duration(row["oldest_ready_seconds"]),
                "–" if row["next_due_seconds"] is None else f"in {render.duration(row['next_due_seconds'])}",
                *(f"{row['last_hour'][end]:,}" for end in ("succeeded", "failed", "cancelled")),
                render.count(row["dead_letters"], _CAP),
            ]
            for row in found
        ],
        right=[*shown, "oldest ready", "next due", "succeeded/h", "failed/h", "cancelled/h", "dead letters"],
    )


def dead(
    session: Session,
    queue: Queue,
    limit: Limit = 20,
    full: Annotated[bool, typer.Option("--full", help="The whole error and payload of each, not one line.")] = False,
) -> None:
    """Show the dead letters: jobs that used up their attempts or were rejected, the latest first, with their errors."""
    with session.queue() as source:
        source.settings(queue)
        letters = source.dead_letters(queue, limit)
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
        ["id", "finished", "attempt", "keys", "error", "payload"],
        [
            [
                letter.id,
                render.moment(letter.finished_at),
                f"{letter.attempt}/{letter.max_attempts}",
                _keys(letter),
                Text(render.shortened(letter.error or "", 80), style="red"),
                render.shortened(letter.payload, 40),
            ]
            for letter in letters
        ],
    )
    return


def _stats(source: SqlQueue, name: str) -> dict[str, Any]:
    depth = source.depth(name, cap=_CAP)
    oldest, upcoming, dead_letters = source.database.run("stats", {"queue": name, "cap": _CAP})[0]
    ended = source.archived(name, since_seconds=_HOUR)
    return {
        "queue": name,
        "ready": depth.ready,
        "running": depth.running,
        "scheduled": depth.scheduled,
        "held": depth.held,
        "counted_up_to": _CAP,
        "oldest_ready_seconds": oldest,
        "next_due_seconds": upcoming,
        "last_hour": {state: ended.get(state, 0) for state in ("succeeded", "failed", "cancelled")},
        "dead_letters": dead_letters,
    }


def _in_full(letter: DeadLetter) -> None:
    render.say(Text(f"{letter.id}  {render.moment(letter.finished_at)}", style="bold"))
    render.say(f"attempt {letter.attempt} of {letter.max_attempts}  bucket {letter.bucket}  {_keys(letter)}".rstrip())
    render.say(f"payload {render.printable(letter.payload)}")
    render.say(Text(render.printable((letter.error or "no error was kept").rstrip(), lines=True), style="red"))
    render.say()


def _job(job: WaitingJob | DeadLetter) -> dict[str, Any]:
    return {**asdict(job), "payload": json.loads(job.payload)}


def _keys(job: WaitingJob | DeadLetter) -> str:
    named = {"unique": job.unique_key, "order": job.ordering_key}
    return render.printable(", ".join(f"{name} {key}" for name, key in named.items() if key is not None))
