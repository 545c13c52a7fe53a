"""The roles of a schema: made by a user that may make roles, granted what `roles_grant.sql` says by the schema's owner.

Roles belong to the whole server and are distinguished by their names alone, so each has the schema's name in its own, and a
comment as its mark. A role of such a name without the mark is somebody else's: it is granted nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import psycopg

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.db.permissions import Role, role_name
from dagster_sqlqueue.db.schema_name import quote_schema
from dagster_sqlqueue.errors import AccessRefused, InvalidInput

_LONGEST = 63
_COMMENT = re.compile(r"--[^\n]*")
_GRANT = re.compile(
    r"GRANT (?P<privileges>[^;]*?)\s+ON\s+(?:(?P<kind>SCHEMA|SEQUENCE|FUNCTION)\s+)?(?P<objects>[^;]*?)"
    r"\s+TO\s+(?P<roles>[^;]*);"
)
_REVOKE = re.compile(r"REVOKE ALL ON\s+(?:(?P<kind>SCHEMA|SEQUENCE|FUNCTION)\s+)?(?P<objects>[^;]*?)\s+FROM\s[^;]*;")
_OBJECT = re.compile(r"\bsqlqueue\.(\w+(?:\([^)]*\))?)")
_PRIVILEGE = re.compile(r"([A-Z]+)(?:\s*\(([^)]*)\))?")
_ROLE = re.compile(r"\bsqlqueue_(\w+)")


class Grant(NamedTuple):
    """One privilege of one role: on an object as a whole, or on one column of it.

    Attributes:
        role: its name.
        kind: SCHEMA, TABLE (views too), SEQUENCE or FUNCTION.
        object: its name; of a function with the types of its arguments, of the schema its own.
        column: None for the whole.
        privilege: SELECT, INSERT, …
    """

    role: str
    kind: str
    object: str
    column: str | None
    privilege: str

    def __str__(self) -> str:
        column = f" ({self.column})" if self.column else ""
        return f"{self.role}: {self.privilege}{column} on {self.object}"


@dataclass(frozen=True, slots=True)
class InstalledRole:
    """A role of the schema, as the server has it.

    Attributes:
        name: in the whole server.
        made: this call made it; it was there already otherwise.
        members: the roles and users that it was granted to, superusers left out.
    """

    name: str
    made: bool
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """How what was granted differs from `roles_grant.sql`.

    Attributes:
        absent: roles that are not there while others of the schema are in use.
        lacking: what was not granted.
        surplus: what was granted to the roles, or to PUBLIC, beyond it.
    """

    absent: tuple[str, ...]
    lacking: tuple[Grant, ...]
    surplus: tuple[Grant, ...]


def script_for_dba(schema: str) -> str:
    """The SQL that makes the roles, for somebody who may make roles; running it again does nothing.

    Raises:
        InvalidInput: the schema's name is not usable, or too long to make names of roles from.
    """
    check_names(schema)
    return statements.script("roles_make", schema)


def check_names(schema: str) -> None:
    """Say so if names of roles cannot be made from a schema's.

    Raises:
        InvalidInput: they would be longer than the server's names are.
    """
    quote_schema(schema)
    longest = _LONGEST - max(len(role) for role in Role) - 1
    if len(schema) > longest:
        raise InvalidInput(
            f"schema {schema!r} has {len(schema)} characters; roles are named after their schema, as {schema[:8]}…_producer,"
            f" and so it can have {longest} at most"
        )


def make(at: "Transaction", schema: str) -> list[InstalledRole]:
    """Make those of the schema's roles that are not there. Nothing is granted to them.

    Raises:
        InvalidInput: the schema's name is too long, or a role is somebody else's.
        AccessRefused: the user may not make roles; the message says what a DBA has to do.
    """
    check_names(schema)
    before = {row[0]: row for row in _there(at, schema)}
    _refuse_foreign(before.values(), schema)
    if len(before) < len(Role):
        try:
            with at.connection.transaction():
                at.connection.execute(statements.script("roles_make", schema).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            missing = ", ".join(_names(schema) - before.keys())
            raise AccessRefused(
                f"user {at.connection.info.user!r} may not make the roles {missing} ({_first_line(error)}); have a DBA run"
                " what this prints: sqlqueue migrate --roles --print (and then run this again, which grants)"
            ) from None
    after = _there(at, schema)
    _refuse_foreign(after, schema)
    return [InstalledRole(name, name not in before, tuple(members)) for name, _, _, members, _ in after]


def in_use(at: "Transaction", schema: str) -> bool:
    """Whether all roles of the schema are there, are its own, and have been granted something."""
    found = _there(at, schema)
    return (
        len(found) == len(Role)
        and all(_is_ours(name, mark, superuser, schema) for name, mark, superuser, _, _ in found)
        and any(used for *_, used in found)
    )


def grant(at: "Transaction", schema: str) -> None:
    """Grant the roles what they are to have, and nothing else. Inside a transaction that `at` is in.

    Raises:
        AccessRefused: the user is not the owner of the schema.
    """
    try:
        at.connection.execute(statements.script("roles_grant", schema).encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise _not_owner(at, schema, _first_line(error)) from None
    # The server warns, and does not refuse, a user that owns nothing but has some privileges.
    if (left := compared(at, schema)).lacking:
        raise _not_owner(at, schema, f"{len(left.lacking)} privileges could not be granted, as {left.lacking[0]}")


def compared(at: "Transaction", schema: str) -> Differences:
    """What was granted, against `roles_grant.sql`."""
    wanted = set(matrix(schema))
    mentioned = {(kind, name) for kind, name in objects(schema)}
    there = {row[0] for row in _there(at, schema)}
    given = {Grant(*row) for row in at.run("roles_granted", {"names": sorted(_names(schema))})}
    of_ours = {one for one in given if (one.kind, one.object) in mentioned}
    surplus = {
        one
        for one in of_ours - wanted
        if one._replace(column=None) not in wanted and (one.role, one.kind) != ("PUBLIC", "SCHEMA")
    }
    return Differences(
        tuple(sorted(_names(schema) - there)),
        tuple(sorted((one for one in wanted - given if one.role in there), key=str)),
        tuple(sorted(surplus, key=str)),
    )


def examine(database: Database) -> Differences | None:
    """What `sqlqueue doctor` wants to know; None: the schema has no roles."""
    with database.connection() as connection:
        at = Transaction(connection, database)
        if not any(row[4] for row in _there(at, database.schema)):
            return None
        return compared(at, database.schema)


@cache
def matrix(schema: str) -> tuple[Grant, ...]:
    """Every privilege that `roles_grant.sql` grants."""
    return tuple(_grants(schema))


@cache
def objects(schema: str) -> tuple[tuple[str, str], ...]:
    """Every object that `roles_grant.sql` is about: its kind and its name."""
    return tuple(
        found
        for match in _REVOKE.finditer(_matrix_text())
        for found in _objects(match["kind"], match["objects"], schema)
    )


def _grants(schema: str) -> Iterator[Grant]:
    for match in _GRANT.finditer(_matrix_text()):
        for kind, name in _objects(match["kind"], match["objects"], schema):
            for role in _ROLE.findall(match["roles"]):
                for privilege, columns in _PRIVILEGE.findall(match["privileges"]):
                    for column in re.findall(r"\w+", columns) or [None]:
                        yield Grant(role_name(schema, role), kind, name, column, privilege)


def _objects(kind: str | None, text: str, schema: str) -> list[tuple[str, str]]:
    if kind == "SCHEMA":
        return [(kind, schema)]
    return [(kind or "TABLE", name) for name in _OBJECT.findall(text)]


@cache
def _matrix_text() -> str:
    return _COMMENT.sub("", statements.source("roles_grant"))


def _names(schema: str) -> set[str]:
    return {role_name(schema, role) for role in Role}


def _there(at: "Transaction", schema: str) -> Sequence[Any]:
    return at.run("roles_there", {"names": sorted(_names(schema))})


def _mark(name: str, schema: str) -> str:
    return f"dagster-sqlqueue: {name.removeprefix(f'{schema}_')} of schema {schema}"


def _is_ours(name: str, mark: str | None, superuser: bool, schema: str) -> bool:
    return mark == _mark(name, schema) and not superuser


def _refuse_foreign(found: Iterable[Any], schema: str) -> None:
    for name, mark, superuser, _, _ in found:
        if not _is_ours(name, mark, superuser, schema):
            raise InvalidInput(
                f"role {name!r} is there and is not one of this schema's: nothing was granted. Rename it, or name the schema"
                " otherwise; if it is meant to be the schema's, a DBA says so with: COMMENT ON ROLE"
                f" \"{name}\" IS '{_mark(name, schema)}'"
            )


def _not_owner(at: "Transaction", schema: str, reason: str) -> AccessRefused:
    return AccessRefused(
        f"user {at.connection.info.user!r} may not grant privileges in schema {schema!r} ({reason}); run it as the user who"
        " owns the schema and its tables"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
