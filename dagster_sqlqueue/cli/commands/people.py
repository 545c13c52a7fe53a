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
_MOST_TAKEN = 1_000

Jobs = Annotated[
    list[str],
    typer.Argument(
        metavar="ID",
        help="Ids of the jobs, all of one queue. If the step is not possible for one of them, it is refused for all.",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        show_default=False,
        help="Revision of the task when it was read; refused if the task has changed since.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        name="people",
        help="Hand jobs over to people, who take, do and review them, and set the percentage that runs automatically.",
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
    limit: Limit = "20",
) -> None:
    """List the tasks of a queue in one stage, the longest available first.

    Example: sqlqueue people tasks orders --stage in_review
    """
    most = options.limit(limit)
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).tasks(queue, stage, limit=most))


def take(
    session: Session,
    queue: Queue,
    operator: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Person who takes them.")],
    limit: Annotated[str, typer.Option(metavar="N", help=f"Maximum number of tasks, 1 to {_MOST_TAKEN}.")] = "1",
    reason: Reason = None,
) -> None:
    """Take the next open tasks of a queue. Two concurrent calls never get the same task.

    Example: sqlqueue people take orders --operator anna
    """
    most = options.limit(limit, _MOST_TAKEN)
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).take(operator, queue, limit=most, reason=reason))


def my_jobs(
    session: Session,
    operator: Annotated[str, typer.Argument(metavar="NAME", help="Name of the person, as in --operator and --to.")],
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", show_default=False, help="Only tasks of this queue.")
    ] = None,
    limit: Limit = "20",
) -> None:
    """List the tasks of a person: those assigned, and those submitted that wait for review.

    Example: sqlqueue people my-jobs anna
    """
    most = options.limit(limit)
    with session.queue() as source:
        _show(session, source, people.HumanWork(source).my_jobs(operator, queue=queue, limit=most))


def assign(
    session: Session,
    jobs: Jobs,
    to: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Person to assign them to.")],
    by: By,
    reason: Reason = None,
    revision: Revision = None,
) -> None:
    """Assign tasks to a person, whether they are open or assigned to another person.

    Example: sqlqueue people assign 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --to anna --by boss
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).assign(_ids(jobs), to, by=by, reason=reason, revision=_revision(revision)),
        )


def unassign(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Reopen assigned tasks: any person can take them.

    Example: sqlqueue people unassign 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna --reason "on leave"
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).unassign(_ids(jobs), by=by, reason=reason, revision=_revision(revision)),
        )


def hold(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Hold tasks until they are resumed; until then they cannot be taken or submitted.

    Example: sqlqueue people hold 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna --reason "asked the customer"
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).hold(_ids(jobs), by=by, reason=reason, revision=_revision(revision)),
        )


def resume(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Resume held tasks.

    Example: sqlqueue people resume 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).resume(_ids(jobs), by=by, reason=reason, revision=_revision(revision)),
        )


def reschedule(
    session: Session,
    jobs: Jobs,
    by: By,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            show_default=False,
            help="2026-01-31T08:00:00Z, or with +02:00. A time in the past means now.",
        ),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            show_default=False,
            help="Instead of --until: time from now, such as 90, 5m, 2h; 0 for now.",
        ),
    ] = None,
    reason: Reason = None,
    revision: Revision = None,
) -> None:
    """Change from when tasks are offered; assigned tasks stay assigned.

    Example: sqlqueue people reschedule 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --until 2037-01-31T08:00:00Z --by anna
    """
    if (until is None) is (length is None):
        raise InvalidInput("give one of --until and --for: from when the tasks are offered")
    when = options.seconds("--for", length) if length is not None else options.moment("--until", until or "")
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).reschedule(_ids(jobs), when, by=by, reason=reason, revision=_revision(revision)),
        )


def submit(
    session: Session,
    jobs: Jobs,
    operator: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="Person who did them: the one they are assigned to.")
    ],
    result: Annotated[
        str | None, typer.Option(metavar="JSON", show_default=False, help="Result of each of them.")
    ] = None,
    reason: Reason = None,
    revision: Revision = None,
) -> None:
    """Submit finished tasks, with a result: their jobs succeed, or wait for an approval.

    Example: sqlqueue people submit 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --operator anna --result '{"paid": true}'
    """
    found = options.kept("--result", result, None, options.json_value)
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).submit(_ids(jobs), operator, found, reason=reason, revision=_revision(revision)),
        )


def approve(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Approve submitted tasks: the jobs succeed.

    A task that needs four eyes cannot be approved by the person who did it.

    Example: sqlqueue people approve 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by bert
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).approve(_ids(jobs), by=by, reason=reason, revision=_revision(revision)),
        )


def reject(
    session: Session,
    jobs: Jobs,
    by: By,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="Reason; recorded in the job's history.")
    ],
    reopen: Annotated[
        bool,
        typer.Option(
            "--reopen",
            show_default=False,
            help="Reopen them for any person. Default: return them to the persons who did them.",
        ),
    ] = False,
    revision: Revision = None,
) -> None:
    """Return submitted tasks to the persons who did them, or reopen them.

    Example: sqlqueue people reject 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by bert --reason "the sum is wrong"
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).reject(
                _ids(jobs), by=by, reason=reason, reopen=reopen, revision=_revision(revision)
            ),
        )


def give_back(session: Session, jobs: Jobs, by: By, reason: Reason = None, revision: Revision = None) -> None:
    """Return tasks to the queue, to be claimed by consumers from then on, whatever the rule says.

    Example: sqlqueue people give-back 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --by anna
    """
    with session.queue() as source:
        _show(
            session,
            source,
            people.HumanWork(source).give_back(_ids(jobs), by=by, reason=reason, revision=_revision(revision)),
        )


def history(session: Session, job: Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]) -> None:
    """Show who did what to a job, when and why.

    Example: sqlqueue people history 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    with session.queue() as source:
        events = discreet_events(source, people.HumanWork(source).history(options.job_id("the job", job)))
    if session.as_json:
        render.emit_json([asdict(event) for event in events])
    elif not events:
        render.say(f"job {job} was never a task for people")
    else:
        render.table(
            ["no", "when", "who", "what", "reason", "details"],
            [[e.no, display.moment(e.at), e.actor, e.action, e.reason or "", _details(e)] for e in events],
            right=["no"],
        )


def _revision(text: str | None) -> int | None:
    return None if text is None else options.whole("--revision", text)


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
