"""The commands that run a queue as a whole: `pause`, `resume`, `rebucket`, `region`, `delete-queue`."""

import re
from typing import Annotated

import typer

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Queue
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import MAX_BUCKETS

_SPAN = re.compile(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (pause, resume, rebucket, region):
        command(app)(function)
    command(app, "delete-queue")(delete_queue)


def pause(
    session: Session,
    queue: Queue,
    wait: Annotated[
        bool, typer.Option("--wait", show_default=False, help="Return when no job of the queue is running any more.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="With --wait: how long to wait at most (90, 5m); then exit code 6.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            show_default=False,
            help="When the queue resumes by itself: 2026-01-31T08:00:00Z, or with +02:00.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", show_default=False, help="Instead of --until: time from now, such as 90, 5m, 2h."
        ),
    ] = None,
) -> None:
    """Stop claims of a queue; running jobs continue, and jobs can still be enqueued.

    With --wait, the queue is drained: the command returns when the running jobs have ended. The queue stays paused.

    Examples: sqlqueue pause orders

    sqlqueue pause orders --for 2h

    sqlqueue pause orders --wait --timeout 5m
    """
    if until is not None and by is not None:
        raise InvalidInput("give one of --until and --for: when the queue resumes by itself")
    end = options.seconds("--for", by) if by is not None else options.kept("--until", until, None, options.moment)
    if end == 0:
        raise InvalidInput(f"--for is {by!r}; give a time of more than 0, or leave it out to pause without end")
    limit = None if timeout is None else options.seconds("--timeout", timeout)
    if timeout is not None and not wait:
        raise InvalidInput("--timeout says how long to wait; give --wait as well")
    with session.queue() as source:
        settings = source.pause(queue, until=end)
        drained = source.drain(queue, timeout_seconds=limit) if wait else None
    if session.as_json:
        render.emit_json({**views.settings_json(settings), "drained": drained})
    else:
        assert settings.paused_at
        since = f"queue {queue} is paused {display.span(settings.paused_at, settings.paused_until)}"
        ending = {
            None: "running jobs continue",
            True: "no job of it is running any more",
            False: "jobs of it are still running, or it was resumed",
        }
        render.say(f"{since}; {ending[drained]}. Resume it with: sqlqueue resume {queue}")
    if drained is False:
        raise typer.Exit(Code.PARTLY)


def resume(session: Session, queue: Queue) -> None:
    """Allow claims of a paused queue again.

    Example: sqlqueue resume orders
    """
    with session.queue() as source:
        settings = source.resume(queue)
    if session.as_json:
        render.emit_json(views.settings_json(settings))
    else:
        render.say(f"queue {queue} hands out jobs")


def rebucket(
    session: Session,
    queue: Queue,
    buckets: Annotated[str, typer.Argument(metavar="N", help=f"New number of buckets, 1 to {MAX_BUCKETS}.")],
) -> None:
    """Change the number of buckets of a queue, while producers and consumers run.

    No job is moved. With fewer buckets, consumers also claim from the surplus ones until these are empty. An ordered queue
    keeps its order.

    Example: sqlqueue rebucket orders 32
    """
    count = options.whole("the number of buckets", buckets)
    with session.queue() as source:
        settings = source.rebucket(queue, count)
    if session.as_json:
        render.emit_json(views.settings_json(settings))
        return
    still = settings.claim_buckets - settings.bucket_count
    rest = f"; {still} more still hold jobs and are being emptied" if still > 0 else ""
    render.say(f"queue {queue} has {settings.bucket_count} buckets{rest}")


def region(
    session: Session,
    queue: Queue,
    name: Annotated[
        str | None,
        typer.Argument(metavar="REGION", show_default=False, help="A name of your choice. Default: show the regions."),
    ] = None,
    buckets: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", show_default=False, help="Buckets to assign: 0-3, or 0-3,8."),
    ] = None,
) -> None:
    """Assign buckets of a queue to a region, whose consumers claim from them first.

    At first, every bucket is in the region `local`. Jobs that are enqueued with --region go to the buckets of that region.

    Examples: sqlqueue region orders eu --buckets 0-7

    sqlqueue region orders
    """
    if (name is None) is not (buckets is None):
        raise InvalidInput("give both a region and --buckets to change something, or neither to see the regions")
    with session.queue() as source:
        if name is None or buckets is None:
            settings = source.settings(queue)
        else:
            settings = source.set_region(queue, name, _numbers(buckets))
    if session.as_json:
        render.emit_json(views.settings_json(settings))
    else:
        render.say(f"queue {queue}: {views.regions(settings)}")


def delete_queue(
    session: Session,
    queue: Queue,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", show_default=False, help="Change nothing; check whether the queue could be deleted."),
    ] = False,
) -> None:
    """Delete a queue that has no jobs and is not in use.

    Its settings go with it; jobs that have ended stay in the archive. While the queue has jobs, consumers, schedules,
    subscriptions, callbacks or open batches, it is refused, and the error says what to do about each.

    Examples: sqlqueue delete-queue scratch --dry-run

    sqlqueue delete-queue scratch
    """
    with session.queue() as source:
        settings = source.delete_queue(queue, dry_run=dry_run)
    if session.as_json:
        render.emit_json({**views.settings_json(settings), "deleted": not dry_run})
    elif dry_run:
        render.say(f"queue {queue} would be deleted. Nothing was changed (--dry-run)")
    else:
        render.say(f"queue {queue} is deleted; its jobs that have ended stay in the archive")


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise InvalidInput(f"--buckets is {text!r}; write bucket numbers and ranges: 0-3, or 0-3,8")
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found
