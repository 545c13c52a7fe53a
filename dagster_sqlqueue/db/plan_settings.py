"""How the server is to plan the library's statements: by settings of the session where that is the library's own, else by
settings of each transaction.

Behind a pooler one session serves many clients, a transaction each. A setting of such a session would be somebody else's in
the next transaction, and the library's own statements would find those of others.

The plan tests look at the plans that these settings lead to.
"""

from typing import Any, Final

import psycopg

_SETTINGS: Final = {
    # A long backlog made the server think a new plan for each claim cheaper, which cost a fifth of its time.
    "plan_cache_mode": "force_generic_plan",
    # A plan is kept from when the queue was all but empty, and a table of a page is read whole.
    "enable_seqscan": "off",
    # Compiling a plan takes longer than any of these statements.
    "jit": "off",
}

OF_SESSION: Final = "; ".join(f"SET {name} = {value}" for name, value in _SETTINGS.items()).encode()
OF_TRANSACTION: Final = "; ".join(f"SET LOCAL {name} = {value}" for name, value in _SETTINGS.items()).encode()
OF_SERVER: Final = "; ".join(f"SET LOCAL {name} TO DEFAULT" for name in _SETTINGS).encode()
"""As the server, the database or the role is set: for statements of somebody else's."""

STATEMENT: Final = "plan_settings"
"""The SQL file that does the same as `OF_TRANSACTION`, for statements that are sent in one go."""


def is_shared(driver: "psycopg.Connection[Any]") -> bool:
    """Whether the session is not this connection's own: who answers it is another than was named when it connected, as a
    pooler names itself.
    """
    found = driver.execute(b"SELECT pg_backend_pid()").fetchone()
    return found is None or found[0] != driver.info.backend_pid
