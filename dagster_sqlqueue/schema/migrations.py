"""The schema's versions: numbered migrations, applied in order, under a lock, in one transaction with the SQL functions.

A migration is a file `0002_name.sql`, or a folder `0001_name` of files that are one text in the order of their names.
One that was released is never changed: what comes later is one more.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput, SchemaMissing, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.schema import functions, partitions, roles

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)(\.sql)?")
_LOCK = 0x73716C71756575
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file or folder under `sql/<dialect>/migrations/`."""

    version: int
    name: str
    text: str


@cache
def available() -> tuple[Migration, ...]:
    """Every migration of this library, in order."""
    found = []
    for entry in (statements.folder() / "migrations").iterdir():
        if match := _NAME.fullmatch(entry.name):
            files = sorted(entry.iterdir(), key=lambda file: file.name) if entry.is_dir() else [entry]
            text = "\n".join(file.read_text(encoding="utf-8") for file in files)
            found.append(Migration(int(match[1]), match[2], text))
    return tuple(sorted(found, key=lambda migration: migration.version))


def migrate(database: Database) -> list[Migration]:
    """Bring the schema to this library's version, making it if it is not there.

    Safe to call again and from several processes at once: one applies, the others wait and find nothing to do. It is one
    transaction: whoever calls the SQL functions meanwhile finds the old tables with the old functions, or the new ones with
    the new, and a migration that fails leaves everything as it was. Where the schema has roles, they are granted what they
    need in it; see `roles`.

    Returns:
        The migrations that this call applied.

    Raises:
        InvalidInput: the schema, or the one of its SQL functions, is in use for something else; nothing was made in it.
        SchemaTooNew: the schema has migrations that this library does not know.
        AccessRefused: the user does not own the schema, or may not make it.
        DatabaseUnavailable: see the class.
    """
    applied = []
    with (
        database.connection() as connection,
        database.naming_schema("prepare_schema", connection=connection),
        _locked(connection),
    ):
        _refuse_strangers(connection, database)
        _prepare(connection, database.schema)
        present = _versions(connection, database.schema)
        _refuse_newer(present, database)
        at = Transaction(connection, database)
        with connection.transaction():
            for migration in available():
                if migration.version in present:
                    continue
                connection.execute(statements.in_schema(migration.text, database.schema).encode())
                connection.execute(
                    statements.load("record_version", database.schema).encode(),
                    {"version": migration.version, "name": migration.name},
                )
                applied.append(migration)
            changed = functions.install(connection, database)
            # A table that a consumer needs, and may not read, would stop it from the commit on.
            if roles.in_use(at, database.schema) and (
                applied or changed or roles.compared(at, database.schema).lacking
            ):
                roles.grant(at, database.schema)
        # Days that already have rows in the default partition are the business of `maintain`.
        partitions.make_missing(at, strays=False)
    return applied


def install_roles(database: Database) -> list[roles.InstalledRole]:
    """Make the roles of the schema that are not there, and grant all of them what they are to have and nothing else.

    Safe to call again. The schema has to be at this library's version.

    Returns:
        The roles, by name.

    Raises:
        InvalidInput: the schema's name is too long for names of roles, or a role of such a name is somebody else's;
            nothing was granted.
        AccessRefused: the user may not make roles, or does not own the schema; the message says what to do.
        SchemaMissing, SchemaTooOld, SchemaTooNew: see the classes.
    """
    check(database)
    with database.connection() as connection, _locked(connection):
        at = Transaction(connection, database)
        installed = roles.make(at, database.schema)
        with connection.transaction():
            roles.grant(at, database.schema)
    return installed


def check(database: Database) -> int:
    """The schema's version, when it is the one of this library.

    Raises:
        SchemaMissing: the tables are not there.
        SchemaTooOld: migrations are missing.
        SchemaTooNew: it has migrations that this library does not know.
    """
    with database.connection() as connection:
        try:
            present: set[int] = {row[0] for row in Transaction(connection, database).run("versions", {})}
        except (psycopg.errors.UndefinedTable, SchemaMissing):
            raise SchemaMissing(
                f"schema {database.schema!r} of {database.where} does not hold the queue's tables."
                " Make them with: sqlqueue migrate"
            ) from None
    _refuse_newer(present, database)
    missing = [m for m in available() if m.version not in present]
    if missing:
        names = ", ".join(f"{m.version:04}_{m.name}" for m in missing)
        raise SchemaTooOld(
            f"schema {database.schema!r} of {database.where} is at version {max(present, default=0)} and lacks {names}."
            " Apply them with: sqlqueue migrate"
        )
    return max(present)


def _refuse_newer(present: set[int], database: Database) -> None:
    newest = available()[-1].version
    if present and max(present) > newest:
        raise SchemaTooNew(
            f"schema {database.schema!r} of {database.where} is at version {max(present)}, this library knows versions up"
            f" to {newest}. Upgrade it with: pip install --upgrade dagster-sqlqueue"
        )


def _refuse_strangers(connection: "psycopg.Connection[Any]", database: Database) -> None:
    """Make no tables among somebody else's: a name that both have would be taken for the queue's, or stop the migration."""
    found = connection.execute(statements.load("schema_strangers").encode(), {"schema": database.schema}).fetchall()
    if found:
        purpose = found[0][2]
        if purpose and purpose.startswith(functions.PURPOSE):
            held = f"the {purpose}"
        else:
            held = ", ".join(f"the {kind} {name}" for kind, name, _ in found[:_NAMED])
            held += f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise InvalidInput(
            f"schema {database.schema!r} of {database.where} is not usable: it holds {held}, and not the queue's tables,"
            " which want a schema of their own; choose a name that is free (--schema, SQLQUEUE_SCHEMA), and migrate makes it"
        )


def _versions(connection: "psycopg.Connection[Any]", schema: str) -> set[int]:
    return {row[0] for row in connection.execute(statements.load("versions", schema).encode())}


def _prepare(connection: "psycopg.Connection[Any]", schema: str) -> None:
    with connection.transaction():
        connection.execute(statements.load("prepare_schema", schema).encode())


@contextlib.contextmanager
def _locked(connection: "psycopg.Connection[Any]") -> Iterator[None]:
    connection.execute(statements.load("migration_lock").encode(), {"key": _LOCK})
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute(statements.load("migration_unlock").encode(), {"key": _LOCK})
