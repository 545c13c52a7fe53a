"""The commands that follow jobs to their end: `follow`, and a group: `group open`, `add`, `close`, `list`, `show`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from dagster_sqlqueue import display, followers
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Limit
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import AccessRefused, InvalidInput
from dagster_sqlqueue.followers.model import ALL_STATES, Callback

if TYPE_CHECKING:
    from dagster_sqlqueue.followers import Follower, Group
    from dagster_sqlqueue.queue import SqlQueue

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="JSON",
        show_default=False,
        help="Any JSON; added to the payload of each callback as context.",
    ),
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="QUEUE[:STATES]",
        show_default=False,
        help="Enqueue a callback on this queue when the job has ended, in the transaction that ends it; with states,"
        " only if it ended in one of them: tickets:failed,cancelled. Can be repeated.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command and the group with its commands."""
    command(app)(follow)
    group = typer.Typer(name="group", invoke_without_command=True, callback=_group)
    command(group, "open")(open_group)
    command(group, "add")(add)
    command(group, "close")(close)
    command(group, "list")(list_groups)
    command(group, "show")(show)
    app.add_typer(group)


def _group(context: typer.Context) -> None:
    """Manage groups of jobs: one callback, enqueued when the last of them has ended, with counts of how they ended."""
    if context.invoked_subcommand is None:
        render.say(context.get_help())


def callbacks_of(texts: Sequence[str] | None, context: str | None) -> list[Callback]:
    """Return the callbacks of `--callback` and `--context`.

    Raises:
        InvalidInput: a callback is not usable, or there is a context and no callback.
    """
    if context is not None and not texts:
        raise InvalidInput("--context is passed to callbacks, and there is no --callback")
    found = options.kept("--context", context, None, options.json_value)
    made = []
    for text in texts or ():
        queue, colon, states = text.partition(":")
        wanted = [state.strip() for state in states.split(",")] if colon else ALL_STATES
        made.append(Callback(queue, states=wanted, context=found))
    return made


def follow(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id.")],
    callback: Callbacks = None,
    callback_context: Context = None,
) -> None:
    """Enqueue callbacks on other queues when a job has ended.

    If it has ended already, they are enqueued at once. Repeating the call changes nothing.

    Example: sqlqueue follow 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b --callback tickets:failed
    """
    wanted = callbacks_of(callback, callback_context)
    if not wanted:
        raise InvalidInput("there is no --callback; name the queue that gets it")
    job_id = options.job_id("the job", job)
    with session.queue() as source:
        live = followers.Followers(source).follow(job_id, wanted)
    if session.as_json:
        render.emit_json({"id": job_id, "live": live, "callbacks": [str(one.queue) for one in wanted]})
    else:
        queues = ", ".join(str(one.queue) for one in wanted)
        render.say(
            f"{queues} will get the callback of {job_id}"
            if live
            else f"{job_id} has ended; callback enqueued on {queues}"
        )


def open_group(
    session: Session,
    callback: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE",
            show_default=False,
            help="Queue on which the callback is enqueued. Default: no callback.",
        ),
    ] = None,
    callback_context: Context = None,
    own_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="UUID", show_default=False, help="The group's id, so that the call can be repeated."
        ),
    ] = None,
) -> None:
    """Open a group of jobs with one callback, enqueued when the last of them has ended.

    Add jobs with `enqueue --group` or `group add`, until the group is closed.

    Example: sqlqueue group open --callback tickets --context '{"run": 7}'
    """
    given = callbacks_of(None if callback is None else [callback], callback_context)
    own = None if own_id is None else group_id("--id", own_id)
    with session.queue() as source:
        made = followers.Groups(source).open(given[0] if given else None, id=own)
        found = _read(source, made)
    if session.as_json:
        _report(session, made, found, "opened")
    else:
        render.say(f"opened group {made}")


