"""Executor of statements inside the caller's own transaction, through a SQLAlchemy connection or ORM session."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db import odd_values, statements
from dagster_sqlqueue.db.execution import Parameters, Row
from dagster_sqlqueue.db.executors import Home, Send, copy_in, sends_utf8, unsendable, without_null_arrays
from dagster_sqlqueue.errors import InvalidInput

_TRANSACTION = "BEGIN", "COMMIT", ("ROLLBACK",)
_SAVEPOINT = "SAVEPOINT sqlqueue", "RELEASE sqlqueue", ("ROLLBACK TO sqlqueue", "RELEASE sqlqueue")
_NOT_STREAMED = {"stream_results": False, "yield_per": None}
"""Whatever the connection's own options are: the driver declares a cursor for what is streamed."""


class SqlAlchemyExecutor:
    """Executor on a SQLAlchemy connection, through SQLAlchemy: it does not commit a transaction that it did not see begin.

    Raises:
        InvalidInput: the connection uses another driver than psycopg.
    """

    def __init__(self, connection: sa.Connection, database: Home) -> None:
        if connection.dialect.driver != "psycopg":
            raise InvalidInput(
                f"the SQLAlchemy connection uses the driver {connection.dialect.driver!r}; make its engine with"
                " postgresql+psycopg://"
            )
        self._connection = connection
        self._database = database

    @property
    def copies(self) -> bool:
        """Whether rows packed in UTF-8 can be sent by COPY."""
        return not self._connection.dialect.is_async and sends_utf8(self._driver)

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement and return its rows; its effects are committed or rolled back with the caller's transaction."""
        try:
            sql = statements.load(name, self._database.schema)
            result = self._execute(sql, without_null_arrays(parameters))
            if not result.returns_rows:
                return []
            try:
                return [tuple(row) for row in result]
            except odd_values.UNREADABLE:
                return odd_values.rows(result.cursor, result.cursor.pgresult)
        except (psycopg.ProgrammingError, sa.exc.ProgrammingError) as error:
            raise self._database.errors.explained(error, name, connection=self._driver_of_any_kind) from None
        except UnicodeEncodeError as error:
            raise unsendable(error, self._driver_of_any_kind) from None

    @contextlib.contextmanager
    def copying(self, name: str) -> Iterator[Send]:
        """Run the COPY of the SQL file `name`, and provide a function that sends it rows in binary format, in the block."""
        try:
            yield from copy_in(self._driver, statements.load(name, self._database.schema))
        except psycopg.ProgrammingError as error:
            raise self._database.errors.explained(error, name, connection=self._driver) from None

    @contextlib.contextmanager
    def atomic(self) -> "Iterator[SqlAlchemyExecutor]":
        """Run the block atomically: in a savepoint, or with driver autocommit in a transaction of its own."""
        # Not by begin_nested(): on a connection that streams results its statements fail. Nor by a block of the driver's,
        # which is awaited under SQLAlchemy's asyncio.
        driver = self._driver_of_any_kind
        alone = driver.autocommit and driver.info.transaction_status is TransactionStatus.IDLE
        begin, commit, undo = _TRANSACTION if alone else _SAVEPOINT
        self._execute(begin)
        try:
            yield self
        except BaseException:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                for statement in undo:
                    self._execute(statement)
            raise
        self._execute(commit)

    def _execute(self, statement: str, parameters: Parameters | None = None) -> sa.CursorResult[Any]:
        given = None if parameters is None else dict(parameters)
        return self._connection.exec_driver_sql(statement, given, _NOT_STREAMED)

    @property
    def _driver(self) -> "psycopg.Connection[Any]":
        driver = self._driver_of_any_kind
        assert isinstance(driver, psycopg.Connection)
        return driver

    @property
    def _driver_of_any_kind(self) -> "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]":
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection | psycopg.AsyncConnection)
        return driver


def connection_of(session: object) -> sa.Connection:
    """Return the connection of an ORM session.

    Raises:
        InvalidInput: the object is no session.
    """
    # Imported here: the ORM takes long to import, and a caller that has a session has loaded it.
    from sqlalchemy.orm import Session, scoped_session

    if not isinstance(session, Session | scoped_session):
        kind = type(session).__name__
        if type(session).__module__.startswith("sqlalchemy.ext.asyncio"):
            raise InvalidInput(
                f"connection is SQLAlchemy's {kind}; call the verb without the a through it, on psycopg:"
                " await it.run_sync(lambda inner: queue.enqueue(…, connection=inner))"
            )
        raise InvalidInput(
            f"connection is a {kind}; give a psycopg.Connection, a SQLAlchemy Connection on psycopg, an ORM"
            " Session, or Django's connection"
        )
    return session.connection()
