"""Connections, transactions and retries: the only place that talks to a driver.

A statement runs on a connection of the pool in autocommit (one round trip), in a transaction of the library, or inside the
caller's own transaction. Every connection of the pool is READ COMMITTED, in UTC, and has an application name. Planner
settings are set per session, or per transaction behind a pooler (see `session_settings`).
"""

import contextlib
import enum
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import driver_errors, permissions, session_settings, statements, uuid_arrays
from dagster_sqlqueue.db.executors import (
    AsyncTransaction,
    CallerConnection,
    Parameters,
    Row,
    SqlAlchemyExecutor,
    Step,
    Transaction,
    check_connection,
    execute,
    execute_together,
    user_of,
)
from dagster_sqlqueue.db.pool import pool_of
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.db.urls import parse_url, pooler_of
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput

logger = logging.getLogger("dagster_sqlqueue")

T = TypeVar("T")

SCHEMA_VARIABLE = "SQLQUEUE_SCHEMA"


class Unnamed(enum.Enum):
    """Sentinel for an argument that was not given, where None is rejected: it may come from a look-up that found nothing."""

    UNNAMED = enum.auto()


_IDLE_TIMEOUT = b"SET LOCAL idle_in_transaction_session_timeout = '5s'"
"""Server-side timeout for transactions without pauses between their statements. Without it, a process that is stopped or
disconnected between two statements would hold its locks, and block a limited queue for all others, until TCP gives up its
connection, which takes hours."""


def default_schema() -> str:
    """Return the schema to use if none is given: the environment variable `SQLQUEUE_SCHEMA`, else `sqlqueue`."""
    return os.environ.get(SCHEMA_VARIABLE) or statements.DEFAULT_SCHEMA


