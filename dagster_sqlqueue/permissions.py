"""Which role may run which statement, for the message to somebody who may not. What a role may do is granted by
`roles_grant.sql`; a test runs every statement as every role and compares. No I/O.
"""

import enum
from collections.abc import Sequence
from typing import Final

from dagster_sqlqueue.errors import AccessRefused


class Role(enum.StrEnum):
    """What a user of a schema is there for."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    OBSERVER = "observer"


def role_name(schema: str, role: str) -> str:
    """The name that a schema's role has in the whole server."""
    return f"{schema}_{role}"


MAY: Final[dict[Role, frozenset[str]]] = {}


def roles_for(names: Sequence[str]) -> list[Role]:
    """The roles that may run every one of these statements."""
    return [role for role in Role if all(name in MAY[role] for name in names)]


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
        cure = (
            f"it takes the role {' or '.join(wanted)}: have a DBA run GRANT {wanted[0]} TO \"{user}\" (sqlqueue init --roles"
            " makes the roles)"
        )
    else:
        cure = "only the owner of the schema may"
    return AccessRefused(f"user {user!r} may not do that in schema {schema!r} ({first}); {cure}")
