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
            help="Create the partitions of this many days after today. Default: 7.",
        ),
    ] = None,
) -> None:
    """Do the maintenance that consumers do once an hour.

    It creates the archive's partitions of the next days, trims, deletes expired rows, promotes jobs whose ordering key is
    free, releases the jobs of batches that were left behind, and moves jobs out of buckets that the queue never had. Safe
    at any time and from several places, while consumers work. Exit code 6: some days were in use, and are left for the
    next time.

    Example: sqlqueue maintain
    """
    from dagster_sqlqueue.queue.maintenance import Trimmed

    given = {} if days_ahead is None else {"days_ahead": options.whole("--days-ahead", days_ahead)}
    with session.queue() as source:
        done = source.maintain(**given)
    if session.as_json:
        render.emit_json(asdict(done))
    elif not done.ran:
        render.say("another process is running maintenance; nothing was done here")
    else:
        render.say(f"created {_partitions(done.partitions_made) or 'no partition: none was missing'}")
        if done.rows_moved:
            render.say(f"moved {_rows(done.rows_moved)} from the default partition to the partitions of their days")
        _say_trimmed(Trimmed(done.partitions_dropped, done.rows_deleted, done.events_deleted, done.busy))
        if done.expired_removed:
            render.say(
                f"deleted {done.expired_removed:,} expired entries of waiters, consumers, grants, slots, followers, groups"
                " and progress"
            )
        if done.batches_swept:
            render.say(f"released the jobs of batches that were left behind: {done.batches_swept:,}")
        if done.keys_healed:
            render.say(
                f"promoted jobs of {_keys(done.keys_healed)} that waited for their turn though their key was free"
            )
        if done.jobs_moved:
            render.say(
                f"moved to buckets and priorities that are claimed: {done.jobs_moved:,}"
                f" {'job' if done.jobs_moved == 1 else 'jobs'}"
            )
        if done.queues_removed:
            render.say(f"deleted expired reply queues: {len(done.queues_removed):,}")
    if done.busy:
        raise typer.Exit(Code.PARTLY)


def trim(
    session: Session,
    queue: OneQueue = None,
) -> None:
    """Delete archived jobs that are older than their queue's retention, with their history.

    The retention is --retention-days of `create`; with 0, a queue keeps everything. The partition of a day that no queue
    keeps any more is dropped as a whole. `maintain` trims as well. Exit code 6: some days were in use.

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
            f"deleted {steps:,} {'step' if steps == 1 else 'steps'} from the history of deleted jobs of queue {queue}"
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
