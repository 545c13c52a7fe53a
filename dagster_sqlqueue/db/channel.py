"""A transaction that is sent in one go, and whose answer is collected later: the server works while the caller does."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Row, Step, rows_of


class Answer:
    """What one statement gave. It is read when it is asked for: there may be something to send before."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: "psycopg.Cursor[Row]") -> None:
        self._cursor = cursor

    @property
    def count(self) -> int:
        """The number of rows."""
        return max(self._cursor.rowcount, 0)

    def rows(self) -> Sequence[Row]:
        """The rows; to be called once."""
        return rows_of(self._cursor)


class Channel:
    """One connection beside those of the pool, made by the first `send`. Not for several threads at a time.

    The server commits without being asked for the answer. One that is larger than the buffers on its way holds the
    transaction open until it is received.

    Args:
        database: where to send.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: psycopg.Connection[Any] | None = None
        self._pipeline: Any = None
        self._names: list[str] = []
        self._cursors: list[psycopg.Cursor[Row]] = []

    def send(self, *steps: Step) -> None:
        """Send statements that are to be one transaction; `receive` is to follow.

        Raises:
            DatabaseUnavailable, psycopg.Error: there is no connection, or none any more; it may be done all the same.
        """
        texts = [(statements.load(name, self._database.schema), given) for name, given in steps]
        self._names = [name for name, _ in steps]
        try:
            connection = self._open()
            self._pipeline = connection.pipeline()
            self._pipeline.__enter__()
            # By statements of their own: what psycopg ends a pipeline with waits for the answer.
            all_texts = self._database.whole(texts)
            cursors = [psycopg.Cursor(connection, row_factory=tuple_row) for _ in all_texts]
            with self._database.naming_schema(*self._names, connection=connection):
                for cursor, (sql, given) in zip(cursors, all_texts, strict=True):
                    cursor.execute(sql.encode(), given, binary=True)
            self._cursors = cursors[-1 - len(texts) : -1]
        except BaseException:
            self.close()
            raise

    def receive(self) -> "list[Answer]":
        """The answers to the statements that were sent, once the transaction is committed.

        Raises:
            psycopg.OperationalError: the connection was lost; the transaction may be committed, or not.
            SchemaMissing, AccessRefused, psycopg.Error: a statement failed, and nothing of the transaction is left.
        """
        try:
            with self._database.naming_schema(*self._names, connection=self._connection):
                self._pipeline.__exit__(None, None, None)
        except BaseException:
            # After an error the driver believes that statements are prepared which the server skipped.
            self.close()
            raise
        answers = [Answer(cursor) for cursor in self._cursors]
        self._pipeline, self._cursors = None, []
        return answers

    def close(self) -> None:
        """Close the connection, if there is one; what was sent and not answered may be done all the same."""
        connection, self._connection = self._connection, None
        self._pipeline, self._cursors = None, []
        if connection is not None:
            connection.close()

    def _open(self) -> "psycopg.Connection[Any]":
        connection = self._connection
        if connection is None or connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self.close()
            connection = self._connection = self._database.apart()
        return connection
