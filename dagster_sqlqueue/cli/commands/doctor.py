"""`sqlqueue doctor`: check the database, and name a remedy for each finding."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(doctor)


def doctor(
    session: Session,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE:SPEC",
            show_default=False,
            help="QueueSpecs of your code, or handlers bound to them, to compare with the database. Other queues are"
            " compared with what their consumers declared.",
        ),
    ] = None,
) -> None:
    """Check the database for problems, present or coming, and name a remedy for each finding.

    It changes nothing. Each check is ok, warn (works, but needs attention) or fail (exit code 1).

    Examples: sqlqueue doctor --json

    sqlqueue doctor handlers:emails
    """
    from dagster_sqlqueue.doctor import Verdict, examine
    from dagster_sqlqueue.worker.handlers import import_from_working_directory, load_spec

    if specs:
        import_from_working_directory()
    declared = [load_spec(reference) for reference in specs or ()]
    with session.queue(checked=False) as queue:
        found = list(examine(queue.database, declared))
        where = f"schema {queue.database.schema} of {queue.database.where}"
    worst = max((check.verdict for check in found), key=list(Verdict).index)
    if session.as_json:
        render.emit_json({"verdict": worst, "checks": [asdict(check) for check in found]})
    else:
        render.say(where)
        render.table(
            ["check", "", "found", "what to do"],
            [[c.name, Text(c.verdict, style=_STYLES[c.verdict]), c.found, c.cure] for c in found],
        )
    if worst is Verdict.FAIL:
        raise typer.Exit(Code.FAILED)
