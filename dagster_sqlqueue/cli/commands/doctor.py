"""`sqlqueue doctor`: what is wrong with the database, or soon will be, and what to do about it."""

from dataclasses import asdict

import typer
from rich.text import Text

from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(doctor)


def doctor(session: Session) -> None:
    """Look for what is wrong with the database, or soon will be, and say what to do about it.

    Changes nothing. Each check is ok, warn (works, but look after it) or fail (exit code 1).

    Example: sqlqueue doctor --json
    """
    from dagster_sqlqueue.doctor import Verdict, examine

    with session.queue(checked=False) as queue:
        found = list(examine(queue.database))
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
