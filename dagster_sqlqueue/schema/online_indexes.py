"""Indexes that are made CONCURRENTLY: outside of a transaction, while everybody reads and writes."""

import re
from typing import Any, NamedTuple

import psycopg

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.schema.lock_waits import LockWaits
from dagster_sqlqueue.schema.migration_files import Migration

_MAKE = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)\s+ON sqlqueue\.\w+\b.*", re.DOTALL)
_DROP = re.compile(r"DROP INDEX CONCURRENTLY sqlqueue\.(\w+)")


class OnlineStatement(NamedTuple):
    """One statement of a migration without a transaction.

    Attributes:
        name: of the index that it is about.
        makes: it makes it, and drops it otherwise.
        text: the SQL.
    """

    name: str
    makes: bool
    text: str


def statements_of(migration: Migration) -> list[OnlineStatement]:
    """The statements of a migration without a transaction.

    Raises:
        InvalidInput: it has others than CREATE INDEX CONCURRENTLY name ON … and DROP INDEX CONCURRENTLY …: what was done of
            those, when one is interrupted, could not be determined.
    """
    found = []
    for part in statements.without_comments(migration.text).split(";"):
        if not (text := part.strip()):
            continue
        if made := _MAKE.fullmatch(text):
            found.append(OnlineStatement(made[1], True, text))
        elif dropped := _DROP.fullmatch(text):
            found.append(OnlineStatement(dropped[1], False, text))
        else:
            raise InvalidInput(
                f"migration {migration.label} has no transaction, and a statement that is none of CREATE INDEX CONCURRENTLY"
                f" name ON sqlqueue.table … and DROP INDEX CONCURRENTLY sqlqueue.name: {text.splitlines()[0]}"
            )
    return found


def apply(database: Database, migration: Migration, waits: LockWaits) -> None:
    """Make the indexes of a migration that are not there, those anew that an interrupted build left, and drop its others.

    The caller keeps others from doing the same.

    Raises:
        SchemaBusy: a lock was waited for in vain; the index that was being made is to be made anew.
    """
    with database.connection() as connection:
        at = Transaction(connection, database)
        for statement in statements_of(migration):
            usable = [row[0] for row in at.run("migration_index", {"name": statement.name})]
            if usable and (not statement.makes or not usable[0]):
                _run(database, connection, f"DROP INDEX CONCURRENTLY sqlqueue.{statement.name}", waits)
            if statement.makes and usable != [True]:
                _run(database, connection, statement.text, waits)


def _run(database: Database, connection: "psycopg.Connection[Any]", text: str, waits: LockWaits) -> None:
    """It waits for whole transactions of others and keeps nobody from reading or writing meanwhile: so one long wait, where
    a short one would throw away what was built.
    """
    # Behind a pooler nobody knows which session runs it: it is found by the mark.
    mark = f"/* sqlqueue migrate {database.schema} */"
    try:
        with waits.watched(database, mark=mark, give_up=connection.cancel):
            connection.execute(f"{mark} {statements.in_schema(text, database.schema)}".encode())
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        raise waits.given_up() from None
