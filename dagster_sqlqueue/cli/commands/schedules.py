"""The commands about schedules, a group: `schedule put`, `list`, `next`, `pause`, `resume`, `remove`, `run`."""

from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from dagster_sqlqueue import display, schedules
from dagster_sqlqueue.cli.commands.scheduler import run
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.json_lines import parsed
from dagster_sqlqueue.cli.input.options import OneQueue, Queue
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload.serialization import AnyObject
from dagster_sqlqueue.schedules.model import GRACE_SECONDS, CatchUp, Schedule
from dagster_sqlqueue.schedules.redaction import discreet_schedule

_JOBS = "The jobs"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


def register(app: typer.Typer) -> None:
    """Add the group with its commands."""
    group = typer.Typer(name="schedule", invoke_without_command=True, callback=_group)
    command(group, "put")(put)
    command(group, "list")(list_schedules)
    command(group, "next")(next_ticks)
    for function in (pause, resume, remove, run):
        command(group)(function)
    app.add_typer(group)


def _group(context: typer.Context) -> None:
    """Enqueue jobs by the clock: cron expressions in a time zone, and intervals."""
    if context.invoked_subcommand is None:
        render.say(context.get_help())


def put(
    session: Session,
    queue: Queue,
    name: Name,
    payload: Annotated[str, typer.Argument(metavar="JSON", help="The payload of each job, a JSON object.")],
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            show_default=False,
            help="Minute, hour, day of the month, month, day of the week: '30 2 * * MON-FRI'; or @daily, @hourly and so on.",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="An interval instead: 90, 15m, 1d.")
    ] = None,
    time_zone: Annotated[
        str, typer.Option(metavar="ZONE", help="In which the cron expression is read, such as Europe/Berlin.")
    ] = "UTC",
    starting: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT", show_default=False, help="No tick is before it, and an interval counts from it; else now."
        ),
    ] = None,
    catch_up: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Which missed ticks are enqueued: none (skip), the latest (one), or all.",
        ),
    ] = str(CatchUp.ONE),
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="With skip: how late a tick may still be enqueued.")
    ] = f"{GRACE_SECONDS:g}",
    tick_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", show_default=False, help="The field of the payload that gets the moment of the tick."
        ),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="0..9", help="Higher runs first.", rich_help_panel=_JOBS)] = 0,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            rich_help_panel=_JOBS,
            help="A tick is left out while the job of an earlier one is live.",
        ),
    ] = None,
    unique_until: Annotated[
        str,
        typer.Option(
            metavar="end|claim",
            rich_help_panel=_JOBS,
            help="How long a job holds its unique key: with claim, a tick is left out only while it was never claimed.",
        ),
    ] = "end",
    ordering_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            rich_help_panel=_JOBS,
            help="In an ordered queue jobs with the same key run one after another.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            rich_help_panel=_JOBS,
            help="Beside schedule:NAME, which each has; may be given several times.",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, rich_help_panel=_JOBS, help="The region whose buckets take them."
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, rich_help_panel=_JOBS, help="Instead of the queue's timeout."),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, rich_help_panel=_JOBS, help="Instead of the queue's number."),
    ] = None,
) -> None:
    """Make a schedule, or bring the one of that name up to date. The same again changes nothing.

    What is not given is the default, also of a schedule that exists. Another rule begins with its next tick from now.

    Examples: sqlqueue schedule put orders nightly '{"report": 1}' --cron '30 2 * * *' --time-zone Europe/Berlin

    sqlqueue schedule put orders poll '{"source": "a"}' --every 15m --catch-up skip --unique-key poll-a
    """
    job = NewJob(
        parsed(payload, "the payload", "; nothing was changed"),
        priority=priority,
        unique_key=unique_key,
        unique_until=options.unique_until(unique_until, unique_key),
        ordering_key=ordering_key,
        tags=tuple(tag or ()),
        region=region,
        timeout_seconds=None if timeout is None else options.seconds("--timeout", timeout),
        max_attempts=None if max_attempts is None else options.whole("--max-attempts", max_attempts),
    )
    with session.queue() as source:
        made = schedules.Schedules(source).put(
            QueueSpec(queue, AnyObject),
            name,
            job,
            cron=cron,
            every=None if every is None else options.seconds("--every", every),
            time_zone=time_zone,
            starting=None if starting is None else options.moment("--starting", starting),
            catch_up=catch_up,
            grace_seconds=options.seconds("--grace", grace),
            tick_field=tick_field,
        )
        made = discreet_schedule(source, made)
    _tell(session, made, f"ticks next at {display.moment(made.next_tick)}: {views.schedule_rule(made)}")


