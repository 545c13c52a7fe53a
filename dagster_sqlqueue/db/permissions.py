"""Which role may run which statement, for the message to somebody who may not. Each SQL file says so in its header; what a
role may do is granted by `roles_grant.sql`, and a test runs every statement as every role and compares.
"""

import enum
import re
from collections.abc import Sequence
from functools import cache

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import AccessRefused, InvalidInput


class Role(enum.StrEnum):
    """What a user of a schema is there for."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    OBSERVER = "observer"


def role_name(schema: str, role: str) -> str:
    """The name that a schema's role has in the whole server."""
    return f"{schema}_{role}"


_ROLES = re.compile(r"^-- Roles: (.*)\.$", re.MULTILINE)


@cache
def roles_of(name: str) -> tuple[Role, ...]:
    """The roles that may run a statement, as its header names them; none: the owner of the schema alone.

    Raises:
        InvalidInput: there is no such SQL file, or its header does not say.
    """
    found = _ROLES.search(statements.source(name))
    if found is None:
        raise InvalidInput(f"the header of {name}.sql names no roles; add a line like -- Roles: producer, operator.")
    return () if found[1] == "none but the owner" else tuple(Role(role) for role in found[1].split(", "))


_LEAST_FIRST = (Role.OBSERVER, Role.PRODUCER, Role.CONSUMER, Role.OPERATOR)


def roles_for(names: Sequence[str]) -> list[Role]:
    """The roles that may run every one of these statements, the one to be granted first."""
    return [role for role in _LEAST_FIRST if all(role in roles_of(name) for name in names)]


def refusal(schema: str, names: Sequence[str], user: str, reason: str) -> AccessRefused:
    """The error for somebody whom the server refused one of these statements.

    Args:
        schema: where.
        names: of the SQL files.
        user: who is logged in.
        reason: the server's words.
    """
    first = reason.strip().splitlines()[0] if reason.strip() else "permission denied"
    wanted = [f'"{role_name(schema, role)}"' for role in roles_for(names)]
    if wanted:
        one = len(wanted) == 1
        cure = (
            f"it takes {'the role' if one else 'one of the roles'} {', '.join(wanted)}: have a DBA run GRANT"
            f' {wanted[0] if one else "…"} TO "{user}" (sqlqueue migrate --roles makes the roles; docs/roles.md tells them'
            " apart)"
        )
    else:
        cure = "it takes the owner of the schema, or to make it a user who may CREATE in the database"
    return AccessRefused(f"user {user!r} may not do that in schema {schema!r} ({first}); {cure}")
