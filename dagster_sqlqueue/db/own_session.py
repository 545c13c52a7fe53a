"""Statements in autocommit on a connection that nothing else uses, sent now and received later.

psycopg sends ahead only in a pipeline, where each statement, and the BEGIN and COMMIT around it, goes out by a system call
of its own that wakes the server. Here a statement is one message, through the driver's wrapper of libpq, its adapters and
its waiting: that saves a consumer with batches of a hundred jobs about a fifth of its CPU.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from dagster_sqlqueue.db import odd_values
from dagster_sqlqueue.db.executors import Row
from dagster_sqlqueue.db.statements import Numbered


class Answer:
    """Result of one statement.

    Attributes:
        rowcount: number of rows that it returned or changed.
    """

    def __init__(self, connection: "psycopg.Connection[Any]", result: PGresult) -> None:
        self.rowcount = result.command_tuples or 0
        self._connection = connection
        self._result = result

    def rows(self) -> Sequence[Row]:
        """Return the rows; they are converted by each call."""
        if not self._result.nfields:
            return []
        transformer = Transformer(self._connection)
        transformer.set_pgresult(self._result)
        try:
            return transformer.load_rows(0, self._result.ntuples, tuple)
        except odd_values.UNREADABLE:
            return odd_values.rows(psycopg.Cursor(self._connection), self._result)


class OwnSession:
    """Session that is not lent to others: statements are prepared when they are first sent, and stay so.

    Args:
        connection: in autocommit. After an error it is not to be used again: a prepared statement may be out of date.
    """

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self._prepared: dict[tuple[bytes, tuple[int, ...]], bytes] = {}

    def send(self, statement: Numbered, parameters: Sequence[object]) -> None:
        """Send a statement; call `receive` for its result.

        Raises:
            psycopg.Error: the connection was lost, the statement could not be prepared, or a parameter not converted.
        """
        connection = self.connection
        transformer = Transformer(connection)
        values = transformer.dump_sequence(parameters, statement.formats)
        types = transformer.types or ()
        name = self._prepared.get((statement.text, types)) or self._prepare(statement.text, types)
        connection.pgconn.send_query_prepared(name, values, transformer.formats, result_format=Format.BINARY)
        connection.wait(generators.send(connection.pgconn))

    def receive(self) -> Answer:
        """Wait until the statement has ended, and is committed.

        Raises:
            psycopg.OperationalError: the connection was lost; the statement may or may not be committed.
            psycopg.Error: the statement failed.
        """
        results = self.connection.wait(generators.fetch_many(self.connection.pgconn))
        return Answer(self.connection, self._checked(results))

    def _prepare(self, text: bytes, types: tuple[int, ...]) -> bytes:
        name = b"sqlqueue_%d" % len(self._prepared)
        self.connection.pgconn.send_prepare(name, text, types)
        self._checked(self.connection.wait(generators.execute(self.connection.pgconn)))
        self._prepared[text, types] = name
        return name

    def _checked(self, results: Sequence[PGresult]) -> PGresult:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result, encoding=self.connection.info.encoding)
        (result,) = results
        return result
