"""The commands about batches, a group: `batch list`, `show`, `abandon`, `forget`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Limit, OneQueue
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import UnknownBatch

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.queue.batch_admin import BatchRow, Decided

_SHOWN_ERROR = 200

Batches = Annotated[
    list[str],
    typer.Argument(metavar="BATCH...", help="Id of a batch, or its key, for the latest batch with that key."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", show_default=False, help="Change nothing; show which batches would be selected.")
]


def register(app: typer.Typer) -> None:
    """Add the group with its commands."""
    group = typer.Typer(name="batch", invoke_without_command=True, callback=_group)
    command(group, "list")(list_batches)
    for function in (show, abandon, forget):
        command(group)(function)
    app.add_typer(group)


def _group(context: typer.Context) -> None:
    """List, show, abandon and delete the batches of Spark."""
    if context.invoked_subcommand is None:
        render.say(context.get_help())


def list_batches(
    session: Session,
    queue: OneQueue = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            show_default=False,
            help="sealing, sealed, published, abandoned, or open for the first two; can be repeated.",
        ),
    ] = None,
    limit: Limit = "20",
) -> None:
    """List batches, the latest first: key, number of jobs, owner and error.

    Examples: sqlqueue batch list

    sqlqueue batch list daily --state open --state abandoned
    """
    from dagster_sqlqueue.queue import batch_admin

    asked = [one for name in state or [] for one in (batch_admin.OPEN_STATES if name == "open" else (name,))]
    most = options.limit(limit)
    with session.queue() as source:
        if queue is not None:
            source.catalog.check_exists(queue)
        found = batch_admin.batches(source.database, queue, states=asked or batch_admin.STATES, limit=most)
    if session.as_json:
        render.emit_json([_json(one) for one in found])
    elif found:
        _table(found)
    else:
        render.say("no batch")


def show(
    session: Session,
    batch: Annotated[
        str, typer.Argument(metavar="BATCH", help="Id of the batch, or its key, for the latest batch with that key.")
    ],
) -> None:
    """Show one batch: state, jobs, owner, rest of its lease, attempts, error, output, and whether its files are in place.

    Examples: sqlqueue batch show sizes/2013-07-04

    sqlqueue batch show 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    with session.queue() as source:
        (one,) = _named(source, [batch])
    if session.as_json:
        render.emit_json(_json(one))
        return
    render.say(display.printable(f"batch {one.key} of queue {one.queue} is {one.state}"))
    render.pairs(_rows(one))


def abandon(
    session: Session,
    batch: Batches,
    held: Annotated[
        bool,
        typer.Option(
            "--held",
            show_default=False,
            help="Also abandon a batch whose lease has not expired; its driver notices at its next heartbeat.",
        ),
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="Reason; stored with the batch and its jobs.")
    ] = "abandoned by an operator",
    dry_run: DryRun = False,
) -> None:
    """Abandon open batches: their jobs are due again, and the batches can no longer be published.

    No attempt is spent; outcomes that were reported for single jobs are applied. A batch that its driver left behind is
    taken over by the next run of its key, or abandoned by `maintain`: use this command if that is too late. A batch that is
    held, or that a transaction is sealing or publishing, is left unchanged, and the exit code is 6.

    Example: sqlqueue batch abandon sizes/2013-07-04 --dry-run
    """
    from dagster_sqlqueue.queue import batch_admin

    with session.queue() as source:
        found = _named(source, batch)
        ids = [one.id for one in found]
        decided = batch_admin.abandon(source, ids, reason=reason, held=held, dry_run=dry_run)
    _report(session, found, decided, "abandoned", dry_run)