def add(
    session: Session,
    group: GroupId,
    jobs: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids.")],
) -> None:
    """Add jobs to an open group; those that have ended are counted at once.

    Example: sqlqueue group add 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2e 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    id = group_id("the group", group)
    with session.queue() as source:
        followers.Groups(source).add(id, [options.job_id("the job", job) for job in jobs])
        found = _read(source, id)
    _report(session, id, found, "added jobs to")


def close(session: Session, group: GroupId) -> None:
    """Close a group: no job can be added any more, and its callback is enqueued when its last job has ended.

    Example: sqlqueue group close 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2e
    """
    id = group_id("the group", group)
    with session.queue() as source:
        followers.Groups(source).close(id)
        found = _read(source, id)
    _report(session, id, found, "closed")


def list_groups(session: Session, limit: Limit = "50") -> None:
    """List the groups, the latest first, and how many of their jobs ended, and how.

    Example: sqlqueue group list
    """
    most = options.limit(limit)
    with session.queue() as source:
        found = followers.Groups(source).groups(most)
    if session.as_json:
        render.emit_json([asdict(one) for one in found])
    elif not found:
        render.say("there is no group; open one with: sqlqueue group open --callback QUEUE")
    else:
        render.table(
            ["group", "state", "jobs", "pending", "succeeded", "failed", "cancelled", "callback", "opened"],
            [
                [
                    one.id,
                    _state(one),
                    one.members,
                    one.pending,
                    one.succeeded,
                    one.failed,
                    one.cancelled,
                    one.queue or "",
                    display.moment(one.created_at),
                ]
                for one in found
            ],
            right=["jobs", "pending", "succeeded", "failed", "cancelled"],
        )


def show(
    session: Session,
    group: GroupId,
    limit: Limit = "50",
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            show_default=False,
            help="Only jobs that ended in this state: succeeded, failed or cancelled.",
        ),
    ] = None,
) -> None:
    """Show a group and its jobs, ordered by their ids.

    Example: sqlqueue group show 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2e --state failed
    """
    id = group_id("the group", group)
    most = options.limit(limit)
    with session.queue() as source:
        groups = followers.Groups(source)
        found, members = groups.group(id), groups.members(id, states=None if state is None else [state], limit=most)
    if session.as_json:
        render.emit_json({**asdict(found), "jobs": [asdict(one) for one in members]})
        return
    render.say(_line(found))
    if members:
        render.table(["job", "state"], [[one.job_id, one.state or "has not ended"] for one in members])
    if len(members) == most:
        render.say(f"(the first {most:,}; --limit shows more)")


def followed_by(following: "Sequence[Follower]") -> str:
    """Return the followers of a job in words."""
    words = []
    for one in following:
        if one.group_id:
            words.append(f"group {one.group_id}")
        elif one.queue:
            states = "" if len(one.states) == len(ALL_STATES) else f" ({', '.join(one.states)})"
            words.append(f"queue {one.queue}{states}")
        else:
            words.append("a wait for its end")
    return ", ".join(words)


def group_id(option: str, text: str) -> UUID:
    """Return a group's id.

    Raises:
        InvalidInput: it is not a UUID.
    """
    try:
        return UUID(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r} is not a group's id; ids look like 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2e, as"
            " `sqlqueue group list` shows them"
        ) from None


def _read(source: "SqlQueue", group: UUID) -> "Group | None":
    """Return a group as it is now; None if the user may not see it, as a producer, who may fill it."""
    try:
        return followers.Groups(source).group(group)
    except AccessRefused:
        return None


def _report(session: Session, id: UUID, group: "Group | None", done: str) -> None:
    if session.as_json:
        render.emit_json({"id": id} if group is None else asdict(group))
    else:
        render.say(f"{done} group {id}" if group is None else _line(group))


def _line(group: "Group") -> str:
    jobs = f"{group.members:,} {'job' if group.members == 1 else 'jobs'}"
    ends = f"{group.succeeded:,} succeeded, {group.failed:,} failed, {group.cancelled:,} cancelled"
    return f"group {group.id} {_state(group)}: {jobs}, {group.pending:,} pending, {ends}"


def _state(group: "Group") -> str:
    if group.ended_at:
        return "has ended"
    return "is closed" if group.closed_at else "is open"