class Database:
    """Pool of connections to one schema of one database.

    The connections are in autocommit and in UTC. Their statements use generic plans, by index. The first connection is
    opened for the first statement.

    Args:
        url: see `parse_url`.
        schema: schema of the queue's tables; default: `default_schema()`.
        pool_size: maximum number of open connections.
        application_name: name shown in `pg_stat_activity`.
        connect_timeout: seconds to wait for the server, or for a free connection of the pool.
        statement_timeout: seconds; None for the server's setting.
        pooler: kind of pooler between client and server, see `Pooler`; None: as in the URL (`?pooler=transaction`), or else
            detected when a connection is opened.

    Raises:
        InvalidInput: a setting is not usable.

    Attributes:
        schema: schema of the queue's tables.
        pooler: the pooler given by argument or URL; None if none was given.
        shared: whether a pooler lends sessions for one transaction at a time, as given or detected.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | Unnamed = Unnamed.UNNAMED,
        pool_size: int = 5,
        application_name: str = "dagster-sqlqueue",
        connect_timeout: int = 10,
        statement_timeout: float | None = None,
        pooler: Pooler | str | None = None,
    ) -> None:
        if isinstance(schema, Unnamed):
            schema = default_schema()
        statements.quote_schema(schema)
        if pool_size < 1:
            raise InvalidInput(f"pool_size is {pool_size}; it must be at least 1")
        self.schema = schema
        self._url, in_url = pooler_of(parse_url(url))
        self.pooler = in_url if pooler is None else session_settings.pooler(pooler)
        self.shared = self.pooler is Pooler.TRANSACTION
        self._settings = session_settings.Settings(
            application_name[:63], None if statement_timeout is None else round(statement_timeout * 1000)
        )
        self._given: dict[str, Any] = {
            "schema": schema,
            "application_name": application_name,
            "connect_timeout": connect_timeout,
            "statement_timeout": statement_timeout,
        }
        self.engine = pool_of(
            self._url,
            size=pool_size,
            connect_timeout=connect_timeout,
            # A pooler would leave the name in the session, where it would apply to clients that set none.
            application_name=None if self.shared else application_name[:63],
            on_connect=self._prepare_connection,
        )

    def __repr__(self) -> str:
        return f"Database({self.where!r}, schema={self.schema!r})"

    @property
    def where(self) -> str:
        """Host, port and database: the part of the URL that may be shown."""
        host = self._url.host or self._url.query.get("host") or "the local socket"
        port = f":{self._url.port}" if self._url.port else ""
        return f"{host}{port}/{self._url.database or ''}"

    @property
    def url(self) -> str:
        """URL with its password and the given pooler, for another process that connects in the same way."""
        said = {} if self.pooler is None else {"pooler": self.pooler.value}
        return self._url.update_query_dict(said).render_as_string(hide_password=False)

    def close(self) -> None:
        """Close the pool's connections."""
        self.engine.dispose()

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement in autocommit; retry it after a serialization failure or deadlock.

        Returns:
            Its rows.

        Raises:
            DatabaseUnavailable, SchemaMissing, AccessRefused: see the classes.
            psycopg.Error: any other error of the database.
        """
        return driver_errors.retried(self._run_once, name, statements.load(name, self.schema), parameters)

    def _run_once(self, name: str, sql: str, parameters: Parameters) -> Sequence[Row]:
        with self.connection() as connection:
            try:
                if self.shared:
                    return execute_together(connection, self.whole([(sql, parameters)]))[-2]
                return execute(connection, sql, parameters)
            except psycopg.ProgrammingError as error:
                raise self.explained(error, name, connection=connection) from None

    def run_together(self, *steps: Step) -> list[Sequence[Row]]:
        """Run statements in order in one transaction, pipelined.

        Each statement sees what was committed before it began, so the first one may wait for a lock that the next one needs.
        After a serialization failure or deadlock the whole transaction is retried.

        Returns:
            The rows of each statement.

        Raises:
            DatabaseUnavailable, SchemaMissing, psycopg.Error: as for `run`.
        """
        return driver_errors.retried(self._run_together_once, steps)

    def _run_together_once(self, steps: Sequence[Step]) -> list[Sequence[Row]]:
        texts = [(statements.load(name, self.schema), given) for name, given in steps]
        with self.connection() as connection:
            try:
                if self.shared:
                    return execute_together(connection, self.whole(texts))[-1 - len(texts) : -1]
                return execute_together(connection, texts)
            except psycopg.ProgrammingError as error:
                raise self.explained(error, *(name for name, _ in steps), connection=connection) from None

    def transact(self, work: "Callable[[Transaction], T]", *, idling: bool = False) -> T:
        """Run `work` in one transaction of the library; retry it from the start after a serialization failure or deadlock.

        Args:
            work: function that runs the statements.
            idling: whether it may pause between its statements; if not, the server ends the transaction when it idles for
                five seconds.

        Returns:
            The result of `work`.

        Raises:
            DatabaseUnavailable, SchemaMissing: see the classes.
            Exception: any exception of `work`, after a rollback.
        """
        result: T = driver_errors.retried(self._transact_once, work, idling)
        return result

    def _transact_once(self, work: "Callable[[Transaction], T]", idling: bool) -> T:
        with self._begun(idling) as connection:
            return work(Transaction(connection, self))

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[Transaction]":
        """Run the block in a transaction of the library: committed at its end, rolled back on an exception.

        `psycopg.Rollback` rolls back and is not propagated, as in the driver.

        Raises:
            DatabaseUnavailable, SchemaMissing: see the classes.
        """
        with contextlib.suppress(psycopg.Rollback), self._begun(idling=True) as connection:
            yield Transaction(connection, self)

    @contextlib.contextmanager
    def _begun(self, idling: bool) -> "Iterator[psycopg.Connection[Any]]":
        """Provide a connection of the pool in a transaction, which ends with the block."""
        with self.connection() as connection:
            begin = [self._settings.begin] + ([] if idling else [_IDLE_TIMEOUT])
            connection.execute(b"; ".join([*begin, *([self._settings.of_transaction] if self.shared else [])]))
            try:
                yield connection
                connection.commit()
            except Exception:
                if not connection.closed:
                    connection.rollback()
                raise
            except BaseException:
                # An interrupt may arrive in the middle of a statement: then only closing the connection rolls back.
                connection.close()
                raise

    def first_steps(self) -> list[tuple[str, Parameters]]:
        """Return the statements to send before the first one of a transaction: settings, or none."""
        if not self.shared:
            return []
        return [(statements.load(session_settings.STATEMENT, self.schema), self._settings.parameters)]

    def whole(self, texts: Sequence[tuple[str, Parameters]]) -> list[tuple[str, Parameters]]:
        """Return the statements of one pipelined transaction: BEGIN, `first_steps`, `texts`, COMMIT."""
        return [(self._settings.begin.decode(), {}), *self.first_steps(), *texts, ("COMMIT", {})]

    @contextlib.contextmanager
    def connection(self) -> "Iterator[psycopg.Connection[Any]]":
        """Provide a driver connection of the pool, in autocommit.

        A connection that is broken or still in a transaction is discarded instead of returned to the pool.

        Raises:
            DatabaseUnavailable: there is no connection, or it was lost in the block.
            SchemaMissing: the block did not find the queue's tables.
        """
        with self._translated():
            pooled = self.engine.raw_connection()
            driver = pooled.driver_connection
            assert isinstance(driver, psycopg.Connection)
            try:
                yield driver
            finally:
                # Handlers and callers may have set their own.
                driver.row_factory, driver.cursor_factory = tuple_row, psycopg.Cursor
                if driver.pgconn.transaction_status != TransactionStatus.IDLE:
                    pooled.invalidate()
                pooled.close()

    def apart(self) -> "psycopg.Connection[Any]":
        """Open a connection in autocommit, set up like those of the pool but not one of them. The caller closes it.

        Raises:
            DatabaseUnavailable: no connection could be opened.
        """
        with self._translated():
            pooled = self.engine.raw_connection()
            driver = pooled.driver_connection
            assert isinstance(driver, psycopg.Connection)
            pooled.detach()
            return driver

    def begin_apart(self) -> Transaction:
        """Begin a transaction of the library on a connection of its own. The caller ends it and closes the connection.

        Raises:
            DatabaseUnavailable: no connection could be opened.
        """
        connection = self.apart()
        transaction = Transaction(connection, self)
        self.begin_again(transaction)
        return transaction

    def begin_again(self, transaction: Transaction) -> None:
        """Begin another transaction on the connection of a transaction that has ended."""
        transaction.connection.execute(self._settings.begin)

    def beside(self, *, pool_size: int = 1) -> "Database":
        """Return the same database with a pool of its own. The caller closes it.

        Args:
            pool_size: maximum number of open connections.
        """
        return Database(self.url, pool_size=pool_size, **self._given)

    def joined(self, connection: CallerConnection | None) -> "Database | Transaction | SqlAlchemyExecutor":
        """Return where to run a statement: the caller's transaction if one is given, else this pool.

        Raises:
            InvalidInput: the object is not a connection that can be joined.
        """
        match connection:
            case None:
                return self
            case psycopg.Connection():
                return Transaction(connection, self)
            case sa.Connection():
                return SqlAlchemyExecutor(connection, self)
            case _:
                return SqlAlchemyExecutor(_connection_of(connection), self)

    def awaited(self, connection: "psycopg.AsyncConnection[Any]") -> AsyncTransaction:
        """Return the caller's transaction on an asynchronous connection.

        Raises:
            InvalidInput: the connection is not asynchronous; the message names its type.
        """
        return AsyncTransaction(connection, self)

    def within(self, connection: CallerConnection | None) -> "Transaction | SqlAlchemyExecutor | None":
        """Return the caller's transaction, for work that would otherwise run in a transaction of the library.

        Returns:
            None if no connection is given.

        Raises:
            InvalidInput: the object is not a connection that can be joined, or is in pipeline mode.
        """
        check_connection(connection)
        joined = self.joined(connection)
        return None if isinstance(joined, Database) else joined

    def _prepare_connection(self, driver: "psycopg.Connection[Any]", _record: object) -> None:
        if self.pooler is None and session_settings.is_shared(driver):
            self.shared = True
        if self.shared:
            # Another client uses the session in the next transaction: nothing is prepared or set in it.
            driver.prepare_threshold = None
            driver.adapters.register_loader("timestamptz", session_settings.LoadedInUtc)
        else:
            driver.execute(self._settings.of_session)
        uuid_arrays.register(driver)
        if not driver.autocommit:
            driver.commit()

    def _user(self, connection: object) -> str:
        """Return the user for an error message: of the connection, or of the URL if an error has closed the connection."""
        return user_of(connection) or self._url.username or ""

    @contextlib.contextmanager
    def naming_schema(self, *names: str, connection: object = None) -> Iterator[None]:
        """Replace the driver's errors in the block by those of `explained`.

        Args:
            names: names of the SQL files that the block runs.
            connection: the driver connection that they run on.

        Raises:
            SchemaMissing, AccessRefused: see the classes.
        """
        try:
            yield
        except (psycopg.ProgrammingError, sa.exc.ProgrammingError) as error:
            raise self.explained(error, *names, connection=connection) from None

    def explained(self, error: Exception, *names: str, connection: object = None) -> Exception:
        """Return the error to raise in place of the driver's error.

        It names the command that creates the missing tables, or the roles that may run these statements. All other errors
        are returned unchanged.

        Args:
            error: error of the driver, or the SQLAlchemy error that wraps it.
            names: names of the SQL files that were run; if none is given, a permission error is returned unchanged.
            connection: the driver connection that they ran on.
        """
        original = error.orig if isinstance(error, sa.exc.ProgrammingError) else error
        if missed := driver_errors.missing(original, self.schema, self.where):
            return missed
        if names and isinstance(original, psycopg.errors.InsufficientPrivilege):
            return permissions.refusal(self.schema, names, self._user(connection), str(original))
        return error

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.ProgrammingError, sa.exc.ProgrammingError) as error:
            raise self.explained(error) from None
        except sa.exc.TimeoutError:
            raise DatabaseUnavailable(
                f"none of the {self.engine.pool.size()} connections to {self.where} became free in time; raise pool_size to"  # type: ignore[attr-defined]
                " the number of threads that use the queue"
            ) from None
        except (
            sa.exc.OperationalError,
            psycopg.OperationalError,
            psycopg.errors.IdleInTransactionSessionTimeout,
        ) as error:
            original = error.orig if isinstance(error, sa.exc.OperationalError) else error
            if driver_errors.is_unavailable(original):
                raise self.unavailable(str(original), getattr(original, "sqlstate", None)) from None
            raise

    def unavailable(self, reason: str, state: str | None = None) -> DatabaseUnavailable:
        """Return an error that says why this database cannot be used, and what to do.

        Args:
            reason: message of the driver's error.
            state: its SQLSTATE, if there is one.
        """
        return driver_errors.unavailable(self.where, reason, state)


def _connection_of(session: object) -> sa.Connection:
    # Imported here: the ORM takes a fifth of this module's import time, and a caller that has a session has loaded it.
    from sqlalchemy.orm import Session, scoped_session

    if not isinstance(session, Session | scoped_session):
        raise InvalidInput(
            f"connection is a {type(session).__name__}; give a psycopg.Connection, a SQLAlchemy Connection on psycopg, or an"
            " ORM Session"
        )
    return session.connection()
