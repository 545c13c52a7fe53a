"""Roles that may run each statement, for the message of a permission error.

The header of each SQL file names them. `roles_grant.sql` grants the privileges of the roles, and a test runs every statement
as every role and compares.
"""

import contextlib
import enum
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import cache

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import AccessRefused, InvalidInput


class Role(enum.StrEnum):
    """Role of a user of a schema."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    OBSERVER = "observer"


def role_name(schema: str, role: str) -> str:
    """Return the name of a schema's role, which is unique in the server."""
    return f"{schema}_{role}"


_ROLES = re.compile(r"^-- Roles: (.*)\.$", re.MULTILINE)


@cache
def roles_of(name: str) -> tuple[Role, ...]:
    """Return the roles that may run a statement, as named in its header; empty if only the owner of the schema may.

    Raises:
        InvalidInput: there is no such SQL file, or its header names no roles.
    """
    found = _ROLES.search(statements.source(name))
    if found is None:
        raise InvalidInput(f"the header of {name}.sql names no roles; add a line like -- Roles: producer, operator.")
    return () if found[1] == "none but the owner" else tuple(Role(role) for role in found[1].split(", "))


_LEAST_FIRST = (Role.OBSERVER, Role.PRODUCER, Role.CONSUMER, Role.OPERATOR)


def roles_for(names: Sequence[str]) -> list[Role]:
    """Return the roles that may run all of these statements, in order: the first is the one to grant."""
    return [role for role in _LEAST_FIRST if all(role in roles_of(name) for name in names)]


_further: ContextVar[tuple[str, ...]] = ContextVar("further_statements", default=())


@contextlib.contextmanager
def needing(*names: str) -> Iterator[None]:
    """Have the errors of the block name the roles that may also run these statements.

    A verb that first reads is refused for its first statement to a user who lacks both rights: a role that may only read
    would be refused later.

    Args:
        names: names of the SQL files that the block runs in the end.
    """
    before = _further.set((*_further.get(), *names))
    try:
        yield
    finally:
        _further.reset(before)


def refusal(schema: str, names: Sequence[str], user: str, reason: str) -> AccessRefused:
    """Return the error to raise if the server denied a user permission for one of these statements.

    Args:
        schema: schema of the queue's tables.
        names: names of the SQL files.
        user: user of the connection.
        reason: the server's message.
    """
    first, *more = reason.strip().splitlines() or ["permission denied"]
    hints = [line.removeprefix("HINT:").strip() for line in more if line.startswith("HINT:")]
    wanted = [f'"{role_name(schema, role)}"' for role in roles_for([*names, *_further.get()]) or roles_for(names)]
    if hints:
        # A refusal of the schema's own triggers and functions, which no role lifts.
        cure = hints[0]
    elif wanted:
        one = len(wanted) == 1
        cure = (
            f"it takes {'the role' if one else 'one of the roles'} {', '.join(wanted)}: have a DBA run GRANT"
            f' {wanted[0] if one else "…"} TO "{user}" (sqlqueue migrate --roles makes the roles; docs/roles.md lists them'
            " apart)"
        )
    else:
        cure = "it takes the owner of the schema, or to make it a user who may CREATE in the database"
    return AccessRefused(f"user {user!r} may not do that in schema {schema!r} ({first}); {cure}")
