"""The commands that maintain the schema: `maintain`, `trim`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import OneQueue
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command

if TYPE_CHECKING:
    from dagster_sqlqueue.queue.maintenance import Trimmed


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(maintain)
    command(app)(trim)


def maintain(
    session: Session,
    days_ahead: Annotated[
        str | None,
        typer.Option(
            metavar="DAYS",
            show_default=False,
            help="Make the partitions of so many days after today. Default: 7.",
        ),
    ] = None,
) -> None:
    """Do now what consumers do once an hour by themselves: make the partitions of the coming days, trim, remove what
    expired, heal ordering keys that stand still.

    Safe to run at any time and from several places; consumers go on meanwhile. With exit code 6 some days were in use and
    are left for the next time.

    Example: sqlqueue maintain
    """
    from dagster_sqlqueue.queue.maintenance import Trimmed

    given = {} if days_ahead is None else {"days_ahead": options.whole("--days-ahead", days_ahead)}
    with session.queue() as source:
        done = source.maintain(**given)
    if session.as_json:
        render.emit_json(asdict(done))
    elif not done.ran:
        render.say("another process does it; nothing was done here")
    else:
        render.say(f"made {_partitions(done.partitions_made) or 'no partition: none was missing'}")
        if done.rows_moved:
            render.say(f"moved {_rows(done.rows_moved)} from the default partition to those of their days")
        _say_trimmed(Trimmed(done.partitions_dropped, done.rows_deleted, done.events_deleted, done.busy))
        if done.expired_removed:
            render.say(
                f"removed {done.expired_removed:,} expired entries of waiters, workers, grants, slots, followers, groups and"
                " progress"
            )
        if done.batches_swept:
            render.say(f"released the jobs of batches that were left behind: {done.batches_swept:,}")
        if done.keys_healed:
            render.say(
                f"promoted jobs of {_keys(done.keys_healed)} that waited for a turn that no other job would have given them"
            )
        if done.jobs_moved:
            render.say(
                f"moved to buckets and priorities that are claimed: {done.jobs_moved:,}"
                f" {'job' if done.jobs_moved == 1 else 'jobs'}"
            )
        if done.queues_removed:
            render.say(f"removed reply queues that were not used any more: {len(done.queues_removed):,}")
    if done.busy:
        raise typer.Exit(Code.PARTLY)


def trim(
    session: Session,
    queue: OneQueue = None,
) -> None:
    """Remove finished jobs that are older than their queue keeps them (--retention-days of `create`).

    A day that no queue keeps any more is dropped as a whole. A queue whose retention is 0 keeps everything. `maintain` does
    this as well. The steps that people took with a job are removed with it.

    Example: sqlqueue trim
    """
    with session.queue() as source:
        done = source.trim(queue)
    if session.as_json:
        render.emit_json(asdict(done))
    else:
        _say_trimmed(done)
    if done.busy:
        raise typer.Exit(Code.PARTLY)


def _say_trimmed(done: "Trimmed") -> None:
    render.say(f"dropped {_partitions(done.partitions_dropped) or 'no partition: none is old enough'}")
    for queue, rows in done.rows_deleted.items():
        render.say(f"deleted {_rows(rows)} of queue {queue}")
    for queue, steps in done.events_deleted.items():
        render.say(
            f"deleted {steps:,} {'step' if steps == 1 else 'steps'} that people took with removed jobs of queue {queue}"
        )
    if done.busy:
        days = ", ".join(day.isoformat() for day in done.busy)
        render.say(f"left for the next time, because the archive was in use: {days}")


def _partitions(days: Sequence[date]) -> str:
    if not days:
        return ""
    if len(days) == 1:
        return f"the partition of {days[0]}"
    return f"{len(days)} partitions, of {days[0]} to {days[-1]}"


def _keys(number: int) -> str:
    return f"{number:,} ordering {'key' if number == 1 else 'keys'}"


def _rows(number: int) -> str:
    return f"{number:,} {'row' if number == 1 else 'rows'}"
