"""The commands' frame: shared options before the command, errors as one line, exit codes."""

import sys
from typing import Any

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError
from typer.core import TyperGroup

from dagster_sqlqueue import __version__
from dagster_sqlqueue.cli import doctor, look, write
from dagster_sqlqueue.cli.render import printable
from dagster_sqlqueue.cli.session import Json, Schema, Session, Url, refusal
from dagster_sqlqueue.errors import (
    DatabaseUnavailable,
    EmbeddedServerError,
    InvalidInput,
    QueueError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    UnknownQueue,
)

EXIT_CODES = """
Exit codes: 0 done. 1 doctor found a failure. 2 bad input or usage. 3 the database is not available, or refused.
4 the schema is missing, too old or too new. 5 unknown queue. 130 interrupted. Errors are one line on standard error.
"""


class Commands(TyperGroup):
    """The group of all commands; turns every error into a line and a code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line and exit."""
        session = extra["obj"] = Session()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            extra["standalone_mode"] = False
            sys.exit(super().main(*args, **extra) or 0)
        except (QueueError, psycopg.Error, SQLAlchemyError) as error:
            message = str(error) if isinstance(error, QueueError) else refusal(error)
            sys.exit(_report(message, _code(error), getattr(error, "__sqlqueue__", session)))
        except typer.TyperException as error:
            sys.exit(_report(_usage(error), 2, session))
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(0)
        except typer.Abort:
            sys.exit(130)


app = typer.Typer(
    name="sqlqueue",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
write.register(app)
look.register(app)
doctor.register(app)


@app.callback()
def shared(
    context: typer.Context, url: Url = None, schema: Schema = None, as_json: Json = False, version: bool = False
) -> None:
    pass


def main() -> None:
    """The entry point of the program `sqlqueue`."""
    app(prog_name="sqlqueue")
