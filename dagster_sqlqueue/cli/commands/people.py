"""The commands about tasks, under `sqlqueue people`: who has them, and what was decided."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from dagster_sqlqueue import display, people
from dagster_sqlqueue.cli.commands.automation import By, Reason, adopt, hand_over, route, rule
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Limit, Queue
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.people.model import JobEvent, Stage, Task
from dagster_sqlqueue.people.redaction import discreet_events, discreet_tasks

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue

_SHORT = 80

Jobs = Annotated[
    list[str],
    typer.Argument(
        metavar="ID", help="The jobs' ids, all of one queue. What fits one of them and not another is refused for all."
    ),
]
Revision = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        show_default=False,
        help="The task's revision when it was read: refused if it was decided about since.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        name="people",
        help="Hand jobs over to people, who take, do and review them, and set how many run by themselves.",
        invoke_without_command=True,
    )

    @group.callback()
    def _shown(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            render.say(context.get_help())

    for function in (
        rule,
        hand_over,
        route,
        adopt,
        tasks,
        take,
        my_jobs,
        assign,
        unassign,
        hold,
        resume,
        reschedule,
        submit,
        approve,
        reject,
        give_back,
        history,
    ):
        command(group, function.__name__.replace("_", "-"))(function)
    app.add_typer(group)


def tasks(
    session: Session,
    queue: Queue,
    stage: Annotated[str, typer.Option(metavar="STAGE", help="open, assigned or in_review.")] = "open",
    limit: Limit = 20,
) -> None:
    """Show the tasks of a queue, the longest available first.

    Example: sqlqueue people tasks orders --stage in_review
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).tasks(queue, stage, limit=limit))


def take(
    session: Session,
    queue: Queue,
    operator: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Who takes them.")],
    limit: Annotated[int, typer.Option(metavar="N", help="The most tasks, 1 to 1000.")] = 1,
    reason: Reason = None,
) -> None:
    """Take the next open tasks of a queue. Two concurrent calls never get the same task.

    Example: sqlqueue people take orders --operator anna
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).take(operator, queue, limit=limit, reason=reason))


def my_jobs(
    session: Session,
    operator: Annotated[str, typer.Argument(metavar="NAME", help="The person, named as in --operator and --to.")],
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", show_default=False, help="Only of this queue.")] = None,
    limit: Limit = 20,
) -> None:
    """Show what is assigned to a person, and what that person did that waits for its review.

    Example: sqlqueue people my-jobs anna
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).my_jobs(operator, queue=queue, limit=limit))