def list_schedules(
    session: Session,
    queue: OneQueue = None,
) -> None:
    """List schedules: their rules, their next and their last ticks, and those that are paused, with the reason.

    Example: sqlqueue schedule list orders
    """
    with session.queue() as source:
        found = [discreet_schedule(source, schedule) for schedule in schedules.Schedules(source).schedules(queue)]
    if session.as_json:
        render.emit_json([views.schedule_json(schedule) for schedule in found])
    elif found:
        views.schedule_table(found)
    else:
        render.say("there is no schedule; make one with: sqlqueue schedule put")


def next_ticks(
    session: Session,
    queue: Queue,
    name: Name,
    count: Annotated[str, typer.Option(metavar="N", help="How many, 1 to 10000.")] = "10",
) -> None:
    """Show the ticks to come, in UTC and in the schedule's time zone; those that are due already among them.

    Example: sqlqueue schedule next orders nightly --count 3
    """
    with session.queue() as source:
        found = schedules.Schedules(source)
        schedule = found.schedule(queue, name)
        ticks = found.next_ticks(queue, name, options.whole("--count", count))
    if session.as_json:
        paused = schedule.paused_at
        render.emit_json({"queue": queue, "name": name, "paused_at": paused, "ticks": ticks})
        return
    zone = ZoneInfo(schedule.time_zone)
    render.table(
        ["in UTC", schedule.time_zone],
        [(display.moment(tick), f"{tick.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}") for tick in ticks],
    )
    if schedule.paused_at:
        render.say(f"it is paused; go on with: sqlqueue schedule resume {queue} {name}")


def pause(session: Session, queue: Queue, name: Name) -> None:
    """Enqueue no tick of a schedule until it is resumed.

    Example: sqlqueue schedule pause orders nightly
    """
    with session.queue() as source:
        paused = discreet_schedule(source, schedules.Schedules(source).pause(queue, name))
    assert paused.paused_at
    _tell(session, paused, f"is paused since {display.moment(paused.paused_at)}")


def resume(session: Session, queue: Queue, name: Name) -> None:
    """Resume a paused schedule. Ticks that passed meanwhile were missed: its catch-up policy decides about them.

    Example: sqlqueue schedule resume orders nightly
    """
    with session.queue() as source:
        resumed = discreet_schedule(source, schedules.Schedules(source).resume(queue, name))
    _tell(session, resumed, f"goes on from its tick at {display.moment(resumed.next_tick)}")


def remove(session: Session, queue: Queue, name: Name) -> None:
    """Remove a schedule. The jobs that it has enqueued stay.

    Example: sqlqueue schedule remove orders nightly
    """
    with session.queue() as source:
        schedules.Schedules(source).remove(queue, name)
    if session.as_json:
        render.emit_json({"queue": queue, "name": name, "removed": True})
    else:
        render.say(display.printable(f"schedule {name} of queue {queue} was removed"))


def _tell(session: Session, schedule: Schedule, what: str) -> None:
    if session.as_json:
        render.emit_json(views.schedule_json(schedule))
    else:
        render.say(display.printable(f"schedule {schedule.name} of queue {schedule.queue} {what}"))
