"""Prepared statements in a session of the library's own, sent now and received later.

psycopg sends ahead only in a pipeline of its own, where each statement, and the BEGIN and COMMIT around it, goes out by a
system call that wakes the server. Here what is sent together is one message, through the driver's wrapper of libpq, its
adapters and its waiting: that saves a consumer with leased batches of a hundred jobs about a fifth of its CPU.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import odd_values, statements

_PARAMETER = re.compile(r"%\(([a-z_][a-z0-9_]*)\)([sb])")
_FAILED = ExecStatus.FATAL_ERROR
_SUCCEEDED = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A statement as the server takes it.

    Attributes:
        text: the statement; its parameters are `$1`, `$2` and so on.
        names: names of the parameters, in the order of their numbers.
        formats: the format in which each is sent.
    """

    text: bytes
    names: tuple[str, ...] = ()
    formats: tuple[PyFormat, ...] = ()


COMMIT_AND_CHAIN = Numbered(b"COMMIT AND CHAIN")

Bound: TypeAlias = tuple[Numbered, Mapping[str, object]]
"""A statement, and its parameters."""


@cache
def numbered(name: str, schema: str) -> Numbered:
    """Return the statement of the SQL file `name`."""
    formats: dict[str, PyFormat] = {}

    def number(match: re.Match[str]) -> str:
        formats.setdefault(match[1], PyFormat(match[2]))
        return f"${list(formats).index(match[1]) + 1}"

    text = _PARAMETER.sub(number, statements.load(name, schema)).replace("%%", "%")
    return Numbered(text.encode(), tuple(formats), tuple(formats.values()))


class Answer:
    """Result of one statement.

    Attributes:
        rowcount: number of rows that it returned or changed.
    """

    __slots__ = ("_connection", "_loaders", "_result", "rowcount")

    def __init__(self, connection: "psycopg.Connection[Any]", result: PGresult) -> None:
        self.rowcount = result.command_tuples or 0
        self._connection = connection
        self._result = result
        if result.nfields:
            # Chosen now: the connection may be closed before the rows are read.
            self._loaders = Transformer(connection)
            self._loaders.set_pgresult(result)

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Return the rows; they are converted by each call."""
        if not self._result.nfields:
            return []
        try:
            return self._loaders.load_rows(0, self._result.ntuples, tuple)
        except odd_values.UNREADABLE:
            return odd_values.rows(self._connection, self._result)


class OwnSession:
    """Session that no pooler lends to others: statements are prepared when they are first sent, and stay so.

    Args:
        connection: not to be used otherwise while something is sent and not received, and not to be used again after an
            error: a prepared statement may be out of date.
    """

    __slots__ = ("_dumpers", "_prepared", "connection")

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self._prepared = _prepared_in(connection)
        self._dumpers = Transformer(connection)

    def send_together(self, steps: Sequence[Bound]) -> "Together":
        """Send statements in order, in one message: outside of a transaction they are one. Call `Together.receive`.

        Raises:
            psycopg.Error: the connection was lost, a statement could not be prepared, or a parameter not converted. The
                connection is closed.
        """
        try:
            bound = [self._bound(*step) for step in steps]
            self.connection.pgconn.enter_pipeline_mode()
            for one in bound:
                self._send(one)
            self.connection.pgconn.pipeline_sync()
            self.connection.wait(generators.send(self.connection.pgconn))
        except BaseException:
            self.connection.close()
            raise
        return Together(self.connection, len(bound))

    def _bound(self, statement: Numbered, parameters: Mapping[str, object]) -> "_Prepared":
        dumpers = self._dumpers
        values = dumpers.dump_sequence([parameters[one] for one in statement.names], statement.formats)
        types = dumpers.types or ()
        name = self._prepared.names.get((statement.text, types)) or self._prepare(statement.text, types)
        return name, values, dumpers.formats

    def _send(self, prepared: "_Prepared") -> None:
        name, values, formats = prepared
        self.connection.pgconn.send_query_prepared(name, values, formats, result_format=Format.BINARY)

    def _prepare(self, text: bytes, types: tuple[int, ...]) -> bytes:
        name = b"queue_ahead_%d" % next(self._prepared.numbers)
        self.connection.pgconn.send_prepare(name, text, types)
        self._checked(self.connection.wait(generators.execute(self.connection.pgconn)))
        self._prepared.names[text, types] = name
        return name

    def _checked(self, results: Sequence[PGresult]) -> PGresult:
        for result in results:
            if result.status == _FAILED:
                raise error_from_result(result, encoding=self.connection.info.encoding)
        (result,) = results
        return result


class Together:
    """Statements that were sent together and are received later: the server runs them meanwhile.

    Args:
        connection: where they were sent.
        count: how many.
    """

    __slots__ = ("_connection", "_count", "_results")

    def __init__(self, connection: "psycopg.Connection[Any]", count: int) -> None:
        self._connection = connection
        self._count = count
        self._results: list[PGresult] = []

    def succeeded(self, place: int) -> bool:
        """Return whether the statement at this position is known to have succeeded, also if a later one failed."""
        return place < len(self._results) and self._results[place].status in _SUCCEEDED

    def receive(self) -> list[Answer]:
        """Wait for the results, one for each statement.

        Raises:
            psycopg.OperationalError: the connection was lost.
            psycopg.Error: a statement failed, and those after it did not run. The connection is closed.
        """
        connection = self._connection
        try:
            connection.wait(self._fetch(connection.pgconn))
            for result in self._results:
                if result.status == _FAILED:
                    raise error_from_result(result, encoding=connection.info.encoding)
            connection.pgconn.exit_pipeline_mode()
        except BaseException:
            connection.close()
            raise
        return [Answer(connection, result) for result in self._results]

    def _fetch(self, pgconn: Any) -> PQGen[None]:
        for _ in range(self._count):
            self._results += yield from generators.fetch_many(pgconn)
        # The end of the message.
        yield from generators.fetch_many(pgconn)


_Prepared: TypeAlias = tuple[bytes, Sequence[Any], list[Format] | None]
"""Name of a prepared statement, values of its parameters, and their formats."""


@dataclass(slots=True)
class _Statements:
    """What is prepared in a session.

    Attributes:
        names: names of the statements, by text and types of the parameters.
        numbers: for further names; none is given twice.
    """

    names: dict[tuple[bytes, tuple[int, ...]], bytes] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)


_STATEMENTS: "WeakKeyDictionary[psycopg.Connection[Any], _Statements]" = WeakKeyDictionary()


def _prepared_in(connection: "psycopg.Connection[Any]") -> _Statements:
    """Return what is prepared in the session of a connection, which others may have used since it was used here last."""
    known = _STATEMENTS.setdefault(connection, _Statements())
    if known.names:
        # After a rollback psycopg deallocates everything, also that of others; a handler may deallocate any of them.
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            found = {name.encode() for (name,) in cursor.execute(statements.load("prepared").encode(), prepare=False)}
        known.names = {statement: name for statement, name in known.names.items() if name in found}
    return known
