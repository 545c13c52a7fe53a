"""The commands that decide which jobs people do: `sqlqueue people rule`, `hand-over`, `route`, `adopt`."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dagster_sqlqueue import display, people
from dagster_sqlqueue.cli.commands.job_admin import Verb, decide, report
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Queue
from dagster_sqlqueue.cli.input.selection import selecting
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session
from dagster_sqlqueue.people.model import AutomationRule
from dagster_sqlqueue.queue.selection import Selection

By = Annotated[
    str,
    typer.Option("--by", metavar="NAME", show_default=False, help="Person who decides; recorded in the job's history."),
]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", show_default=False, help="Reason; recorded in the job's history.")
]


def _review(unless: str) -> Any:
    return typer.Option("--review/--no-review", show_default=False, help=f"Results must be approved; {unless}.")


def _four_eyes(unless: str) -> Any:
    return typer.Option(
        "--four-eyes/--no-four-eyes",
        show_default=False,
        help=f"Another person must approve them, which implies a review; {unless}.",
    )


_BY_RULE, _STAYS = "default: the queue's rule", "default: unchanged"
_MOST_JOBS = 1_000_000
Review = Annotated[bool | None, _review(_BY_RULE)]
FourEyes = Annotated[bool | None, _four_eyes(_BY_RULE)]


def rule(
    session: Session,
    queue: Queue,
    automatic: Annotated[
        str | None,
        typer.Option(metavar="0..100", show_default=False, help="Percentage of jobs that run automatically."),
    ] = None,
    always: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            show_default=False,
            help="Jobs whose payload contains this always go to people; none removes the condition.",
        ),
    ] = None,
    review: Annotated[bool | None, _review(_STAYS)] = None,
    four_eyes: Annotated[bool | None, _four_eyes(_STAYS)] = None,
) -> None:
    """Show or set which jobs of a queue run automatically, which go to people, and whether results are reviewed.

    Options that are not given are left unchanged.

    Examples: sqlqueue people rule orders

    sqlqueue people rule orders --automatic 20 --always '{"country": "NZ"}' --four-eyes
    """
    percent = None if automatic is None else options.percentage("--automatic", automatic)
    with session.queue() as source:
        work = people.HumanWork(source)
        found = work.rule(queue)
        if (percent, always, review, four_eyes) != (None,) * 4:
            eyes = found.four_eyes and review is not False if four_eyes is None else four_eyes
            found = work.set_rule(
                queue,
                automatic_percent=found.automatic_percent if percent is None else percent,
                always_people=options.removable("--always", always, found.always_people, lambda _, text: text),
                review=(found.review if review is None else review) or eyes,
                four_eyes=eyes,
            )
    if session.as_json:
        always_people = None if found.always_people is None else json.loads(found.always_people)
        render.emit_json({**asdict(found), "always_people": always_people})
    else:
        render.say(_rule(found))


@selecting(("queued",), "hand over", all_jobs="All queued jobs of the queue, due or not; running ones continue")
def hand_over(
    session: Session,
    queue: str | None,
    selection: Selection,
    dry_run: bool,
    by: By,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="Reason; recorded in the job's history.")
    ],
    review: Review = None,
    four_eyes: FourEyes = None,
) -> None:
    """Hold queued jobs as tasks for people.

    Example: sqlqueue people hand-over orders --tag vip --by boss --reason "asks for a person" --review
    """
    decide(
        session,
        (queue, selection, dry_run),
        Verb(("queued",), "handed over"),
        lambda source, its: people.HumanWork(source).hand_over(
            its, selection, by=by, reason=reason, review=review, four_eyes=four_eyes
        ),
    )


def route(
    session: Session,
    queue: Queue,
    by: By,
    limit: Annotated[str, typer.Option(metavar="N", help=f"Maximum number of jobs, 1 to {_MOST_JOBS}.")] = "10000",
) -> None:
    """Hand over the queued jobs that the queue's rule assigns to people.

    Repeat it as often as people should see new jobs: jobs enqueued later are found by the next call.

    Example: sqlqueue people route orders --by router
    """
    most = options.limit(limit, _MOST_JOBS)
    with session.queue() as source:
        report(
            session, queue, Verb(("queued",), "handed over"), people.HumanWork(source).route(queue, by=by, limit=most)
        )


def adopt(
    session: Session,
    queue: Queue,
    by: By,
    reason: Reason = None,
    review: Review = None,
    four_eyes: FourEyes = None,
    limit: Annotated[str, typer.Option(metavar="N", help=f"Maximum number of jobs, 1 to {_MOST_JOBS}.")] = "10000",
) -> None:
    """Turn held jobs without a task into tasks, those that handlers have held, for instance.

    It also ends the tasks whose jobs were released, cancelled or completed without the task.

    Example: sqlqueue people adopt orders --by clerk
    """
    most = options.limit(limit, _MOST_JOBS)
    with session.queue() as source:
        ids = people.HumanWork(source).adopt(
            queue, by=by, reason=reason, review=review, four_eyes=four_eyes, limit=most
        )
    if session.as_json:
        render.emit_json({"queue": queue, "adopted": [str(id_) for id_ in ids]})
    else:
        render.say(f"queue {queue}: {len(ids):,} held {'job is a task' if len(ids) == 1 else 'jobs are tasks'} now")


def _rule(found: AutomationRule) -> str:
    said = [f"{found.automatic_percent:g} % of its jobs are automatic"]
    if found.always_people is not None:
        said.append(f"those that contain {found.always_people} always go to people")
    if found.review:
        said.append("results are reviewed by another person" if found.four_eyes else "results are reviewed")
    return display.printable(f"queue {found.queue}: {'; '.join(said)}")
