"""What all commands share: which database they use, how they print results, how errors end."""

import gc
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA
from dagster_sqlqueue.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_sqlqueue.embedded import EmbeddedPostgres
    from dagster_sqlqueue.queue import SqlQueue

# The driver, SQLAlchemy and the modules that need them are imported inside functions, here and in the commands: help and
# completion work without them, and would take three times as long with them.

PANEL = "Database and output"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default=False,
        rich_help_panel=PANEL,
        help="The database: postgresql://user:password@host:5432/database. Prefer the environment variable"
        " SQLQUEUE_URL: other users of the machine can read command lines. Without either, the embedded server of the"
        " current directory (or of SQLQUEUE_HOME) is used, if `sqlqueue up` has started it before.",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME",
        show_default=False,
        rich_help_panel=PANEL,
        help=f"The schema of the queues' tables. Default: the environment variable SQLQUEUE_SCHEMA, or {DEFAULT_SCHEMA}.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", show_default=False, rich_help_panel=PANEL, help="Print JSON with stable keys, for programs."
    ),
]


_OwnUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default=False,
        rich_help_panel=PANEL,
        help="The database. Default: SQLQUEUE_URL, or the embedded server; see: sqlqueue --help",
    ),
]


@dataclass(frozen=True)
class Session:
    """The options that every command takes, given before or after the command's name."""

    url: str | None = None
    schema: str | None = None
    as_json: bool = False

    def __repr__(self) -> str:
        return f"Session(schema={self.schema!r}, as_json={self.as_json})"

    def secrets(self) -> list[str]:
        """Texts that must not appear in any message."""
        from dagster_sqlqueue.db.urls import parse_url

        url = self.url or os.environ.get("SQLQUEUE_URL") or ""
        try:
            password = parse_url(url).password if url else None
        except InvalidInput:
            return [url]
        return [url, str(password)] if password else []

    @contextmanager
    def queue(self, *, checked: bool = True, pool_size: int = 2, connect_timeout: int = 10) -> "Iterator[SqlQueue]":
        """Yield the queues of the database, for the block.

        Args:
            checked: refuse a schema that is missing, too old or too new.
            pool_size: number of connections.
            connect_timeout: seconds to wait for the server.

        Raises:
            InvalidInput: no database is named, or its URL is not usable.
            EmbeddedServerError: the embedded server does not start.
            SchemaMissing, SchemaTooOld, SchemaTooNew: with `checked`, the schema is.
        """
        from dagster_sqlqueue.db.database import Database
        from dagster_sqlqueue.queue import SqlQueue
        from dagster_sqlqueue.schema import migrations

        with ExitStack() as stack:
            database = Database(
                self._url or stack.enter_context(_embedded()).url,
                schema=self.schema_name,
                pool_size=pool_size,
                application_name="sqlqueue",
                connect_timeout=connect_timeout,
            )
            queue = stack.enter_context(SqlQueue(database))
            if checked:
                migrations.check(database)
            gc.enable()
            yield queue

    def reachable(self) -> bool:
        """Return whether a database is named, or the embedded server is running; does not start it, unlike `queue`."""
        from dagster_sqlqueue.embedded import home, supervisor

        return self._url is not None or supervisor.postmaster(home() / "postgres") is not None

    @property
    def schema_name(self) -> str:
        """The schema that contains the queues' tables."""
        from dagster_sqlqueue.db.schema_name import default_schema

        return self.schema or default_schema()

    @property
    def _url(self) -> str | None:
        url = self.url or os.environ.get("SQLQUEUE_URL") or None
        if url and "@" in _database_of(url):
            raise InvalidInput(
                "the database URL has an '@' after the host's '/': in a password, write the characters @ : / ? # % as"
                " %40 %3A %2F %3F %23 %25"
            )
        return url


def _database_of(url: str) -> str:
    from dagster_sqlqueue.db.urls import parse_url

    try:
        return parse_url(url).database or ""
    except InvalidInput:
        return ""


@contextmanager
def _embedded() -> "Iterator[EmbeddedPostgres]":
    from dagster_sqlqueue.embedded import EmbeddedPostgres, home

    directory = home() / "postgres"
    if not (directory / "PG_VERSION").exists():
        raise InvalidInput(
            "no database is named: set SQLQUEUE_URL, or give --url postgresql://user:password@host:5432/database, or start"
            f" an embedded server (there is none in {directory}) with: sqlqueue up"
        )
    with EmbeddedPostgres(directory) as server:
        yield server


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command: of a `Session` and its own options, with the shared options added.

    Args:
        app: the program.
        name: the command's name, if it differs from the function's.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(context: typer.Context, url: str | None, schema: str | None, as_json: bool, **own: Any) -> None:
            outer = cast(Session, context.obj)
            session = replace(
                outer, url=url or outer.url, schema=schema or outer.schema, as_json=as_json or outer.as_json
            )
            context.find_root().obj = session
            function(session, **own)

        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_OwnUrl),
            inspect.Parameter("schema", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Schema),
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json),
        ]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        run.__signature__ = inspect.Signature([context, *keyword, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [context, *keyword, *shared]}
        run.__doc__ = _reflowed(function)
        run.__name__ = function.__name__
        app.command(name)(run)
        return function

    return register


def _reflowed(function: Callable[..., Any]) -> str:
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def refusal(error: Exception) -> str:
    """Return the database's message about a refused statement that has no error class of its own."""
    original = getattr(error, "orig", None) or error  # SQLAlchemy's errors have the driver's
    lines = str(original).strip().splitlines() or [type(original).__name__]
    return f"the database refused the statement: {lines[0]}"
