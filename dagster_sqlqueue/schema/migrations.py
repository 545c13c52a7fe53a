"""The schema's versions: numbered migrations, applied in order, under a lock, in one transaction with the SQL functions.

What a migration is: see `migration_files`. Which versions of schema and code work together: see `window`.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import psycopg

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput, SchemaMissing, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.schema import functions, migration_files, partitions, roles, window
from dagster_sqlqueue.schema.migration_files import Migration as Migration

_LOCK = 0x73716C71756575
_NAMED = 3


@cache
def available() -> tuple[Migration, ...]:
    """Every migration of this library, in order."""
    return migration_files.read(statements.folder() / "migrations")


def migrate(database: Database) -> list[Migration]:
    """Bring the schema to this library's version, making it if it is not there.

    Safe to call again and from several processes at once: one applies, the others wait and find nothing to do. It is one
    transaction: whoever calls the SQL functions meanwhile finds the old tables with the old functions, or the new ones with
    the new, and a migration that fails leaves everything as it was. Where the schema has roles, they are granted what they
    need in it; see `roles`. A schema that is newer than this library and still serves it is left as it is.

    Returns:
        The migrations that this call applied.

    Raises:
        InvalidInput: the schema, or the one of its SQL functions, is in use for something else, or the connection is a
            pooler's in transaction mode; nothing was made.
        SchemaTooNew: the schema does not serve this library any more.
        AccessRefused: the user does not own the schema, or may not make it.
        DatabaseUnavailable: see the class.
    """
    applied = []
    with (
        database.connection() as connection,
        database.naming_schema("prepare_schema", connection=connection),
        _locked(connection, database),
    ):
        _refuse_strangers(connection, database)
        _prepare(connection, database.schema)
        at = Transaction(connection, database)
        rows = [(version, serves_from) for version, serves_from in at.run("versions", {})]
        standing = window.compare(rows, available(), database, migrating=True)
        if standing.schema > standing.code:
            window.note_once(standing, database)
            return []
        present = {version for version, _ in rows}
        with connection.transaction():
            for migration in available():
                if migration.version in present:
                    continue
                connection.execute(statements.in_schema(migration.text, database.schema).encode())
                connection.execute(
                    statements.load("record_version", database.schema).encode(),
                    {"version": migration.version, "name": migration.name, "serves_from": migration.serves_from},
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
    with database.connection() as connection, _locked(connection, database):
        at = Transaction(connection, database)
        installed = roles.make(at, database.schema)
        with connection.transaction():
            roles.grant(at, database.schema)
    return installed


def check(database: Database) -> int:
    """The schema's version, when it and this library work together. That they differ is logged once.

    Raises:
        SchemaMissing: the tables are not there.
        SchemaTooOld: the schema has to be upgraded first.
        SchemaTooNew: this package has to be upgraded first.
    """
    found = standing(database)
    window.note_once(found, database)
    return found.schema


def standing(database: Database) -> window.Standing:
    """The schema's version beside the library's, when they work together.

    Raises:
        SchemaMissing, SchemaTooOld, SchemaTooNew: as `check`.
    """
    return window.compare(_applied(database), available(), database)


@contextlib.contextmanager
def explaining(database: Database) -> Iterator[None]:
    """Say which version is to be upgraded, when a statement of the block fails as the schema does not serve this library any
    more.

    Raises:
        SchemaMissing, SchemaTooOld, SchemaTooNew: in place of the driver's error.
    """
    try:
        yield
    except (psycopg.ProgrammingError, SchemaMissing) as error:
        try:
            check(database)
        except (SchemaTooOld, SchemaTooNew) as outside:
            raise outside from error
        raise


def _applied(database: Database) -> list[tuple[int, int]]:
    with database.connection() as connection:
        try:
            return [(version, serves) for version, serves in Transaction(connection, database).run("versions", {})]
        except (psycopg.errors.UndefinedTable, SchemaMissing):
            raise SchemaMissing(
                f"schema {database.schema!r} of {database.where} does not hold the queue's tables."
                " Make them with: sqlqueue migrate"
            ) from None


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


def _prepare(connection: "psycopg.Connection[Any]", schema: str) -> None:
    with connection.transaction():
        connection.execute(statements.load("prepare_schema", schema).encode())


@contextlib.contextmanager
def _locked(connection: "psycopg.Connection[Any]", database: Database) -> Iterator[None]:
    if database.shared:
        raise InvalidInput(
            f"{database.where} is a pooler that lends sessions for a transaction, and a migration locks for longer: give"
            " migrate the URL of the database itself (--url), without pooler=transaction"
        )
    connection.execute(statements.load("migration_lock").encode(), {"key": _LOCK})
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute(statements.load("migration_unlock").encode(), {"key": _LOCK})
