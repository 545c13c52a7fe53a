"""`sqlqueue stats`: the statistics of the queues, once or repeatedly."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.input import completion, options
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.queue.stats import QueueStats

_EVERY_SECONDS = 2.0
_SHORTEST_SECONDS = 0.1


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(stats)


def stats(
    session: Session,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            show_default=False,
            help="The queue, in full. Default: all queues, one line each.",
            autocompletion=completion.queue_names,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", show_default=False, help="Repeat until Ctrl-C (exit code 130).")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help=f"With --watch: time between two repetitions. Default: {_EVERY_SECONDS:g}.",
        ),
    ] = None,
    count: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help="With --watch: stop after this many repetitions."),
    ] = None,
) -> None:
    """Show how many jobs each queue holds, its lag, its throughput, and how its jobs ended.

    Waits, run times and ends are of the last hour, rates of the last minute. A count that ends in + means at least that
    many: counting stops there, so that a long queue costs no more. With --watch --json, each repetition is one line.

    Examples: sqlqueue stats

    sqlqueue stats orders --watch --every 5
    """
    if not watch and (every is not None or count is not None):
        raise InvalidInput("--every and --count go with --watch")
    pause = options.kept("--every", every, _EVERY_SECONDS, options.seconds)
    times = options.kept("--count", count, 0, options.whole)
    if pause < _SHORTEST_SECONDS:
        raise InvalidInput(f"--every is {every!r}; it must be at least {_SHORTEST_SECONDS:g} seconds")
    if count is not None and times < 1:
        raise InvalidInput(f"--count is {times}; it must be at least 1")
    with session.queue() as source:
        if not watch:
            found = _read_stats(source, queue)
            if session.as_json:
                render.emit_json([asdict(stats) for stats in found])
            else:
                render.console().print(_drawn(found, queue))
            return
        with _output(session, queue, pause) as show:
            done = 0
            while True:
                show(_read_stats(source, queue))
                done += 1
                if done == times:
                    return
                time.sleep(pause)


def _read_stats(source: "SqlQueue", queue: str | None) -> "list[QueueStats]":
    if queue is not None:
        return [source.stats(queue)]
    found = []
    for settings in source.queues():
        # One for replies may be gone by now.
        with suppress(UnknownQueue):
            found.append(source.stats(settings.name))
    return found


@contextmanager
def _output(session: Session, queue: str | None, pause: float) -> "Iterator[Callable[[list[QueueStats]], None]]":
    """Yield what prints each repetition: as a line of JSON, on a terminal that is redrawn, or one after another to a
    pipe.
    """
    console = render.console()
    if session.as_json:
        yield _emit_line
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda found: live.update(
                Group(_headline(f"every {pause:g} s, Ctrl-C ends"), _drawn(found, queue)), refresh=True
            )
    else:
        yield lambda found: console.print(Group(_headline(""), _drawn(found, queue)))


def _emit_line(found: "list[QueueStats]") -> None:
    sys.stdout.write(json.dumps([asdict(stats) for stats in found], default=render.plain) + "\n")
    sys.stdout.flush()


def _headline(note: str) -> Text:
    return Text(f"{display.moment(datetime.now(UTC))}  {note}".rstrip(), style="dim")


def _drawn(found: "list[QueueStats]", queue: str | None) -> RenderableType:
    if not found:
        return Text("there is no queue yet; create one with: sqlqueue create NAME")
    if queue:
        return Group(Text(f"queue {queue}"), render.names_and_values(_in_full(found[0])))
    counts = ["ready", "running", "scheduled", "held"]
    others = ["dead", "oldest", "in/min", "out/min", "wait p95", "run p95"]
    return render.grid(
        ["queue", *counts, *others],
        [
            [
                _name(row),
                *(display.count(getattr(row, name), row.counted_up_to) for name in counts),
                display.count(row.dead_letters, row.counted_up_to),
                display.duration(row.oldest_ready_seconds),
                _rate(row.in_per_minute),
                _rate(row.out_per_minute),
                display.duration(row.wait_seconds_p95),
                display.duration(row.run_seconds_p95),
            ]
            for row in found
        ],
        right=[*counts, *others],
    )


def _name(row: "QueueStats") -> Text:
    return Text(f"{row.queue} (paused)", style="yellow") if row.paused_at else Text(row.queue)


def _in_full(row: "QueueStats") -> Iterator[tuple[str, Any]]:
    def counted(number: int) -> str:
        return display.count(number, row.counted_up_to)

    def spread(name: str) -> str:
        return ", ".join(f"p{p} {display.duration(getattr(row, f'{name}_seconds_p{p}'))}" for p in (50, 95, 99))

    if row.paused_at:
        yield "paused", Text(f"since {display.moment(row.paused_at)}", style="yellow")
    oldest = (
        "" if row.oldest_ready_seconds is None else f", the oldest for {display.duration(row.oldest_ready_seconds)}"
    )
    yield "ready", counted(row.ready) + oldest
    yield "running", counted(row.running)
    upcoming = "" if row.next_due_seconds is None else f", the next in {display.duration(row.next_due_seconds)}"
    yield "scheduled", counted(row.scheduled) + upcoming
    yield "held", counted(row.held)
    yield "waiting for turn", counted(row.parked)
    hour = "{} a minute in the last minute, {} in the last hour"
    yield "in", hour.format(_rate(row.in_per_minute), _rate(row.in_per_minute_of_hour))
    yield "out", hour.format(_rate(row.out_per_minute), _rate(row.out_per_minute_of_hour))
    yield (
        "last hour",
        f"{counted(row.measured)} ended: {row.succeeded:,} succeeded, {row.failed:,} failed, {row.cancelled:,} cancelled",
    )
    if row.measured:
        yield "waits", spread("wait")
        yield "run times", spread("run")
        average = row.payload_bytes_average or 0.0
        yield "payloads", f"{average:,.0f} bytes on average, {row.payload_bytes_max or 0:,} at most"
    yield "dead letters", counted(row.dead_letters)
    yield "stale writes", f"{row.stale_writes_today:,} refused today"


def _rate(jobs_per_minute: float) -> str:
    return f"{jobs_per_minute:,.0f}" if jobs_per_minute >= 10 or not jobs_per_minute else f"{jobs_per_minute:.1f}"
