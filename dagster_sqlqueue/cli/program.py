"""The frame of all commands: shared options before the command, one-line errors, exit codes."""

import atexit
import contextlib
import errno
import gc
import os
import re
import sys
import threading
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dagster_sqlqueue import __version__
from dagster_sqlqueue.cli.catalog import ENTRIES
from dagster_sqlqueue.cli.exit_codes import MEANINGS, Code, code_of, of_database
from dagster_sqlqueue.cli.output.render import say
from dagster_sqlqueue.cli.session import Json, Schema, Session, Url, refusal
from dagster_sqlqueue.display import printable
from dagster_sqlqueue.errors import QueueError

_EPILOG = (
    "First steps: sqlqueue migrate (or sqlqueue up, if you have no database), then sqlqueue create orders, then"
    " sqlqueue enqueue orders '{\"order\": 1}', then sqlqueue peek orders and sqlqueue stats.\n\nExit codes: "
    + "; ".join(f"{code:d} {meaning}" for code, meaning in MEANINGS.items())
    + ". An error is one line on standard error that begins with `error:`.\n\nTIME is a number of seconds, or a number with"
    " a unit: 90, 500ms, 5m, 2h, 7d. MOMENT is a date and time with a zone: 2026-01-31T08:00:00Z, or with +02:00."
)
_ENTRIES = {entry.name: entry for entry in ENTRIES}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TRACEBACK = "SQLQUEUE_TRACEBACK"
_CREDENTIALS = re.compile(r"://(?!user:password@)[^\s/]*@")


class Commands(TyperGroup):
    """The group of all commands; every error ends as one line on standard error and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command line, and exit."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
            sys.stdout.flush()
        except typer.TyperException as error:
            code = _report(_usage(error), Code.INPUT)
        except typer.Abort:
            code = Code.INTERRUPTED
        except BrokenPipeError:
            code = _closed_pipe()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            code = _unwritten(error)
        except SystemExit as end:
            # The console that prints the help ends the process at a broken pipe, with a code of its own.
            if not isinstance(end.__context__, BrokenPipeError):
                raise
            code = _closed_pipe()
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(_ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return what help and completion need about a command, without importing its module."""
        entry = _ENTRIES.get(cmd_name)
        return entry.listed() if entry else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the named command, to be run or completed, after importing its module."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, _ENTRIES[name].load() if name else listed, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the named command."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except QueueError as error:
            raise typer.Exit(_report(str(error), code_of(error), ctx.obj)) from None
        except BrokenPipeError:
            raise typer.Exit(_closed_pipe()) from None
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise typer.Exit(_unwritten(error)) from None
            if of_database(error):
                raise typer.Exit(_report(refusal(error), Code.DATABASE, ctx.obj)) from None
            if os.environ.get(_TRACEBACK):
                raise
            message = f"unexpected {type(error).__name__}: {error}; this is a bug, {_TRACEBACK}=1 shows where"
            raise typer.Exit(_report(message, Code.FAILED, ctx.obj)) from None


app = typer.Typer(
    name="sqlqueue",
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"sqlqueue {__version__}")
        raise typer.Exit


@app.callback()
def _shared(
    context: typer.Context,
    url: Url = None,
    schema: Schema = None,
    as_json: Json = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, show_default=False, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """A job queue in PostgreSQL: create and maintain queues, enqueue jobs, inspect them, and decide about them.

    The options under "Database and output" can be given before or after the command.
    """
    context.obj = Session(url, schema, as_json)
    if context.invoked_subcommand is None:
        say(context.get_help())


def main() -> None:
    """The entry point of the program `sqlqueue`."""
    # Until a command has its database: all that imports make stays, and to search it for garbage takes a tenth of the
    # start-up.
    gc.disable()
    _open_closed_streams()
    try:
        app(prog_name="sqlqueue")
    except SystemExit as end:
        _leave(end)
        raise
    finally:
        gc.enable()


def _open_closed_streams() -> None:
    """Open the null device in place of each standard stream that was closed, as by `>&-`.

    The first connection would get its number, and whatever writes to the stream by its number would write to that.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave(end: SystemExit) -> None:
    """End the process without taking its modules apart, which takes a fifth of the time of a short command.

    It returns where the interpreter has more to do: to wait for a thread, or to say that the output was not written.
    """
    if threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


def _write_no_more() -> None:
    """Throw away what is still to be written: the interpreter must not try it again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _closed_pipe() -> int:
    _write_no_more()
    return Code.CLOSED_PIPE


def _unwritten(error: OSError) -> int:
    _write_no_more()
    return _report(f"the output cannot be written: {error.strerror or error}", Code.FAILED)


def _report(message: str, code: int, session: Session | None = None) -> int:
    for secret in session.secrets() if session else []:
        message = message.replace(secret, "***")
    line = printable(" ".join(_CREDENTIALS.sub("://***@", message).split()))
    sys.stderr.write(f"error: {line}\n")
    return code


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "sqlqueue"
    return f"{error.format_message().rstrip('.')}; see: {path} --help"
