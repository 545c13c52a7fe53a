"""The SQL functions: made of the verbs' statements, and installed beside the tables.

Their definitions are the files under `sql/<dialect>/api/v1/`. Where one says `{{enqueue}}`, the text of the statement
`enqueue.sql` stands in the database, with `param.name` for each parameter `:name`: `param` is the block that declares them.
For the server, what a function does happens at the time of the call, which may have waited for a lock since: so
`param.clock` takes the place of `statement_timestamp()`, and is set before each statement that needs it.

The functions of version 1 are in a schema of their own, the queues' with `_v1`. Their signatures never change; their bodies
do, in the transaction of the migrations that they follow.

Those under `api/owner/` are in the queues' own schema and run with the rights of its owner: they delete jobs and write the
archive for consumers, and replace payloads for operators, who may do none of this by themselves. The statements that Python
runs call them, and so do the functions of version 1. A signature stays for as long as a package calls it that the schema
serves.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg

from dagster_sqlqueue.__about__ import __version__
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput

VERSION = "v1"
_OWNER = "owner"

_LONGEST = 63
_INCLUDED = re.compile(r"\{\{([a-z_]+)\}\}")
_FUNCTION = re.compile(r"^CREATE OR REPLACE FUNCTION sqlqueue_v1\.([a-z_]+)\(", re.MULTILINE)
_OWNERS_FUNCTION = re.compile(r"^CREATE OR REPLACE FUNCTION sqlqueue\.([a-z_]+)\(", re.MULTILINE)
PURPOSE = "functions of the queues in schema "
"""How the comment of a schema begins that holds such functions."""

_PURPOSE = PURPOSE + "{}: version 1"


@dataclass(frozen=True, slots=True)
class FunctionsState:
    """The functions of a schema, compared with those of this package.

    Attributes:
        pinned: the schema that programs call.
        installed_by: the version of the package that made them; None: none did.
        current: whether they are this package's, or those of a newer one.
        missing: the names of those that are not there, by schema.
    """

    pinned: str
    installed_by: str | None
    current: bool
    missing: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether nothing is to be done."""
        return self.current and not self.missing


def pinned_schema(schema: str) -> str:
    """The schema of the functions whose signatures stay."""
    return schema[: _LONGEST - len(VERSION) - 1] + f"_{VERSION}"


@cache
def _files(part: str = VERSION) -> dict[str, str]:
    folder = statements.folder() / "api" / part
    found = {file.name: _expanded(file.read_text(encoding="utf-8")) for file in folder.iterdir()}
    return dict(sorted(found.items()))


@cache
def names() -> tuple[str, ...]:
    """The functions that people call, by name."""
    found = (_FUNCTION.search(text) for text in _files().values())
    return tuple(match[1] for match in found if match and not match[1].startswith("_"))


@cache
def definitions() -> str:
    """The text that makes all the functions, with the schema's name as in the files."""
    newest = (statements.folder() / "api" / "newest.sql").read_text(encoding="utf-8")
    return "\n".join([*_files(_OWNER).values(), *_files().values(), newest])


def digest() -> str:
    """What distinguishes these definitions from those of another version of the package."""
    return hashlib.sha256(definitions().encode()).hexdigest()


def install(connection: "psycopg.Connection[Any]", database: Database) -> bool:
    """Make the functions, in the transaction of the connection; returns whether there was anything to do.

    Those of a newer version of the package are left as they are.

    Raises:
        InvalidInput: the schema that they are to be in is somebody else's; nothing was changed.
    """
    schema = database.schema
    transaction = Transaction(connection, database)
    found, purpose = _read(transaction, schema), _PURPOSE.format(schema)
    pinned = pinned_schema(schema)
    if found.pinned_used and found.pinned_is != purpose:
        raise InvalidInput(
            f"schema {pinned!r}, where the SQL functions of schema {schema!r} are to be, holds something else"
            f" ({found.pinned_is or 'without a comment'}); drop it, or choose another schema for the queues"
        )
    if _state(found, schema).usable:
        return False
    # They run with the rights of their caller, which allow no more through them than on the tables directly.
    # Those of its owner are granted by roles_grant.sql. Their variables have the names of their parameters, which a database
    # may have made an error.
    makes = (
        "SET LOCAL plpgsql.extra_errors = 'none';"
        f' CREATE SCHEMA IF NOT EXISTS "{pinned}"; COMMENT ON SCHEMA "{pinned}" IS \'{purpose}\';'
        f' GRANT USAGE ON SCHEMA "{pinned}" TO PUBLIC;'
    )
    connection.execute("\n".join([makes, _in_schema(definitions(), schema)]).encode())
    transaction.run("function_set_note", {"name": VERSION, "digest": digest(), "library": __version__})
    return True


def state(database: Database) -> FunctionsState:
    """What is known of the functions of a schema.

    Raises:
        SchemaMissing: the queues' tables are not there, or older than the functions.
    """
    with database.connection() as connection:
        return _state(_read(Transaction(connection, database), database.schema), database.schema)


@dataclass(frozen=True, slots=True)
class _Found:
    """The row of `function_set.sql`."""

    digest: str | None
    library: str | None
    pinned_functions: list[str]
    own_functions: list[str]
    pinned_is: str | None
    pinned_used: bool


def _read(transaction: Transaction, schema: str) -> _Found:
    rows: list[Row] = list(transaction.run("function_set", {"name": VERSION, "pinned": pinned_schema(schema)}))
    return _Found(*rows[0])


def _state(found: _Found, schema: str) -> FunctionsState:
    pinned = pinned_schema(schema)
    all_pinned = [match[1] for text in _files().values() for match in _FUNCTION.finditer(text)]
    missing = [f"{pinned}.{name}" for name in all_pinned if name not in found.pinned_functions]
    owners = [match[1] for text in _files(_OWNER).values() for match in _OWNERS_FUNCTION.finditer(text)]
    missing += [f"{schema}.{name}" for name in (*names(), *owners) if name not in found.own_functions]
    newer = found.library is not None and _parts(found.library) > _parts(__version__)
    if newer:
        missing = []
    return FunctionsState(pinned, found.library, newer or found.digest == digest(), tuple(missing))


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _expanded(text: str) -> str:
    """A definition with the statements that it includes."""
    return _INCLUDED.sub(lambda match: included(match[1]), text)


def included(name: str) -> str:
    """A statement as the functions hold it, with `param.name` for its parameters.

    Raises:
        InvalidInput: there is no such file.
    """
    if name == "settings":
        text = (statements.folder() / "api" / "settings.sql").read_text(encoding="utf-8")
    else:
        text = statements.source(name)
    text = statements.without_comments(text).replace("statement_timestamp()", "param.clock")
    return statements.PARAMETER.sub(r"param.\1", text)


def _in_schema(text: str, schema: str) -> str:
    """The definitions with both their schemas replaced, quoted."""
    pinned = pinned_schema(schema)
    text = text.replace("sqlqueue_v1.", f'"{pinned}".').replace("'sqlqueue_v1'", f"'{pinned}'")
    return statements.in_schema(text, schema)
