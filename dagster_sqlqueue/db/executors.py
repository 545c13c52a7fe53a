"""Where a statement runs: what verbs are given to run them, in a transaction of ours or inside the caller's own."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import psycopg
import sqlalchemy as sa
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import odd_values, session_settings, statements
from dagster_sqlqueue.errors import InvalidInput

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

Row: TypeAlias = tuple[Any, ...]
Parameters: TypeAlias = Mapping[str, object]
Step: TypeAlias = tuple[str, Parameters]
"""The name of an SQL file, and what its statement is given."""

CallerConnection: TypeAlias = Union[psycopg.Connection[Any], sa.Connection, "Session", "scoped_session[Any]"]
"""What a caller may hand in to have a verb run inside his own transaction."""


Send: TypeAlias = Callable[[bytes], None]
"""Takes rows of COPY's binary format, without its header and its end."""

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"


class Executor(Protocol):
    """Something that runs one statement and gives its rows."""

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run the statement of the SQL file `name`; a statement that returns no rows gives an empty sequence."""
        ...


class Home(Protocol):
    """What an executor has to know of its database."""

    schema: str

    def first_steps(self) -> "list[tuple[str, Parameters]]":
        """What is to be sent in front of the first statement of a transaction of ours."""
        ...

    def explained(self, error: Exception, *names: str, connection: object) -> Exception:
        """Return the error to raise in place of the driver's: which command makes the tables that were not found, or which
        role may run these statements.
        """
        ...


class Transaction:
    """Statements inside one transaction on a driver connection: ours, or the caller's."""

    def __init__(self, connection: "psycopg.Connection[Any]", database: Home) -> None:
        self.connection = connection
        self._database = database
        self._lent = False

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement; what it did stands or falls with the transaction."""
        try:
            return execute(self.connection, statements.load(name, self._database.schema), parameters)
        except psycopg.ProgrammingError as error:
            raise self._database.explained(error, name, connection=self.connection) from None

    @contextlib.contextmanager
    def copying(self, name: str) -> Iterator[Send]:
        """The COPY of the SQL file `name`, which takes rows of the binary format as long as the block runs."""
        try:
            yield from _copy_in(self.connection, statements.load(name, self._database.schema))
        except psycopg.ProgrammingError as error:
            raise self._database.explained(error, name, connection=self.connection) from None

    def run_and_go_on(self, last: Step, first: Step | None = None) -> Sequence[Row]:
        """Run the last statement of this transaction, commit it, and run the first one of the transaction that follows, in
        one round trip. Only for a transaction of ours. Gives the rows of the first one.
        """
        try:
            return execute_together(self.connection, self._going_on(last, first))[-1]
        except psycopg.ProgrammingError as error:
            raise self.explained(error, last, first) from None

    def send(self, first: Step, *, after: Step | None = None) -> "Sent":
        """Send one statement, whose rows are the last answer. Until that is received the connection is for nothing else.

        Args:
            first: the statement.
            after: the last one of this transaction, sent before it and committed, as by `run_and_go_on`.
        """
        steps = [self._loaded(first)] if after is None else self._going_on(after, first)
        try:
            return Sent(self.connection, steps)
        except psycopg.ProgrammingError as error:
            raise self.explained(error, after, first) from None

    def explained(self, error: Exception, *steps: Step | None) -> Exception:
        """Return the error to raise in place of the driver's for one of these statements."""
        names = [step[0] for step in steps if step is not None]
        return self._database.explained(error, *names, connection=self.connection)

    def _going_on(self, last: Step, first: Step | None) -> list[Step]:
        following = [] if first is None else [self._loaded(first)]
        return [self._loaded(last), ("COMMIT AND CHAIN", {}), *self._database.first_steps(), *following]

    def _loaded(self, step: Step) -> Step:
        return statements.load(step[0], self._database.schema), step[1]

    def go_on(self) -> None:
        """Commit, and begin the transaction that follows. Only for a transaction of ours, in a session of its own."""
        self.connection.execute("COMMIT AND CHAIN")

    def lend(self) -> "psycopg.Connection[Any]":
        """The connection of a transaction of ours, for statements of somebody else's: they are planned as the server is
        set. `take_back` it before the next statement of ours, which go by indexes.
        """
        if not self._lent:
            self.connection.execute(session_settings.OF_SERVER)
            self._lent = True
        return self.connection

    def take_back(self) -> None:
        """Plan by indexes again, if the connection was lent."""
        if self._lent:
            self.connection.execute(session_settings.OF_TRANSACTION)
            self._lent = False

    @contextlib.contextmanager
    def atomic(self) -> Iterator["Transaction"]:
        """Make several statements one whole: a savepoint inside the caller's transaction.

        Only on a connection in autocommit that is in no transaction they are committed at the end of the block.
        """
        if not self.connection.autocommit and self.connection.info.transaction_status is TransactionStatus.IDLE:
            # The caller's transaction begins with his first statement, which this is: a block begun before it would be
            # psycopg's own, and committed.
            self.connection.execute("SELECT 1")
        with self.connection.transaction():
            yield self


