"""The schema's versions: numbered migrations, applied in order by one process at a time, with the SQL functions.

What a migration is: see `migration_files`. Which versions of schema and code work together: see `window`.
"""

import asyncio
import contextlib
import itertools
import shlex
from collections.abc import AsyncIterator, Iterator
from functools import cache, partial
from typing import Any

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, SchemaMissing, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.schema import functions, migration_files, online_indexes, partitions, roles, window
from dagster_sqlqueue.schema.lock_waits import LockWaits
from dagster_sqlqueue.schema.migration_files import Migration as Migration

_NAMED = 3
_OF_ANOTHER_SCHEMA = (
    psycopg.ProgrammingError,
    psycopg.IntegrityError,
    sa.exc.ProgrammingError,
    sa.exc.IntegrityError,
    SchemaMissing,
)
"""What a statement raises in a schema that it was not written for."""


@cache
def available() -> tuple[Migration, ...]:
    """Every migration of this library, in order."""
    return migration_files.read(statements.folder() / "migrations")


def migrate(database: Database, waits: LockWaits | None = None) -> list[Migration]:
    """Bring the schema to this library's version, making it if it is not there.

    Safe to call again and from several processes at once: one applies, the others wait and find nothing to do. Migrations
    that follow each other are one transaction, the last of them with the SQL functions: a caller of these meanwhile finds
    the old tables with the old functions, or the new ones with the new, and a migration that fails leaves everything as it
    was. One without a transaction makes its indexes while everybody goes on; what is left of it when it is interrupted, the
    next call finishes. Where the schema has roles, they are granted what they need in it; see `roles`. A schema that is
    newer than this library and still serves it is left as it is.

    Args:
        database: where the schema is. What a wait is for can be reported if its pool has two connections.
        waits: how long locks are waited for.

    Returns:
        The migrations that this call applied.

    Raises:
        InvalidInput: the schema, or the one of its SQL functions, is in use for something else, the encoding of the database
            is not UTF8, or the connection is a pooler's in transaction mode; nothing was made.
        SchemaTooNew: the schema does not serve this library any more.
        SchemaBusy: others held locks for too long; what was applied before is kept, and the next call goes on from there.
        AccessRefused: the user does not own the schema, or may not make it.
        DatabaseUnavailable: see the class.
    """
    waits = waits or LockWaits()
    applied: list[Migration] = []
    while True:
        done, online = waits.patiently(partial(_apply_together, database, waits))
        applied += done
        if online is None:
            break
        if waits.patiently(partial(_apply_online, database, online, waits)):
            applied.append(online)
    with database.connection() as connection:
        # Days that already have rows in the default partition are the business of `maintain`.
        partitions.make_missing(Transaction(connection, database), strays=False)
    return applied


def pending(database: Database) -> list[Migration]:
    """The migrations that `migrate` would apply.

    Raises:
        InvalidInput, SchemaTooNew: as `migrate`.
    """
    with database.connection() as connection:
        _refuse_encoding(connection, database)
        _refuse_strangers(connection, database)
    try:
        applied = _applied(database)
    except SchemaMissing:
        applied = []
    window.compare(applied, available(), database, migrating=True)
    return _lacking(applied)


def _lacking(applied: list[tuple[int, int]]) -> list[Migration]:
    done = {version for version, _ in applied}
    return [migration for migration in available() if migration.version not in done]


def _apply_together(database: Database, waits: LockWaits) -> tuple[list[Migration], Migration | None]:
    """Apply what can be applied in one transaction; returns that, and the migration without one that is next."""
    with (
        database.connection() as connection,
        database.errors.naming_schema("prepare_schema", connection=connection),
        connection.transaction(),
    ):
        _refuse_pooler(database)
        _refuse_encoding(connection, database)
        at = Transaction(connection, database)
        with waits.watched(database, pid=waits.begin(at)):
            at.run("migration_lock", {"schema": database.schema})
            _refuse_strangers(connection, database)
            connection.execute(statements.load("prepare_schema", database.schema).encode())
            rows = [(version, serves_from) for version, serves_from in at.run("versions", {})]
            standing = window.compare(rows, available(), database, migrating=True)
            if standing.schema > standing.code:
                window.note_once(standing, database)
                return [], None
            lacking = _lacking(rows)
            group = list(itertools.takewhile(lambda migration: migration.transactional, lacking))
            rest = lacking[len(group) :]
            if rows:
                waits.take(at, database.schema, group)
            for migration in group:
                connection.execute(statements.in_schema(migration.text, database.schema).encode())
                _record(at, migration)
            # The functions and the grants are about tables, and these are there with the last transaction.
            if not any(migration.transactional for migration in rest):
                changed = functions.install(connection, database)
                # A table that a consumer needs, and may not read, would stop it from the commit on.
                if roles.in_use(at, database.schema) and (
                    group or changed or roles.compared(at, database.schema).lacking
                ):
                    roles.grant(at, database.schema)
    return group, rest[0] if rest else None


