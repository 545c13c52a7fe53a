"""Settings of the library's connections: set once in a session of the connection's own, else in each transaction.

A pooler in transaction mode lends one session to many clients, for one transaction each. A session setting would apply to
another client in the next transaction, and the library's statements would run with the settings of other clients. A prepared
statement, a session lock or a LISTEN would be lost, or remain for good.

The plan tests check the plans that result from these settings.
"""

import enum
from collections.abc import Mapping
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

_INPUT: Final = {"array_nulls": "on"}
"""The driver sends an array without values as text, whose NULLs would else be words."""

_TIMEOUTS: Final = ("statement_timeout", "lock_timeout")
"""Timeouts of a role that end a statement which only waits, for example for a lock: a job's end would fail, and its handler
run again. Statements of other code keep them."""
_WITHIN_TRANSACTIONS: Final = ("idle_in_transaction_session_timeout", "transaction_timeout")
"""Timeouts of a role that end the session of a transaction: that of a batch lasts as long as its handlers."""

_NEWER: Final = {"transaction_timeout": 170_000}
"""Of those, what older servers do not know, and the version of the first that does."""

_RESET: Final = b"RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; "
"""Also undoes SET LOCAL, which lasts longer than the savepoint that was released."""

STATEMENT: Final = "transaction_settings"
"""Name of the SQL file with the effect of `Settings.of_transaction`, for pipelined statements."""

_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"


class Settings:
    """Settings of one pool's connections: READ COMMITTED, UTC, plans by index, no timeouts of the role.

    Args:
        application_name: name shown in `pg_stat_activity`.
        statement_timeout: in milliseconds; None for no limit.
        options: session settings given on connect, as libpq takes them (`-c name=value`); timeouts of statements and locks
            that they name are kept.

    Attributes:
        begin: statement that begins a transaction.
        of_session: statement for a session of the connection's own.
        parameters: parameters of `STATEMENT`.
        lend: statements before those of other code, which are planned with the settings of server, database or role, and
            have their timeouts, unless one was given to the library.
    """

    def __init__(self, application_name: str, statement_timeout: int | None, options: str = "") -> None:
        kept = {"TimeZone": "UTC", **dict.fromkeys(_WITHIN_TRANSACTIONS, "0")}
        if statement_timeout is not None:
            kept["statement_timeout"] = str(statement_timeout)
        timeouts = {name: "0" for name in _TIMEOUTS if name not in options and name not in kept}
        ours = {**timeouts, **_PLANS, **_INPUT}
        session = {"default_transaction_isolation": "read committed"}
        transaction = {"application_name": application_name}
        self.begin = _BEGIN
        self.of_session = _setting({**session, **kept, **ours}, local=False)
        self._of_transaction = {**transaction, **kept, **ours}
        self.parameters = {"application_name": application_name, "timeout": kept.get("statement_timeout", "0")}
        self.lend = "; ".join(f"SET LOCAL {name} TO DEFAULT" for name in ours).encode()
        self._lend_session = _RESET + _setting({**session, **kept}, local=False)
        self._lend_transaction = _RESET + _setting({**transaction, **kept}, local=True)

    def of_transaction(self, server_version: int) -> bytes:
        """Return the statements that begin a transaction's own settings in a shared session.

        They take no snapshot: SET TRANSACTION may follow.

        Args:
            server_version: as libpq has it, such as 170002.
        """
        known = {name: value for name, value in self._of_transaction.items() if server_version >= _NEWER.get(name, 0)}
        texts = (sql.SQL(f"SET LOCAL {name} = {{}}").format(value) for name, value in known.items())
        return sql.SQL("; ").join(texts).as_bytes()

    def lend_again(self, *, shared: bool) -> bytes:
        """Return the statements that undo what other code has set, before the statements of more of it.

        Args:
            shared: whether the session is shared.
        """
        return self._lend_transaction if shared else self._lend_session

    def take_back(self, *, shared: bool) -> bytes:
        """Return the statements that undo what other code has set, before the statements of the library.

        Args:
            shared: whether the session is shared.
        """
        return _RESET + (_setting(self._of_transaction, local=True) if shared else self.of_session)


def _setting(values: Mapping[str, str], *, local: bool) -> bytes:
    """Return one statement that sets these, where the server knows them. It takes less time than a SET for each."""
    flag = "true" if local else "false"
    calls = []
    for name, value in values.items():
        call = sql.SQL(f"set_config('{name}', {{}}, {flag})").format(value)
        if name in _NEWER:
            call = sql.SQL(f"CASE WHEN current_setting('{name}', true) IS NOT NULL THEN {{}} END").format(call)
        calls.append(call)
    return (sql.SQL("SELECT ") + sql.SQL(", ").join(calls)).as_bytes()


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