def forget(
    session: Session,
    batch: Batches,
    unmoved: Annotated[
        bool,
        typer.Option(
            "--unmoved",
            show_default=False,
            help="Also delete a batch whose files are not known to be in place, because they are lost, for example.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete batches that have ended, with the record of how often their keys failed, and where their output is.

    `maintain` deletes them after the queue's retention, except the last ones of each key. Exit code 6: some were left
    unchanged.

    Example: sqlqueue batch forget sizes/2013-07-04 --unmoved
    """
    from dagster_sqlqueue.queue import batch_admin

    with session.queue() as source:
        found = _named(source, batch)
        decided = batch_admin.forget(source, [one.id for one in found], unmoved=unmoved, dry_run=dry_run)
    _report(session, found, decided, "deleted", dry_run)


def _named(source: "SqlQueue", words: Sequence[str]) -> "list[BatchRow]":
    """Return the batches with these ids or keys.

    Raises:
        UnknownBatch: one of them does not exist.
    """
    from dagster_sqlqueue.queue import batch_admin

    found = []
    for word in words:
        try:
            some = batch_admin.batches(source.database, ids=[UUID(word)], limit=1)
        except ValueError:
            some = batch_admin.batches(source.database, key=word, limit=1)
        if not some:
            raise UnknownBatch(f"there is no batch {word!r}; list them with: sqlqueue batch list")
        found += some
    return found


def _report(session: Session, found: "Sequence[BatchRow]", decided: "Decided", done: str, dry_run: bool) -> None:
    keys = {one.id: one.key for one in found}
    if session.as_json:
        reasons = [{"id": str(id), "reason": reason} for id, reason in decided.skipped.items()]
        values = {"changed": list(map(str, decided.changed)), "skipped": reasons}
        render.emit_json({**values, "returned": decided.returned, "ended": decided.ended, "dry_run": dry_run})
    else:
        for id in decided.changed:
            would = "would be" if dry_run else "was"
            what = "abandoned" if done == "abandoned" else "deleted"
            render.say(display.printable(f"batch {keys[id]} ({id}) {would} {what}"))
        if decided.returned or decided.ended:
            ended = f", {decided.ended:,} ended as reported" if decided.ended else ""
            render.say(f"jobs due again: {decided.returned:,}{ended}")
        if dry_run:
            render.say("Nothing was changed (--dry-run)")
        if decided.skipped:
            render.table(
                ["left unchanged", "key", "because"], [(id, keys[id], why) for id, why in decided.skipped.items()]
            )
    if decided.skipped:
        raise typer.Exit(Code.PARTLY)


def _json(one: "BatchRow") -> dict[str, Any]:
    return {**asdict(one), "id": str(one.id)}


def _table(found: "Sequence[BatchRow]") -> None:
    render.table(
        ["key", "state", "jobs", "try", "held", "opened", "id", "owner", "files", "error"],
        [
            [
                one.key,
                one.state,
                "" if one.job_count is None else f"{one.job_count:,}",
                one.attempt,
                _lease(one),
                display.moment(one.created_at),
                one.id,
                one.owner,
                "not moved" if one.unmoved else "",
                Text(display.printable((one.error or "")[:_SHOWN_ERROR]), style="red"),
            ]
            for one in found
        ],
        right=["jobs", "try"],
    )


def _lease(one: "BatchRow") -> str:
    if not one.open:
        return ""
    if one.mode == "transactional":
        return "by its transaction"
    return f"for {views.length(round(one.lease_seconds))}" if one.held else "by no process"


def _rows(one: "BatchRow") -> Iterator[tuple[str, Any]]:
    yield "id", one.id
    yield "mode", one.mode
    yield "jobs", "being sealed" if one.job_count is None and one.open else f"{one.job_count or 0:,}"
    yield ("owner" if one.open else "last owner"), one.owner
    if one.open:
        yield "held", _lease(one)
        yield "token", f"{one.token}, for {views.length(round(one.token_seconds))}"
    yield "attempt", one.attempt
    yield "opened", display.moment(one.created_at)
    yield "due until", display.moment(one.sealed_at)
    if one.published_at:
        yield "published", display.moment(one.published_at)
        yield "files", "not moved to their place yet" if one.unmoved else "in their place, if there are any"
    if one.error:
        yield "error", Text(display.printable(one.error, lines=True), style="red")
    if one.output:
        yield "output", json.dumps(one.output)
