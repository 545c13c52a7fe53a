"""`sqlqueue up`: an embedded database for a first try."""

import gc
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
from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA, SCHEMA_VARIABLE
from dagster_sqlqueue.embedded import EmbeddedPostgres, supervisor
from dagster_sqlqueue.errors import EmbeddedServerError, InvalidInput

_POLL_SECONDS = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(up)


def up(session: Session) -> None:
    """Run an embedded PostgreSQL server, with the schema installed, until Ctrl-C or SIGTERM.

    For a first try, and for development, on one machine and by one user. The server comes with the package's extra
    `embedded`. It stores its data in .sqlqueue, in the current directory, or in SQLQUEUE_HOME, and the next start continues
    with it. It listens on a Unix socket, for the current user only. While it runs, other programs can use the URL that it
    prints, and other commands in this directory need no URL.

    Example: sqlqueue up
    """
    from dagster_sqlqueue.db.database import Database
    from dagster_sqlqueue.queue import SqlQueue

    gc.enable()
    server = EmbeddedPostgres()
    _refuse_another(session, server.directory)
    with server:
        with SqlQueue(Database(server.url, schema=session.schema_name, application_name="sqlqueue")) as queue:
            queue.migrate()
        _report(session, server)
        with stopped_by_signals() as (_, received):
            while supervisor.postmaster(server.directory) is not None and not received:
                time.sleep(_POLL_SECONDS)
    if signal.SIGINT in received:
        raise typer.Exit(Code.INTERRUPTED)
    if not received:
        raise EmbeddedServerError(f"the server in {server.directory} was stopped; start it again with: sqlqueue up")


def _refuse_another(session: Session, directory: Path) -> None:
    from dagster_sqlqueue.db.database import Database
    from dagster_sqlqueue.db.urls import parse_url

    given = session.url or os.environ.get("SQLQUEUE_URL")
    if not given:
        return
    url = parse_url(given)
    if url.query.get("host") == str(directory):
        return  # the URL that an earlier start has printed
    named = "--url" if session.url else "the environment variable SQLQUEUE_URL"
    cure = "leave it out" if session.url else "unset it"
    where = Database(given, schema=DEFAULT_SCHEMA).where
    raise InvalidInput(
        f"{named} names another server, {where}, but this command runs the embedded one, in {directory}: {cure} for that,"
        " or create the schema on the other server with: sqlqueue migrate"
    )


def _report(session: Session, server: EmbeddedPostgres) -> None:
    url = server.url.replace("+psycopg", "", 1)
    schema = session.schema_name
    if session.as_json:
        event = {"event": "running", "url": url, "schema": schema, "directory": str(server.directory)}
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
        return
    lines = [
        f"PostgreSQL runs in {server.directory} until Ctrl-C, with the queues in schema {schema}:",
        "",
        f"  {url}",
        "",
        "To use it from programs, and from commands in other directories:",
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
