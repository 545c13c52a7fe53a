"""Send a transaction in one go and receive its answer later: the server works while the caller does."""

from typing import Any, NoReturn, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Row, Sent, Step

Cursors: TypeAlias = "list[psycopg.Cursor[Row]]"


class Channel:
    """A connection beside those of the pool, opened by the first `send`. Not for several threads at a time.

    The server commits without waiting for the answer to be received. An answer larger than the buffers on its way keeps the
    transaction open until then.

    Args:
        database: where the statements run.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: psycopg.Connection[Any] | None = None
        self._names: list[str] = []
        self._sent: Sent | None = None

    def send(self, *steps: Step) -> None:
        """Send statements as one transaction; call `receive` for the answer.

        Raises:
            DatabaseUnavailable, psycopg.Error: there is no connection, or it was lost; the transaction may be committed all
                the same.
        """
        database = self._database
        texts = [(statements.load(name, database.schema), given) for name, given in steps]
        self._names = [name for name, _ in steps]
        try:
            # It begins and ends by statements of its own: what psycopg ends a pipeline with waits for the answer.
            self._sent = Sent(self._open(), database.whole(texts))
        except BaseException as error:
            self._fail(error)

    def receive(self) -> Cursors:
        """Wait until the transaction is committed. Returns the statements' cursors: `rowcount` is known, and `rows_of` reads
        the rows of each, once, when there is time for it.

        Raises:
            psycopg.OperationalError: the connection was lost; the transaction may be committed, or not.
            SchemaMissing, AccessRefused, psycopg.Error: a statement failed, and nothing of the transaction is left.
        """
        assert self._sent is not None, "nothing was sent"
        try:
            cursors = self._sent.receive()
        except BaseException as error:
            self._fail(error)
        self._sent = None
        return cursors[-1 - len(self._names) : -1]

    def close(self) -> None:
        """Close the connection, if there is one; what was sent and not answered may be committed all the same."""
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
