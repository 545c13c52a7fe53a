"""Transactions whose results are received later: the server and the caller work at the same time."""

from collections.abc import Sequence
from typing import NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import Step
from dagster_sqlqueue.db.executors import Sent
from dagster_sqlqueue.db.own_session import Answer, OwnSession, Together, numbered

_IDLE = TransactionStatus.IDLE


class Channel:
    """Connection outside of the pool, opened by the first `send`. Not thread-safe.

    The server commits without waiting for the results to be received. Results larger than the network buffers keep the
    transaction open until they are received.

    Args:
        database: where the statements run.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: OwnSession | None = None
        self._sent: Sent | Together | None = None
        self._names: tuple[str, ...] = ()

    def send(self, *steps: Step) -> None:
        """Send a transaction; call `receive` for the results.

        Args:
            steps: its statements, in order.

        Raises:
            DatabaseUnavailable, psycopg.Error: no connection could be opened, or it was lost; the transaction may be
                committed nevertheless. Or, behind a pooler, a statement has failed already, as in `receive`.
        """
        database = self._database
        self._names = tuple(name for name, _ in steps)
        try:
            session = self._open()
            if database.shared:
                # Settings are the transaction's. With explicit BEGIN and COMMIT: the call that ends a pipeline of psycopg
                # waits for the results.
                loaded = [(statements.load(name, database.schema), given) for name, given in steps]
                self._sent = Sent(session.connection, database.whole(loaded))
            else:
                # One message in autocommit is one transaction.
                self._sent = session.send_together([(numbered(name, database.schema), given) for name, given in steps])
        except BaseException as error:
            self._fail(error)

    def receive(self) -> Sequence[Answer]:
        """Wait until the transaction is committed.

        Returns:
            The result of each statement; the rows can be read at any later time.

        Raises:
            psycopg.OperationalError: the connection was lost; the transaction may or may not be committed.
            SchemaMissing, AccessRefused, psycopg.Error: a statement failed, and the transaction is rolled back.
        """
        sent, self._sent = self._sent, None
        assert sent is not None, "nothing was sent"
        try:
            if isinstance(sent, Together):
                return sent.receive()
            # The last one is that of COMMIT.
            return sent.receive()[-1 - len(self._names) : -1]
        except BaseException as error:
            self._fail(error)

    def close(self) -> None:
        """Close the connection, if there is one. A transaction sent but not yet received may be committed nevertheless."""
        session, self._session = self._session, None
        self._sent = None
        if session is not None:
            session.connection.close()

    def _fail(self, error: BaseException) -> NoReturn:
        connection = self._session and self._session.connection
        self.close()
        if isinstance(error, psycopg.ProgrammingError):
            raise self._database.errors.explained(error, *self._names, connection=connection) from None
        raise error

    def _open(self) -> OwnSession:
        session = self._session
        if session is None or session.connection.closed or session.connection.pgconn.transaction_status != _IDLE:
            self.close()
            session = self._session = OwnSession(self._database.apart())
        return session