def _apply_online(database: Database, migration: Migration, waits: LockWaits) -> bool:
    """Apply a migration without a transaction, unless another process did so meanwhile.

    An open transaction beside it holds the lock that keeps others from doing the same. It keeps no snapshot while it
    idles: what makes an index does not wait for it.
    """
    with (
        contextlib.closing(database.apart()) as guard,
        database.errors.naming_schema("prepare_schema", connection=guard),
        guard.transaction(),
    ):
        at = Transaction(guard, database)
        with waits.watched(database, pid=waits.begin(at)):
            at.run("migration_lock", {"schema": database.schema})
        if migration.version in {version for version, _ in at.run("versions", {})}:
            return False
        # The portal of the last statement keeps its snapshot, for which an index would wait for ever; one without parameters
        # takes the portal's place, and leaves none.
        guard.execute(b"SET LOCAL idle_in_transaction_session_timeout = 0")
        online_indexes.apply(database, migration, waits)
        _record(at, migration)
    return True


def _record(at: Transaction, migration: Migration) -> None:
    at.run(
        "record_version",
        {"version": migration.version, "name": migration.name, "serves_from": migration.serves_from},
    )


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
    with database.connection() as connection, connection.transaction():
        _refuse_pooler(database)
        at = Transaction(connection, database)
        at.run("migration_lock", {"schema": database.schema})
        installed = roles.make(at, database.schema)
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
    more. The versions are looked up only then, on another connection than the one that failed.

    Raises:
        SchemaMissing, SchemaTooOld, SchemaTooNew: in place of the driver's error.
    """
    try:
        yield
    except _OF_ANOTHER_SCHEMA as error:
        _refuse_outside(database, error)
        raise


@contextlib.asynccontextmanager
async def aexplaining(database: Database) -> AsyncIterator[None]:
    """`explaining` for a block that is awaited."""
    try:
        yield
    except _OF_ANOTHER_SCHEMA as error:
        await asyncio.to_thread(_refuse_outside, database, error)
        raise


def _refuse_outside(database: Database, error: Exception) -> None:
    """Raise what says that schema and library do not work together, from the error that this made; else return."""
    try:
        check(database)
    except (SchemaTooOld, SchemaTooNew) as outside:
        raise outside from error
    except DatabaseUnavailable:
        # It cannot be determined; what failed first is more to the point.
        return


def _applied(database: Database) -> list[tuple[int, int]]:
    with database.connection() as connection:
        try:
            return [(version, serves) for version, serves in Transaction(connection, database).run("versions", {})]
        except (psycopg.errors.UndefinedTable, SchemaMissing):
            raise SchemaMissing(
                f"schema {database.schema!r} of {database.where} does not hold the queue's tables."
                f" Make them with: sqlqueue migrate --schema {shlex.quote(database.schema)}"
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


def _refuse_encoding(connection: "psycopg.Connection[Any]", database: Database) -> None:
    """Make no tables in a database that cannot store every text."""
    found = connection.info.parameter_status("server_encoding")
    if found != "UTF8":
        raise InvalidInput(
            f"the database {database.where} is not usable: its encoding is {found}, which cannot hold every text of a"
            " payload; make one with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


def _refuse_pooler(database: Database) -> None:
    if database.shared:
        raise InvalidInput(
            f"{database.where} is a pooler that lends sessions for a transaction, and a migration may need one for longer:"
            " give migrate the URL of the database itself (--url), without pooler=transaction"
        )