def assign(
    session: Session,
    jobs: Jobs,
    to: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="The person to assign them to.")],
    by: By,
    reason: Reason = None,
    revision: Revision = None,
) -> None:
    """Assign tasks to a person, whether they are open or assigned to another one.

    Example: sqlqueue people assign 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --to anna --by boss
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).assign(_ids(jobs), to, by=by, reason=reason, revision=revision))


def unassign(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Make assigned tasks open again.

    Example: sqlqueue people unassign 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna --reason "on leave"
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).unassign(_ids(jobs), by=by, reason=reason, revision=revision))


def hold(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Hold tasks without a date: they cannot be taken or submitted before they are resumed.

    Example: sqlqueue people hold 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna --reason "asked the customer"
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).hold(_ids(jobs), by=by, reason=reason, revision=revision))


def resume(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Resume tasks that are on hold.

    Example: sqlqueue people resume 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).resume(_ids(jobs), by=by, reason=reason, revision=revision))


def reschedule(
    session: Session,
    jobs: Jobs,
    by: By,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT", show_default=False, help="2026-01-31T08:00:00Z, or with +02:00. What has passed: now."
        ),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            show_default=False,
            help="Instead of --until, so long from now: 90, 5m, 2h; 0 for now.",
        ),
    ] = None,
    reason: Reason = None,
    revision: Revision = None,
) -> None:
    """Offer tasks from another moment on; those that are assigned stay so.

    Example: sqlqueue people reschedule 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --until 2037-01-31T08:00:00Z --by anna
    """
    if (until is None) is (length is None):
        raise InvalidInput("give one of --until and --for: from when on to offer the tasks")
    when = options.seconds("--for", length) if length is not None else options.moment("--until", until or "")
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).reschedule(_ids(jobs), when, by=by, reason=reason, revision=revision),
        )


def submit(
    session: Session,
    jobs: Jobs,
    operator: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Who did them.")],
    result: Annotated[
        str | None, typer.Option(metavar="JSON", show_default=False, help="The result of each of them.")
    ] = None,
    reason: Reason = None,
    revision: Revision = None,
) -> None:
    """Submit tasks as done. Their jobs succeed, or wait for an approval.

    Example: sqlqueue people submit 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --operator anna --result '{"paid": true}'
    """
    try:
        found = None if result is None else json.loads(result)
    except ValueError as error:
        raise InvalidInput(f"--result {result!r} is not JSON: {error}") from None
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).submit(_ids(jobs), operator, found, reason=reason, revision=revision),
        )


def approve(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Approve what was done: the jobs succeed. The person who did a task that needs four eyes cannot approve it.

    Example: sqlqueue people approve 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by bert
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).approve(_ids(jobs), by=by, reason=reason, revision=revision))


def reject(
    session: Session,
    jobs: Jobs,
    by: By,
    reason: Annotated[str, typer.Option(metavar="TEXT", show_default=False, help="Why; kept in the job's history.")],
    reopen: Annotated[
        bool,
        typer.Option("--reopen", show_default=False, help="Open them; else they go back to the person who did them."),
    ] = False,
    revision: Revision = None,
) -> None:
    """Send submitted tasks back.

    Example: sqlqueue people reject 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by bert --reason "the sum is wrong"
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).reject(_ids(jobs), by=by, reason=reason, reopen=reopen, revision=revision),
        )


def give_back(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Release jobs to the queue; they are automatic from then on, whatever the rule says.

    Example: sqlqueue people give-back 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna
    """
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).give_back(_ids(jobs), by=by, reason=reason, revision=revision))


def history(session: Session, job: Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]) -> None:
    """Show who did what to a job, when and why.

    Example: sqlqueue people history 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    with session.queue() as source:
        events = discreet_events(source, people.HumanWork(source).history(options.job_id("the job", job)))
    if session.as_json:
        render.emit_json([asdict(event) for event in events])
    elif not events:
        render.say(f"job {job} never was for people")
    else:
        render.table(
            ["no", "when", "who", "what", "reason", "details"],
            [[e.no, display.moment(e.at), e.actor, e.action, e.reason or "", _details(e)] for e in events],
            right=["no"],
        )


def _ids(jobs: Sequence[str]) -> list[UUID]:
    return [options.job_id("the job", text) for text in jobs]


def _show(session: Session, source: "SqlQueue", tasks: Sequence[Task]) -> None:
    found = discreet_tasks(source, tasks)
    if session.as_json:
        render.emit_json([_json(task) for task in found])
    elif not found:
        render.say("there is no such task")
    else:
        render.table(
            ["id", "queue", "stage", "whose", "rev", "available", "notes", "payload"],
            [
                [
                    task.id,
                    task.queue,
                    task.state.stage,
                    task.state.assignee or "",
                    task.state.revision,
                    display.moment(task.state.available_at),
                    _notes(task),
                    display.shortened(task.payload or "", _SHORT),
                ]
                for task in found
            ],
            right=["rev"],
        )


def _json(task: Task) -> dict[str, Any]:
    state = asdict(task.state)
    return {
        "id": task.id,
        "queue": task.queue,
        **state,
        "result": None if task.state.result is None else json_text.read(task.state.result),
        "opened_at": task.opened_at,
        "payload": None if task.payload is None else json_text.read(task.payload),
    }


def _notes(task: Task) -> str:
    state = task.state
    review = "four eyes" if state.four_eyes else "review" if state.review else ""
    live = state.stage in (Stage.OPEN, Stage.ASSIGNED)
    return ", ".join(word for word in ("on hold" if state.on_hold and live else "", review) if word)


def _details(event: JobEvent) -> str:
    return display.shortened(json.dumps(dict(event.details)), _SHORT) if event.details else ""
