"""The command about the SQL functions: `functions`."""

import typer

from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(functions)


def functions(session: Session) -> None:
    """List the SQL functions for triggers, psql and other languages, and whether they are current.

    `sqlqueue migrate` installs them. Exit code 1: some are missing, or they are those of an older package.

    Example: sqlqueue functions
    """
    from dagster_sqlqueue.schema import functions as installed

    with session.queue() as queue:
        state = installed.state(queue.database)
        schema, where = queue.database.schema, queue.database.where
    names = list(installed.names())
    if session.as_json:
        render.emit_json(
            {
                "schema": schema,
                "pinned_schema": state.pinned,
                "installed_by": state.installed_by,
                "current": state.current,
                "missing": list(state.missing),
                "functions": names,
            }
        )
    else:
        render.say(f"schema {schema} of {where}; programs call {state.pinned}, whose functions keep their signatures")
        render.say(", ".join(names))
        if state.usable:
            render.say(f"installed by version {state.installed_by}, and nothing is missing")
        elif state.missing:
            render.say(f"missing: {', '.join(state.missing)}; install them with: sqlqueue migrate")
        else:
            render.say(f"installed by version {state.installed_by}, and outdated; update them with: sqlqueue migrate")
    if not state.usable:
        raise typer.Exit(Code.FAILED)
