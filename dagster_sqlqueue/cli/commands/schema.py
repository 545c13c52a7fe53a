"""`sqlqueue schema`: the JSON Schema of a queue's payloads, for producers in other languages."""

from typing import Annotated

import typer

from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.payload.versions import json_schema
from dagster_sqlqueue.worker.handlers import import_from_working_directory, load_spec


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(schema)


def schema(
    session: Session,
    spec: Annotated[str, typer.Argument(metavar="MODULE:SPEC", help="A QueueSpec, or a handler bound to one.")],
) -> None:
    """Print the JSON Schema of a queue's payloads, from the code.

    It needs no database. A model with versions has its number in $version; a payload without it counts as version 1.
    Sensitive fields are marked x-sensitive.

    Example: sqlqueue schema handlers:emails
    """
    import_from_working_directory()
    render.emit_json(json_schema(load_spec(spec).payload))