class SqlAlchemyExecutor:
    """Statements on a SQLAlchemy connection, through SQLAlchemy: it would not commit what it did not see begin."""

    def __init__(self, connection: sa.Connection, database: Home) -> None:
        if connection.dialect.driver != "psycopg":
            raise InvalidInput(
                f"the SQLAlchemy connection uses the driver {connection.dialect.driver!r}; make its engine with"
                " postgresql+psycopg://"
            )
        self._connection = connection
        self._database = database

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement; what it did stands or falls with the caller's transaction."""
        try:
            sql = statements.load(name, self._database.schema)
            result = self._connection.exec_driver_sql(sql, dict(parameters))
            if not result.returns_rows:
                return []
            try:
                return [tuple(row) for row in result]
            except odd_values.UNREADABLE:
                return odd_values.rows(result.cursor)
        except (psycopg.ProgrammingError, sa.exc.ProgrammingError) as error:
            raise self._database.explained(error, name, connection=self._driver) from None

    @contextlib.contextmanager
    def copying(self, name: str) -> Iterator[Send]:
        """The COPY of the SQL file `name`, which takes rows of the binary format as long as the block runs."""
        try:
            yield from _copy_in(self._driver, statements.load(name, self._database.schema))
        except psycopg.ProgrammingError as error:
            raise self._database.explained(error, name, connection=self._driver) from None

    @contextlib.contextmanager
    def atomic(self) -> "Iterator[SqlAlchemyExecutor]":
        """Make several statements one whole: a savepoint, or in driver autocommit a transaction of their own."""
        if self._driver.autocommit:
            with self._driver.transaction():
                yield self
            return
        with self._connection.begin_nested():
            yield self

    @property
    def _driver(self) -> "psycopg.Connection[Any]":
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver


class AsyncTransaction:
    """Statements inside the caller's transaction on a connection that is awaited.

    Raises:
        InvalidInput: the connection is none that can be awaited; the message names its type.
    """

    def __init__(self, connection: "psycopg.AsyncConnection[Any]", database: Home) -> None:
        if not isinstance(connection, psycopg.AsyncConnection):
            raise InvalidInput(
                f"connection is a {type(connection).__name__}; give a psycopg.AsyncConnection, or call the verb without"
                " the a"
            )
        self._connection = connection
        self._database = database

    @property
    def copies(self) -> bool:
        """Whether COPY can be used: not inside of a pipeline."""
        return self._connection.pgconn.pipeline_status == PipelineStatus.OFF

    async def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement; what it did stands or falls with the transaction."""
        try:
            # Not connection.cursor(): the caller's connection may make cursors that bind in another way.
            async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(statements.load(name, self._database.schema).encode(), parameters)
                try:
                    # Also for a statement without rows: inside of a pipeline, only fetching waits for the answer.
                    return await cursor.fetchall()
                except odd_values.UNREADABLE:
                    return odd_values.rows(cursor)
                except psycopg.ProgrammingError:
                    if cursor.pgresult is None:
                        raise
                    return []
        except psycopg.ProgrammingError as error:
            raise self._database.explained(error, name, connection=self._connection) from None

    async def copy(self, name: str, blocks: Iterable[bytes]) -> None:
        """Send rows of the binary format to the COPY of the SQL file `name`."""
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
            raise self._database.explained(error, name, connection=self._connection) from None

    @contextlib.asynccontextmanager
    async def atomic(self) -> "AsyncIterator[AsyncTransaction]":
        """Make several statements one whole: a savepoint inside the caller's transaction."""
        if not self._connection.autocommit and self._connection.info.transaction_status is TransactionStatus.IDLE:
            # As in Transaction.atomic: the caller's transaction begins here, and is his to commit.
            await self._connection.execute("SELECT 1")
        async with self._connection.transaction():
            yield self


