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

_JOBS = "Jobs"

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
    """Manage and run schedules, which enqueue jobs by cron expressions in a time zone, or at intervals."""
    if context.invoked_subcommand is None:
        render.say(context.get_help())


def put(
    session: Session,
    queue: Queue,
    name: Name,
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Payload of each job, a JSON object.")],
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            show_default=False,
            help="Minute, hour, day of the month, month, day of the week: '30 2 * * MON-FRI'; or @daily, @hourly and so"
            " on.",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="Interval, instead of --cron: 90, 15m, 1d.")
    ] = None,
    time_zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of the cron expression, such as Europe/Berlin.")
    ] = "UTC",
    starting: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            show_default=False,
            help="No tick is before this time, and an interval counts from it. Default: now.",
        ),
    ] = None,
    catch_up: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Which missed ticks are enqueued. skip: only those at most --grace late. one: the latest. all: each.",
        ),
    ] = str(CatchUp.ONE),
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="With --catch-up skip: how late a tick can still be enqueued.")
    ] = f"{GRACE_SECONDS:g}",
    tick_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", show_default=False, help="Field of the payload that is set to the time of the tick."
        ),
    ] = None,
    priority: Annotated[str, typer.Option(metavar="0..9", help="Higher runs first.", rich_help_panel=_JOBS)] = "0",
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            rich_help_panel=_JOBS,
            help="Leave a tick out while the job of an earlier tick is live.",
        ),
    ] = None,
    unique_until: Annotated[
        str,
        typer.Option(
            metavar="end|claim",
            rich_help_panel=_JOBS,
            help="How long a job holds its unique key; with claim, a tick is left out only while that job has never"
            " been claimed.",
        ),
    ] = "end",
    ordering_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            rich_help_panel=_JOBS,
            help="An ordered queue runs jobs with the same key one after another.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            rich_help_panel=_JOBS,
            help="Tag of the jobs, besides schedule:NAME, which each has; can be repeated.",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            rich_help_panel=_JOBS,
            help="Region whose buckets take the jobs. Default: any bucket.",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            rich_help_panel=_JOBS,
            help="How long a job may run, instead of the queue's timeout.",
        ),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel=_JOBS,
            help="Attempts of a job, instead of the queue's number.",
        ),
    ] = None,
) -> None:
    """Create or change a schedule; repeating it changes nothing.

    Options that are not given get their defaults, also for an existing schedule. With another cron expression, interval,
    zone or start, the schedule continues with the first tick of the new rule from now on.

    Examples: sqlqueue schedule put orders nightly '{"report": 1}' --cron '30 2 * * *' --time-zone Europe/Berlin

    sqlqueue schedule put orders poll '{"source": "a"}' --every 15m --catch-up skip --unique-key poll-a
    """
    job = NewJob(
        parsed(payload, "the payload", "; nothing was changed"),
        priority=options.whole("--priority", priority),
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
    _report(session, made, f"ticks next at {display.moment(made.next_tick)}: {views.schedule_rule(made)}")


def list_schedules(
    session: Session,
    queue: OneQueue = None,
) -> None:
    """List the schedules, their rules, their next and last ticks, and why one is paused.

    Example: sqlqueue schedule list orders
    """
    with session.queue() as source:
        found = [discreet_schedule(source, schedule) for schedule in schedules.Schedules(source).schedules(queue)]
    if session.as_json:
        render.emit_json([views.schedule_json(schedule) for schedule in found])
    elif found:
        views.schedule_table(found)
    else:
        render.say("there is no schedule; create one with: sqlqueue schedule put")


def next_ticks(
    session: Session,
    queue: Queue,
    name: Name,
    count: Annotated[str, typer.Option(metavar="N", help="Number of ticks, 1 to 10000.")] = "10",
) -> None:
    """List the next ticks, in UTC and in the schedule's time zone, including those that are already due.

    Example: sqlqueue schedule next orders nightly --count 3
    """
    number = options.whole("--count", count)
    with session.queue() as source:
        found = schedules.Schedules(source)
        schedule = found.schedule(queue, name)
        ticks = found.next_ticks(queue, name, number)
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
        render.say(f"it is paused; resume it with: sqlqueue schedule resume {queue} {name}")


def pause(session: Session, queue: Queue, name: Name) -> None:
    """Enqueue no ticks of a schedule until it is resumed.

    Example: sqlqueue schedule pause orders nightly
    """
    with session.queue() as source:
        paused = discreet_schedule(source, schedules.Schedules(source).pause(queue, name))
    assert paused.paused_at
    _report(session, paused, f"is paused since {display.moment(paused.paused_at)}")


def resume(session: Session, queue: Queue, name: Name) -> None:
    """Enqueue the ticks of a paused schedule again; for those missed meanwhile, its catch-up policy applies.

    Example: sqlqueue schedule resume orders nightly
    """
    with session.queue() as source:
        resumed = discreet_schedule(source, schedules.Schedules(source).resume(queue, name))
    _report(session, resumed, f"continues from its tick at {display.moment(resumed.next_tick)}")


def remove(session: Session, queue: Queue, name: Name) -> None:
    """Delete a schedule; its jobs stay.

    Example: sqlqueue schedule remove orders nightly
    """
    with session.queue() as source:
        schedules.Schedules(source).remove(queue, name)
    if session.as_json:
        render.emit_json({"queue": queue, "name": name, "removed": True})
    else:
        render.say(display.printable(f"schedule {name} of queue {queue} was deleted"))


def _report(session: Session, schedule: Schedule, what: str) -> None:
    if session.as_json:
        render.emit_json(views.schedule_json(schedule))
    else:
        render.say(display.printable(f"schedule {schedule.name} of queue {schedule.queue} {what}"))
