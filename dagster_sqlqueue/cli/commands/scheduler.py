"""`sqlqueue schedule run`: a scheduler in the foreground, or a single pass."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_sqlqueue import display, schedules
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session
from dagster_sqlqueue.cli.signals import stopped_by_signals
from dagster_sqlqueue.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_sqlqueue.schedules import Schedules, Ticked

_POLL_SECONDS = 1.0


def run(
    session: Session,
    once: Annotated[
        bool, typer.Option("--once", show_default=False, help="Enqueue the ticks that are due now, then exit.")
    ] = False,
    poll: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help=f"How long until a changed schedule is noticed, at most. Default: {_POLL_SECONDS:g}.",
        ),
    ] = None,
) -> None:
    """Run a scheduler until SIGTERM or Ctrl-C: enqueue the ticks of schedules when they are due.

    Run any number of them, also on several machines: each tick is enqueued once, by the database's clock. If the database
    becomes unavailable, the scheduler waits for it. With --once, exit code 6 means that schedules were paused because
    they cannot be used.

    Examples: sqlqueue schedule run

    sqlqueue schedule run --once
    """
    seconds = options.kept("--poll", poll, _POLL_SECONDS, options.seconds)
    if once and poll is not None:
        raise InvalidInput("--poll has no effect with a single pass, and --once was given")
    with session.queue() as source:
        found = schedules.Schedules(source)
        if once:
            _tick_once(session, found)
            return
        scheduler = schedules.Scheduler(
            found, poll_seconds=seconds, notify=_emit_line if session.as_json else _say_ticked
        )
        with stopped_by_signals() as (stopping, received), ThreadPoolExecutor(1) as pool:
            pool.submit(scheduler.run, stopping).result()
    if signal.SIGINT in received:
        raise typer.Exit(Code.INTERRUPTED)


def _tick_once(session: Session, found: "Schedules") -> None:
    enqueued: dict[tuple[str, str], int] = {}
    failed: dict[tuple[str, str], str] = {}
    duplicates = 0
    more = True
    while more:
        done = found.tick()
        for key, ticks in done.enqueued.items():
            enqueued[key] = enqueued.get(key, 0) + ticks
        failed |= done.failed
        duplicates += done.duplicates
        more = done.more
    total = schedules.Ticked(enqueued, duplicates, failed)
    if session.as_json:
        render.emit_json(views.ticked_json(total))
    elif enqueued or failed:
        _say_ticked(total)
    else:
        render.say("nothing is due")
    if failed:
        raise typer.Exit(Code.PARTLY)


def _say_ticked(done: "Ticked") -> None:
    for (queue, name), ticks in done.enqueued.items():
        jobs = "1 job" if ticks == 1 else f"{ticks:,} jobs"
        render.say(display.printable(f"enqueued {jobs} of schedule {name} on {queue}"))
    if done.duplicates:
        render.say(f"({done.duplicates:,} of them were already enqueued, or have the unique key of a live job)")
    for (queue, name), reason in done.failed.items():
        render.say(display.printable(f"paused schedule {name} of queue {queue}: {reason}"))
    sys.stdout.flush()


def _emit_line(done: "Ticked") -> None:
    sys.stdout.write(json.dumps(views.ticked_json(done)) + "\n")
    sys.stdout.flush()
