"""Executors of statements on psycopg's connections: in a transaction of the library, or inside the caller's own."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import psycopg
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import odd_values, statements
from dagster_sqlqueue.db.django_connection import DjangoConnection
from dagster_sqlqueue.db.error_translation import ErrorTranslation
from dagster_sqlqueue.db.execution import Parameters, Row, Step, execute, execute_together
from dagster_sqlqueue.db.own_session import COMMIT_AND_CHAIN, Answer, Bound, OwnSession, Together, numbered
from dagster_sqlqueue.errors import InvalidInput

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.orm import Session, scoped_session

CallerConnection: TypeAlias = Union[
    psycopg.Connection[Any], "sa.Connection", "Session", "scoped_session[Any]", DjangoConnection
]
"""Connection or session that a caller may pass to run an operation inside its own transaction."""


Send: TypeAlias = Callable[[bytes], None]
"""Function that takes rows in COPY's binary format, without its header and trailer."""

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"


class Executor(Protocol):
    """Object that runs one statement and returns its rows."""

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run the statement of the SQL file `name`; return its rows, or an empty sequence if it returns none."""
        ...


class Home(Protocol):
    """Interface of a database to its executors."""

    schema: str
    errors: ErrorTranslation

    def first_steps(self) -> "list[tuple[str, Parameters]]":
        """Return the statements to send before the first one of a transaction of the library."""
        ...

    def lending(self, *, again: bool) -> bytes:
        """Return the statements to send before a connection is lent to other code."""
        ...

    def taking_back(self) -> bytes:
        """Return the statements to send after other code."""
        ...


class Transaction:
    """Executor inside one transaction on a driver connection: of the library, or of the caller."""

    def __init__(self, connection: "psycopg.Connection[Any]", database: Home) -> None:
        self.connection = connection
        self._database = database
        self._lent = False
        self._session: OwnSession | None = None

    @property
    def copies(self) -> bool:
        """Whether rows packed in UTF-8 can be sent by COPY."""
        return sends_utf8(self.connection)

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement and return its rows; its effects are committed or rolled back with the transaction."""
        try:
            sql = statements.load(name, self._database.schema)
            return execute(self.connection, sql, without_null_arrays(parameters))
        except psycopg.ProgrammingError as error:
            raise self._database.errors.explained(error, name, connection=self.connection) from None
        except UnicodeEncodeError as error:
            raise unsendable(error, self.connection) from None

    @contextlib.contextmanager
    def copying(self, name: str) -> Iterator[Send]:
        """Run the COPY of the SQL file `name`, and provide a function that sends it rows in binary format, in the block."""
        try:
            yield from copy_in(self.connection, statements.load(name, self._database.schema))
        except psycopg.ProgrammingError as error:
            raise self._database.errors.explained(error, name, connection=self.connection) from None

    def run_and_go_on(self, last: Step, first: Step | None = None) -> Sequence[Row]:
        """Run the last statement of this transaction, commit, and run the first one of the next transaction, pipelined.

        Only for a transaction of the library.

        Returns:
            The rows of `first`.
        """
        try:
            return execute_together(self.connection, self._going_on(last, first))[-1]
        except psycopg.ProgrammingError as error:
            raise self.explained(error, last, first) from None

    def send(self, first: Step, *, after: Step | None = None) -> "Sent | Together":
        """Send one statement; its result is the last one. Until that is received the connection must not be used otherwise.

        Args:
            first: the statement.
            after: the last statement of this transaction: it is sent first, and committed, as by `run_and_go_on`.
        """
        try:
            if self.connection.prepare_threshold is None:
                # A pooler lends the session to others.
                return Sent(self.connection, [self._loaded(first)] if after is None else self._going_on(after, first))
            session = self._session = self._session or OwnSession(self.connection)
            ended = [] if after is None else [self._bound(after), (COMMIT_AND_CHAIN, {})]
            return session.send_together([*ended, self._bound(first)])
        except psycopg.ProgrammingError as error:
            raise self.explained(error, after, first) from None

    def explained(self, error: Exception, *steps: Step | None) -> Exception:
        """Return the error to raise in place of the driver's for one of these statements."""
        names = [step[0] for step in steps if step is not None]
        return self._database.errors.explained(error, *names, connection=self.connection)

    def _going_on(self, last: Step, first: Step | None) -> list[Step]:
        following = [] if first is None else [self._loaded(first)]
        return [self._loaded(last), ("COMMIT AND CHAIN", {}), *self._database.first_steps(), *following]

    def _loaded(self, step: Step) -> Step:
        return statements.load(step[0], self._database.schema), step[1]

    def _bound(self, step: Step) -> Bound:
        return numbered(step[0], self._database.schema), step[1]

    def go_on(self) -> None:
        """Commit, and begin the next transaction. Only for a transaction of the library, in a session of its own."""
        self.connection.execute("COMMIT AND CHAIN")

    def lend(self) -> "psycopg.Connection[Any]":
        """Return the connection of a transaction of the library, for statements of other code.

        They are planned with the server's settings, and give the driver's kind of rows, whatever was set when it was lent
        before: settings of session and transaction, roles, kinds of rows. Call `take_back` before the next statement of the
        library, which needs plans by index and the library's role.
        """
        self.connection.row_factory = tuple_row
        self.connection.cursor_factory = psycopg.Cursor
        self.connection.execute(self._database.lending(again=self._lent))
        self._lent = True
        # What is done with it may deallocate prepared statements.
        self._session = None
        return self.connection

    def take_back(self) -> None:
        """Restore the library's settings and role, if the connection was lent."""
        if self._lent:
            self.connection.execute(self._database.taking_back())
            self._lent = False

    @contextlib.contextmanager
    def atomic(self) -> Iterator["Transaction"]:
        """Run the block atomically, in a savepoint inside the caller's transaction.

        Only on an autocommit connection that is in no transaction, the block is committed at its end.
        """
        if not self.connection.autocommit and self.connection.info.transaction_status is TransactionStatus.IDLE:
            # The caller's transaction begins here, with its first statement. Otherwise psycopg's block would begin the
            # transaction, and commit it.
            self.connection.execute("SELECT 1")
        with self.connection.transaction():
            yield self


