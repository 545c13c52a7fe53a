"""What the library's connections are set to: in sessions that are a connection's own once, else in each transaction.

A pooler in transaction mode lends one session to many clients, a transaction each. A setting of such a session would be
somebody else's in the next transaction, and the library's own statements would find those of others; a prepared statement, a
lock of the session, or what was listened for would be lost, or stay for good.

The plan tests look at the plans that these settings lead to.
"""

import enum
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzBinaryLoader

from dagster_sqlqueue.errors import InvalidInput


class Pooler(enum.StrEnum):
    """What stands between a connection and the server."""

    TRANSACTION = "transaction"
    """A pooler that lends a session for one transaction, as PgBouncer with `pool_mode = transaction`."""
    SESSION = "session"
    """None, or a pooler that lends a session for as long as a client is connected."""


_PLANS: Final = {
    # A long backlog made the server think a new plan for each claim cheaper, which cost a fifth of its time.
    "plan_cache_mode": "force_generic_plan",
    # A plan is kept from when the queue was all but empty, and a table of a page is read whole.
    "enable_seqscan": "off",
    # Compiling a plan takes longer than any of these statements.
    "jit": "off",
}

_OURS: Final = "; ".join(f"SET LOCAL {name} = {value}" for name, value in _PLANS.items())
OF_TRANSACTION: Final = _OURS.encode()
"""How the library's statements are planned, until the transaction ends."""
OF_SERVER: Final = "; ".join(f"SET LOCAL {name} TO DEFAULT" for name in _PLANS).encode()
"""As the server, the database or the role is set: for statements of somebody else's."""

STATEMENT: Final = "transaction_settings"
"""The SQL file that does the same as `Settings.of_transaction`, for statements that are sent in one go."""

_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"


class Settings:
    """The settings of one pool's connections: READ COMMITTED, UTC, plans by indexes.

    Args:
        application_name: what `pg_stat_activity` shows.
        statement_timeout: in milliseconds; None for the server's own.

    Attributes:
        begin: begins a transaction.
        of_session: for a session of the connection's own.
        of_transaction: for a transaction in a session that is not.
        parameters: of `STATEMENT`.
    """

    def __init__(self, application_name: str, statement_timeout: int | None) -> None:
        timeout = [] if statement_timeout is None else [f"statement_timeout = {statement_timeout}"]
        own = ["TimeZone = 'UTC'", *timeout, *(f"{name} = {value}" for name, value in _PLANS.items())]
        isolation = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
        self.begin = _BEGIN
        self.of_session = "; ".join([isolation, *(f"SET {one}" for one in own)]).encode()
        name = sql.SQL("SET LOCAL application_name = {}").format(application_name).as_bytes()
        self.of_transaction = b"; ".join([name, *(f"SET LOCAL {one}".encode() for one in own)])
        timeout_text = None if statement_timeout is None else str(statement_timeout)
        self.parameters = {"application_name": application_name, "timeout": timeout_text}


class LoadedInUtc(TimestamptzBinaryLoader):
    """Reads times in UTC, also when the transaction that was in UTC is over by then."""

    def load(self, data: Buffer) -> datetime:
        """The time in UTC."""
        return super().load(data).astimezone(UTC)


def pooler(said: str) -> Pooler:
    """The pooler that is meant.

    Raises:
        InvalidInput: there is no such kind.
    """
    try:
        return Pooler(said)
    except ValueError:
        raise InvalidInput(
            f"pooler is {said!r}; it must be 'transaction', or 'session' for one that lends whole sessions"
        ) from None


def is_shared(driver: "psycopg.Connection[Any]") -> bool:
    """Whether the session is not this connection's own: who answers it is another than was named when it connected, as a
    pooler names itself.
    """
    found = driver.execute(b"SELECT pg_backend_pid()", prepare=False).fetchone()
    return found is None or found[0] != driver.info.backend_pid
