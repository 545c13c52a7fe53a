"""`sqlqueue doctor`: what is wrong with the database, or soon will be, and what to do about it."""

from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.text import Text

from dagster_sqlqueue import migrations
from dagster_sqlqueue.cli import checks, inspections, render
from dagster_sqlqueue.cli.checks import Check, Verdict
from dagster_sqlqueue.cli.codes import Code
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.database import Database
from dagster_sqlqueue.errors import SchemaMissing, SchemaTooNew, SchemaTooOld

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, panel="Keep")(doctor)


def doctor(session: Session) -> None:
    """Look for what is wrong with the database, or soon will be, and say what to do about it.

    Changes nothing. Each check is ok, warn (works, but look after it) or fail (exit code 1).

    Example: sqlqueue doctor --json
    """
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


def examine(database: Database) -> Iterator[Check]:
    """Every check, in the order of the report; those that need the tables only where the schema is the library's.

    Raises:
        DatabaseUnavailable: there is nothing to examine.
    """
    schema = _schema(database)
    server = inspections.server(database)
    yield schema
    for check in (
        checks.version,
        checks.isolation,
        checks.durability,
        checks.clock,
        checks.connections,
        checks.transaction_ids,
    ):
        yield check(server)
    yield inspections.collation(server, database)
    yield inspections.autovacuum(server, database)
    yield inspections.pins(server, database)
    yield inspections.dead_rows(database)
    if schema.verdict is not Verdict.FAIL:
        yield inspections.sql_functions(database)
        yield inspections.indexes(database)
        yield from inspections.archive(database)
        yield inspections.retention(database)
        yield inspections.queues(database)
        yield inspections.keys(database)
        yield inspections.schedules(database)
        yield inspections.roles(database)


def _schema(database: Database) -> Check:
    try:
        return Check("schema", Verdict.OK, f"version {migrations.check(database)}, the one of this package")
    except (SchemaMissing, SchemaTooOld, SchemaTooNew) as error:
        found, _, cure = str(error).rpartition(". ")
        return Check("schema", Verdict.FAIL, found, cure)
