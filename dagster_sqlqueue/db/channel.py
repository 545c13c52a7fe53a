"""Statements whose result is received later: the server and the caller work at the same time."""

from typing import NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Sent, Step
from dagster_sqlqueue.db.own_session import Answer, OwnSession, numbered

_IDLE = TransactionStatus.IDLE


class Channel:
    """Connection outside of the pool for statements in autocommit, opened by the first `send`. Not thread-safe.

    The server commits without waiting for the result to be received. A result larger than the network buffers keeps the
    transaction open until it is received.

    Args:
        database: where the statements run.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: OwnSession | None = None
        self._pipelined: Sent | None = None
        self._name = ""

    def send(self, step: Step) -> None:
        """Send one statement; call `receive` for the result.

        Raises:
            DatabaseUnavailable, psycopg.Error: no connection could be opened, or it was lost; the statement may be committed
                nevertheless.
        """
        database = self._database
        self._name, given = step
        try:
            session = self._open()
            if database.shared:
                # Settings are the transaction's. With explicit BEGIN and COMMIT: the call that ends a pipeline of psycopg
                # waits for the result.
                text = statements.load(self._name, database.schema)
                self._pipelined = Sent(session.connection, database.whole([(text, given)]))
            else:
                session.send(numbered(self._name, database.schema), given)
        except BaseException as error:
            self._fail(error)

    def receive(self) -> Answer:
        """Wait until the statement is committed.

        Returns:
            Its result; the rows can be read at any later time.

        Raises:
            psycopg.OperationalError: the connection was lost; the statement may or may not be committed.
            SchemaMissing, AccessRefused, psycopg.Error: the statement failed, and is rolled back.
        """
        assert self._session is not None, "nothing was sent"
        pipelined, self._pipelined = self._pipelined, None
        try:
            if pipelined is None:
                return self._session.receive()
            return pipelined.receive()[-2]
        except BaseException as error:
            self._fail(error)

    def close(self) -> None:
        """Close the connection, if there is one. A statement sent but not yet received may be committed nevertheless."""
        session, self._session = self._session, None
        self._pipelined = None
        if session is not None:
            session.connection.close()

    def _fail(self, error: BaseException) -> NoReturn:
        connection = self._session and self._session.connection
        self.close()
        if isinstance(error, psycopg.ProgrammingError):
            raise self._database.errors.explained(error, self._name, connection=connection) from None
        raise error

    def _open(self) -> OwnSession:
        session = self._session
        if session is None or session.connection.closed or session.connection.pgconn.transaction_status != _IDLE:
            self.close()
            session = self._session = OwnSession(self._database.apart())
        return session