def user_of(connection: object) -> str:
    """Who is logged in on a connection of psycopg, for a message; nothing where that is not known any more."""
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        with contextlib.suppress(psycopg.OperationalError):
            return str(connection.info.user)
    return ""


def check_connection(connection: object, awaited: str | None = None) -> None:
    """Say so if a connection is awaited, or in pipeline mode.

    Args:
        connection: the caller's.
        awaited: the verbs to be awaited instead; None: there are none.

    Raises:
        InvalidInput: the message says what to do instead.
    """
    if isinstance(connection, psycopg.AsyncConnection):
        instead = f"await {awaited} for it" if awaited else "give one that is not awaited, and call this in a thread"
        raise InvalidInput(f"connection is an AsyncConnection; {instead}")
    if isinstance(connection, psycopg.Connection) and connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise InvalidInput("connection is in pipeline mode, where answers come late; call this outside of the pipeline")


def execute(connection: "psycopg.Connection[Any]", sql: str, parameters: Parameters) -> Sequence[Row]:
    """Run one prepared text; a statement that returns no rows gives an empty sequence."""
    # Not connection.cursor(): the caller's connection may make cursors that bind in another way.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        # In binary, times need not be written and read as text.
        cursor.execute(sql.encode(), parameters, binary=True)
        return rows_of(cursor)


def _copy_in(connection: "psycopg.Connection[Any]", sql: str) -> Iterator[Send]:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor, cursor.copy(sql.encode()) as copy:
        copy.write(_COPY_HEADER)
        yield copy.write
        copy.write(_COPY_TRAILER)


def execute_together(connection: "psycopg.Connection[Any]", steps: Sequence[Step]) -> list[Sequence[Row]]:
    """Run prepared texts one after the other, sent in one go: in autocommit, one transaction. Gives the rows of each.

    After an error the connection is closed, or, where nothing is prepared, its transaction rolled back.
    """
    cursors = [psycopg.Cursor(connection, row_factory=tuple_row) for _ in steps]
    try:
        with connection.pipeline():
            for cursor, (sql, parameters) in zip(cursors, steps, strict=True):
                cursor.execute(sql.encode(), parameters, binary=True)
    except psycopg.Error:
        if connection.prepare_threshold is None and not connection.closed:
            connection.rollback()
        else:
            # What was to be prepared after the error is not there, and the driver believes that it is, for good.
            connection.close()
        raise
    return [rows_of(cursor) for cursor in cursors]


class Sent:
    """Prepared texts that are sent in one go, and answered later: the server runs them while the caller does something else.

    The connection is for nothing else meanwhile, and is closed after an error, at which the driver believes that statements
    are prepared which the server skipped.

    Args:
        connection: where to send.
        steps: the texts, with what each is given.
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
        """Return whether the text at this place is known to have succeeded, whatever became of those after it."""
        result = self._cursors[place].pgresult
        return result is not None and result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)

    def receive(self) -> "list[psycopg.Cursor[Row]]":
        """Wait for the answers. Returns the cursor of each text: `rowcount` is known, and `rows_of` reads the rows, once."""
        try:
            self._pipeline.__exit__(None, None, None)
        except BaseException:
            self._connection.close()
            raise
        return self._cursors


def rows_of(cursor: "psycopg.Cursor[Row]") -> Sequence[Row]:
    """What a statement gave; asks the result itself, as a description of the columns would be made only to be dropped."""
    if not (cursor.pgresult and cursor.pgresult.nfields):
        return []
    try:
        return cursor.fetchall()
    except odd_values.UNREADABLE:
        return odd_values.rows(cursor)