class AsyncTransaction:
    """Executor inside the caller's transaction on an asynchronous connection.

    Raises:
        InvalidInput: the connection is not asynchronous; the message names its type.
    """

    def __init__(self, connection: "psycopg.AsyncConnection[Any]", database: Home) -> None:
        if not isinstance(connection, psycopg.AsyncConnection):
            raise InvalidInput(
                f"connection is a {type(connection).__name__}; give a psycopg.AsyncConnection, or call the verb without"
                " the a. Through an AsyncSession or AsyncConnection of SQLAlchemy:"
                " await it.run_sync(lambda inner: queue.enqueue(…, connection=inner))"
            )
        self._connection = connection
        self._database = database

    @property
    def copies(self) -> bool:
        """Whether rows packed in UTF-8 can be sent by COPY: not inside of a pipeline."""
        return self._connection.pgconn.pipeline_status == PipelineStatus.OFF and sends_utf8(self._connection)

    async def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement and return its rows; its effects are committed or rolled back with the transaction."""
        try:
            # Not connection.cursor(): the caller's connection may make cursors that bind in another way.
            async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
                sql = statements.load(name, self._database.schema).encode()
                await cursor.execute(sql, without_null_arrays(parameters))
                try:
                    # Also for a statement without rows: in a pipeline, only the fetch waits for the result.
                    return await cursor.fetchall()
                except odd_values.UNREADABLE:
                    return odd_values.rows(cursor, cursor.pgresult)
                except psycopg.ProgrammingError:
                    if cursor.pgresult is None:
                        raise
                    return []
        except psycopg.ProgrammingError as error:
            raise self._database.errors.explained(error, name, connection=self._connection) from None
        except UnicodeEncodeError as error:
            raise unsendable(error, self._connection) from None

    async def copy(self, name: str, blocks: Iterable[bytes]) -> None:
        """Run the COPY of the SQL file `name`, and send it rows in binary format."""
        sql = statements.load(name, self._database.schema).encode()
        try:
            async with (
                psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor,
                cursor.copy(sql) as copy,
            ):
                await copy.write(_COPY_HEADER)
                for block in blocks:
                    await copy.write(block)
                await copy.write(_COPY_TRAILER)
        except psycopg.ProgrammingError as error:
            raise self._database.errors.explained(error, name, connection=self._connection) from None

    @contextlib.asynccontextmanager
    async def atomic(self) -> "AsyncIterator[AsyncTransaction]":
        """Run the block atomically, in a savepoint inside the caller's transaction."""
        if not self._connection.autocommit and self._connection.info.transaction_status is TransactionStatus.IDLE:
            # As in Transaction.atomic: the caller's transaction begins here, and the caller commits it.
            await self._connection.execute("SELECT 1")
        async with self._connection.transaction():
            yield self


