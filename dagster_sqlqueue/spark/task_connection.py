"""Connections of the tasks, which hand out Arrow batches, and what their errors mean.

Each of Spark's Python workers imports anew what it runs, at a second of CPU where that is the whole package. What this and
`slice_reader` import is kept small: neither SQLAlchemy nor psycopg, and of ADBC what does without pandas.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import adbc_driver_postgresql
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement, Error, OperationalError

from dagster_sqlqueue.db import permissions, statements
from dagster_sqlqueue.errors import InvalidInput

APPLICATION = "dagster-sqlqueue/spark"

REFUSED = "42501"
"""The SQLSTATE of what a user may not do."""

ERRORS = (Error, pa.ArrowException, OSError)
"""What the driver raises, in the middle of a result as well."""

_CANCELLED = "57014", "canceling statement"
_ABORTED = "25P02"
_PLACE = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Server:
    """The database, as a task has to know it; see `urls.server`.

    Attributes:
        conninfo: libpq's.
        where: the database, in words.
        user: who is logged in.
        schema: where the queue's tables are.
    """

    conninfo: str = field(repr=False)
    where: str
    user: str
    schema: str


@lru_cache(maxsize=4)
def _database(conninfo: str) -> AdbcDatabase:
    """What the driver knows of a database. It reads the whole catalog for that, a tenth of a second for the tables of one
    queue: once for each worker, which Spark keeps for many tasks. There is no connection in it.
    """
    made: AdbcDatabase = adbc_driver_postgresql.connect(conninfo)
    return made


class Connection:
    """One connection, in autocommit.

    Raises:
        OperationalError: there is none to be had.
    """

    def __init__(self, conninfo: str) -> None:
        self._connection = AdbcConnection(_database(conninfo))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def execute(self, text: str, parameters: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Run a statement, and return its rows.

        Args:
            text: with `$1` and so on for the parameters.
            parameters: what is given any is prepared, which cannot be done with a statement that locks a table.
        """
        with AdbcStatement(self._connection) as statement:
            statement.set_sql_query(text)
            if parameters:
                names = [str(number) for number, _ in enumerate(parameters)]
                statement.bind(pa.RecordBatch.from_arrays([pa.array([one]) for one in parameters], names))
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                rows: list[dict[str, Any]] = reader.read_all().to_pylist()
            return rows

    def batches(self, text: str, size: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement, as they come.

        Args:
            text: of the statement.
            size: about how many bytes a batch should have.
        """
        with AdbcStatement(self._connection) as statement:
            statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(size)})
            statement.set_sql_query(text)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from reader

    def alive(self) -> bool:
        """Return whether its server still answers. An error in the middle of a result does not show that."""
        try:
            self.execute("SELECT 1")
        except (Error, OSError) as error:
            return state_of(error) == _ABORTED
        return True


def run(connection: Connection, name: str, schema: str, *parameters: str) -> list[dict[str, Any]]:
    """Run the statement of a SQL file, and return its rows.

    Args:
        connection: where.
        name: of the file.
        schema: where the queue's tables are.
        parameters: in the order in which the file has them.
    """
    text = statements.load(name, schema)
    for number, parameter in enumerate(dict.fromkeys(_PLACE.findall(text)), 1):
        text = text.replace(f"%({parameter})s", f"${number}")
    return connection.execute(text.replace("%%", "%"), parameters)


@contextmanager
def connected(server: Server, *names: str) -> Iterator[Connection]:
    """Yield a connection for a task's block; errors in the block become the package's if it has one.

    Args:
        server: the database.
        names: of SQL files that take the rights that the block takes.

    Raises:
        DatabaseUnavailable: there is no connection, or none any more.
        AccessRefused: the user may not read that.
        InvalidInput: a statement took longer than the option `statement_timeout` allows.
    """
    try:
        connection = Connection(server.conninfo)
    except OperationalError as error:
        raise explained(error, server, broken=True) from None
    with connection:
        try:
            yield connection
        except ERRORS as error:
            if state_of(error) == REFUSED:
                raise permissions.refusal(server.schema, names, server.user, str(error)) from None
            raise explained(error, server, broken=not connection.alive()) from None


def state_of(error: BaseException) -> str | None:
    """Return the error's SQLSTATE, if the driver hands it on: not for what happens in the middle of a result."""
    return getattr(error, "sqlstate", None) or None


def cancelled(error: BaseException) -> bool:
    """Return whether the server ended the statement because of its time-out, or on an operator's request."""
    state, words = _CANCELLED
    return state_of(error) == state or (state_of(error) is None and words in str(error))


def explained(error: BaseException, server: Server, *, broken: bool) -> BaseException:
    """Return the package's own error for one of the driver's; the driver's own where there is nothing to add."""
    if broken:
        from dagster_sqlqueue.db.driver_errors import unavailable

        return unavailable(server.where, f"the connection broke: {error}", state_of(error))
    if cancelled(error):
        return InvalidInput(
            f"the database {server.where} ended a statement of the read, which took too long or was cancelled: raise the"
            " option 'statement_timeout', or lower 'target_rows'"
        )
    return error
