"""Pipelined transactions whose result is received later: the server and the caller work at the same time."""

from typing import Any, NoReturn, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Row, Sent, Step

Cursors: TypeAlias = "list[psycopg.Cursor[Row]]"


class Channel:
    """Connection outside of the pool for pipelined transactions, opened by the first `send`. Not thread-safe.

    The server commits without waiting for the result to be received. A result larger than the network buffers keeps the
    transaction open until it is received.

    Args:
        database: where the statements run.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: psycopg.Connection[Any] | None = None
        self._names: list[str] = []
        self._sent: Sent | None = None

    def send(self, *steps: Step) -> None:
        """Send statements as one transaction, pipelined; call `receive` for the result.

        Raises:
            DatabaseUnavailable, psycopg.Error: no connection could be opened, or it was lost; the transaction may be
                committed nevertheless.
        """
        database = self._database
        texts = [(statements.load(name, database.schema), given) for name, given in steps]
        self._names = [name for name, _ in steps]
        try:
            # With explicit BEGIN and COMMIT: the call that ends a pipeline of psycopg waits for the result.
            self._sent = Sent(self._open(), database.whole(texts))
        except BaseException as error:
            self._fail(error)

    def receive(self) -> Cursors:
        """Wait until the transaction is committed.

        Returns:
            The cursors of the statements: `rowcount` is set, and `rows_of` reads the rows of each, once, at any later time.

        Raises:
            psycopg.OperationalError: the connection was lost; the transaction may or may not be committed.
            SchemaMissing, AccessRefused, psycopg.Error: a statement failed, and the transaction is rolled back.
        """
        assert self._sent is not None, "nothing was sent"
        try:
            cursors = self._sent.receive()
        except BaseException as error:
            self._fail(error)
        self._sent = None
        return cursors[-1 - len(self._names) : -1]

    def close(self) -> None:
        """Close the connection, if there is one. A transaction sent but not yet received may be committed nevertheless."""
        connection, self._connection = self._connection, None
        self._sent = None
        if connection is not None:
            connection.close()

    def _fail(self, error: BaseException) -> NoReturn:
        connection = self._connection
        self.close()
        if isinstance(error, psycopg.ProgrammingError):
            raise self._database.explained(error, *self._names, connection=connection) from None
        raise error

    def _open(self) -> "psycopg.Connection[Any]":
        connection = self._connection
        if connection is None or connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self.close()
            connection = self._connection = self._database.apart()
        return connection