def check_connection(connection: object, awaited: str | None = None) -> None:
    """Raise `InvalidInput` if a connection is asynchronous, or in pipeline mode.

    Args:
        connection: connection of the caller.
        awaited: names of the methods to await instead; None if there are none.

    Raises:
        InvalidInput: the message says what to do instead.
    """
    if isinstance(connection, psycopg.AsyncConnection):
        instead = f"await {awaited} for it" if awaited else "give one that is not awaited, and call this in a thread"
        raise InvalidInput(f"connection is an AsyncConnection; {instead}")
    if isinstance(connection, psycopg.Connection) and connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise InvalidInput("connection is in pipeline mode, where answers come late; call this outside of the pipeline")


def without_null_arrays(parameters: Parameters) -> Parameters:
    """Return parameters for a connection that may have `array_nulls = off`: NULL in place of an array of nothing but NULLs.

    The driver would send that array as text, in which NULL then is a word. The statements unnest it beside an array of ids,
    and get the same rows.
    """
    return {name: None if _is_null_array(value) else value for name, value in parameters.items()}


def _is_null_array(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(element is None for element in value)


def sends_utf8(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Return whether a connection's encoding is UTF-8."""
    return connection.info.encoding == "utf-8"


def unsendable(error: UnicodeEncodeError, connection: Any) -> InvalidInput:
    """Return the error for a text that the caller's connection cannot send in its encoding."""
    found = error.object[error.start : error.end][:1]
    return InvalidInput(
        f"a text holds the character {found!r}, which the connection cannot send: its client_encoding is"
        f" {connection.info.parameter_status('client_encoding')}; connect with client_encoding=UTF8"
    )


def copy_in(connection: "psycopg.Connection[Any]", sql: str) -> Iterator[Send]:
    """Run a COPY, and yield once: the function that sends it rows in binary format."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor, cursor.copy(sql.encode()) as copy:
        copy.write(_COPY_HEADER)
        yield copy.write
        copy.write(_COPY_TRAILER)


class Sent:
    """Pipelined statements whose results are received later: the server runs them while the caller does other work.

    Until then the connection must not be used otherwise. It is closed after an error, because the driver then keeps
    statements as prepared that the server skipped.

    Args:
        connection: connection to send to.
        steps: texts of the statements, with the parameters of each.
    """

    __slots__ = ("_connection", "_cursors", "_pipeline")

    def __init__(self, connection: "psycopg.Connection[Any]", steps: Sequence[Step]) -> None:
        self._connection = connection
        self._cursors = [psycopg.Cursor(connection, row_factory=tuple_row) for _ in steps]
        self._pipeline = connection.pipeline()
        try:
            self._pipeline.__enter__()
            for cursor, (sql, parameters) in zip(self._cursors, steps, strict=True):
                cursor.execute(sql.encode(), parameters, binary=True)
        except BaseException:
            connection.close()
            raise

    def succeeded(self, place: int) -> bool:
        """Return whether the statement at this position is known to have succeeded, also if a later one failed."""
        result = self._cursors[place].pgresult
        return result is not None and result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)

    def receive(self) -> list[Answer]:
        """Wait for the results, one for each statement."""
        try:
            self._pipeline.__exit__(None, None, None)
        except BaseException:
            self._connection.close()
            raise
        return [Answer(self._connection, cursor.pgresult) for cursor in self._cursors if cursor.pgresult]
