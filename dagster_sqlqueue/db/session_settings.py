"""Settings of the library's connections: set once in a session of the connection's own, else in each transaction.

A pooler in transaction mode lends one session to many clients, for one transaction each. A session setting would apply to
another client in the next transaction, and the library's statements would run with the settings of other clients. A prepared
statement, a session lock or a LISTEN would be lost, or remain for good.

The plan tests check the plans that result from these settings.
"""

import enum
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzBinaryLoader

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import InvalidInput


class Pooler(enum.StrEnum):
    """Kind of pooler between a connection and the server."""

    TRANSACTION = "transaction"
    """Pooler that lends a session for one transaction, such as PgBouncer with `pool_mode = transaction`."""
    SESSION = "session"
    """No pooler, or one that lends a session for as long as a client is connected."""


_PLANS: Final = {
    # With a long backlog the server would prefer a new plan for each claim, which takes a fifth of the claim's time.
    "plan_cache_mode": "force_generic_plan",
    # A plan may be cached while the queue is nearly empty, and a table of one page is scanned sequentially.
    "enable_seqscan": "off",
    # JIT compilation of a plan takes longer than any of these statements.
    "jit": "off",
}

_INPUT: Final = "array_nulls = on"
"""The driver sends an array without values as text, whose NULLs would else be words."""

_OURS: Final = "; ".join(f"SET LOCAL {name} = {value}" for name, value in _PLANS.items())
OF_TRANSACTION: Final = _OURS.encode()
"""Statements that set the planner settings of the library, until the transaction ends."""
OF_SERVER: Final = "; ".join(f"SET LOCAL {name} TO DEFAULT" for name in _PLANS).encode()
"""Statements that restore the settings of server, database or role, for statements of other code."""

STATEMENT: Final = "transaction_settings"
"""Name of the SQL file with the effect of `Settings.of_transaction`, for pipelined statements."""

_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"


class Settings:
    """Settings of one pool's connections: READ COMMITTED, UTC, plans by index.

    Args:
        application_name: name shown in `pg_stat_activity`.
        statement_timeout: in milliseconds; None for the server's setting.

    Attributes:
        begin: statement that begins a transaction.
        of_session: statements for a session of the connection's own.
        of_transaction: statements for a transaction in a shared session.
        parameters: parameters of `STATEMENT`.
    """

    def __init__(self, application_name: str, statement_timeout: int | None) -> None:
        timeout = [] if statement_timeout is None else [f"statement_timeout = {statement_timeout}"]
        own = ["TimeZone = 'UTC'", _INPUT, *timeout, *(f"{name} = {value}" for name, value in _PLANS.items())]
        isolation = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
        self.begin = _BEGIN
        self.of_session = "; ".join([isolation, *(f"SET {one}" for one in own)]).encode()
        name = sql.SQL("SET LOCAL application_name = {}").format(application_name).as_bytes()
        self.of_transaction = b"; ".join([name, *(f"SET LOCAL {one}".encode() for one in own)])
        timeout_text = None if statement_timeout is None else str(statement_timeout)
        self.parameters = {"application_name": application_name, "timeout": timeout_text}


class LoadedInUtc(TimestamptzBinaryLoader):
    """Loader of times in UTC, also if the transaction whose time zone was UTC has ended by then."""

    def load(self, data: Buffer) -> datetime:
        """Return the time in UTC."""
        return super().load(data).astimezone(UTC)


def pooler(said: str) -> Pooler:
    """Return the kind of pooler for its name.

    Raises:
        InvalidInput: there is no such kind.
    """
    try:
        return Pooler(said)
    except ValueError:
        raise InvalidInput(
            f"pooler is {said!r}; it must be 'transaction', or 'session' for one that lends whole sessions"
        ) from None


def backend(driver: "psycopg.Connection[Any]") -> int | None:
    """Return the id of the server process that answers; None: there was no answer."""
    found = driver.execute(statements.load("backend").encode(), prepare=False).fetchone()
    return None if found is None else int(found[0])


def is_shared(driver: "psycopg.Connection[Any]") -> bool:
    """Return whether the session is not the connection's own.

    Then the process id of its backend differs from the one reported on connect, which is the pooler's.
    """
    return backend(driver) != driver.info.backend_pid
