"""Statements in autocommit on a connection that nothing else uses, sent now and received later.

psycopg sends ahead only in a pipeline, where each statement, and the BEGIN and COMMIT around it, goes out by a system call
of its own that wakes the server. Here a statement is one message, through the driver's wrapper of libpq, its adapters and
its waiting: that saves a consumer with batches of a hundred jobs about a fifth of its CPU.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg import generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from dagster_sqlqueue.db import odd_values, statements
from dagster_sqlqueue.db.executors import Parameters, Row

_PARAMETER = re.compile(r"%\(([a-z_][a-z0-9_]*)\)([sb])")


class Answer:
    """Result of one statement.

    Attributes:
        rowcount: number of rows that it returned or changed.
    """

    def __init__(self, connection: "psycopg.Connection[Any]", result: PGresult) -> None:
        self.rowcount = result.command_tuples or 0
        self._connection = connection
        self._result = result
        # Chosen now: the connection may be closed before the rows are read.
        self._loaders = Transformer(connection)
        self._loaders.set_pgresult(result)

    def rows(self) -> Sequence[Row]:
        """Return the rows; they are converted by each call."""
        if not self._result.nfields:
            return []
        try:
            return self._loaders.load_rows(0, self._result.ntuples, tuple)
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

    def send(self, name: str, schema: str, parameters: Parameters) -> None:
        """Send the statement of the SQL file `name`; call `receive` for its result.

        Raises:
            psycopg.Error: the connection was lost, the statement could not be prepared, or a parameter not converted.
        """
        connection = self.connection
        statement, dumpers = _numbered(name, schema), Transformer(connection)
        values = dumpers.dump_sequence([parameters[one] for one in statement.names], statement.formats)
        types = dumpers.types or ()
        prepared = self._prepared.get((statement.text, types)) or self._prepare(statement.text, types)
        connection.pgconn.send_query_prepared(prepared, values, dumpers.formats, result_format=Format.BINARY)
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


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A statement as the server takes it.

    Attributes:
        text: the statement; its parameters are `$1`, `$2` and so on.
        names: names of the parameters, in the order of their numbers.
        formats: the format in which each is sent.
    """

    text: bytes
    names: tuple[str, ...]
    formats: tuple[PyFormat, ...]


@cache
def _numbered(name: str, schema: str) -> _Numbered:
    formats: dict[str, PyFormat] = {}

    def number(match: re.Match[str]) -> str:
        formats.setdefault(match[1], PyFormat(match[2]))
        return f"${list(formats).index(match[1]) + 1}"

    text = _PARAMETER.sub(number, statements.load(name, schema)).replace("%%", "%")
    return _Numbered(text.encode(), tuple(formats), tuple(formats.values()))
