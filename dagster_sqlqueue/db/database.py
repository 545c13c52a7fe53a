"""Connections, transactions and retries: the one place that talks to a driver.

A statement runs on a connection of the pool in autocommit (one round trip), in a transaction of ours, or inside the
caller's own transaction. Every connection of the pool is READ COMMITTED, in UTC, and carries an application name. How
statements are planned is a setting of its session, or behind a pooler of each transaction (see `session_settings`).
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

from dagster_sqlqueue.db import driver_errors, permissions, session_settings, statements
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
    """Stands for an argument that was not given, where None is refused: it may come from a look-up that found nothing."""

    UNNAMED = enum.auto()


_IDLE_TIMEOUT = b"SET LOCAL idle_in_transaction_session_timeout = '5s'"
"""A process that is stopped, or cut off, between two statements of a verb would keep the verb's locks, and everybody else
from a limited queue, until the network gives its connection up: hours."""


def default_schema() -> str:
    """The schema that is meant where none is named: the environment variable `SQLQUEUE_SCHEMA`, else `sqlqueue`."""
    return os.environ.get(SCHEMA_VARIABLE) or statements.DEFAULT_SCHEMA


class Database:
    """A pool of connections to one schema of one database.

    Their statements are committed one by one, by the clock of UTC, and are planned once, by indexes.

    Args:
        url: see `parse_url`.
        schema: where the queue's tables are; not given: `default_schema()`.
        pool_size: the most connections kept and opened at a time.
        application_name: what `pg_stat_activity` shows.
        connect_timeout: seconds to wait for the server, or for a connection of the pool to become free.
        statement_timeout: seconds; None for the server's own.
        pooler: what stands between here and the server, see `Pooler`; None: as the URL says (`?pooler=transaction`), or else
            as it is found when a connection is made.

    Raises:
        InvalidInput: a setting is not usable. Nothing is connected before the first statement.

    Attributes:
        schema: where the queue's tables are.
        pooler: what was said; None: nothing was.
        shared: whether sessions are lent for one transaction at a time, as was said, or found.
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
            # A pooler would leave it in the session, for an application that has no name of its own.
            application_name=None if self.shared else application_name[:63],
            on_connect=self._prepare_connection,
        )

    def __repr__(self) -> str:
        return f"Database({self.where!r}, schema={self.schema!r})"

    @property
    def where(self) -> str:
        """Host, port and database: all of the URL that may be shown."""
        host = self._url.host or self._url.query.get("host") or "the local socket"
        port = f":{self._url.port}" if self._url.port else ""
        return f"{host}{port}/{self._url.database or ''}"

    @property
    def url(self) -> str:
        """The URL with its password, and with what was said about a pooler: for a process that is to connect as this one."""
        said = {} if self.pooler is None else {"pooler": self.pooler.value}
        return self._url.update_query_dict(said).render_as_string(hide_password=False)

    def close(self) -> None:
        """Close the pool's connections."""
        self.engine.dispose()

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement in autocommit; a serialization failure or deadlock is tried again.

        Raises:
            DatabaseUnavailable, SchemaMissing, AccessRefused: see the classes.
            psycopg.Error: any other answer of the database.
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
        """Run statements one after the other in one transaction, sent in one go; gives the rows of each.

        Each sees what was committed until it began, so a first one may wait for a lock that the next one needs. A
        serialization failure or deadlock begins all of it again.

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
        """Run `work` in one transaction of ours; a serialization failure or deadlock begins it again from the start.

        Args:
            work: what to do in it.
            idling: whether it may do other things between its statements; if not, the server ends the transaction when
                none comes for five seconds.

        Raises:
            DatabaseUnavailable, SchemaMissing: see the classes. Whatever `work` raises, after a rollback.
        """
        result: T = driver_errors.retried(self._transact_once, work, idling)
        return result

    def _transact_once(self, work: "Callable[[Transaction], T]", idling: bool) -> T:
        with self._begun(idling) as connection:
            return work(Transaction(connection, self))

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[Transaction]":
        """A transaction of ours: committed at the end of the block, rolled back by an exception; by `psycopg.Rollback`
        without another word, as the driver has it.

        Raises:
            DatabaseUnavailable, SchemaMissing: see the classes.
        """
        with contextlib.suppress(psycopg.Rollback), self._begun(idling=True) as connection:
            yield Transaction(connection, self)

    @contextlib.contextmanager
    def _begun(self, idling: bool) -> "Iterator[psycopg.Connection[Any]]":
        """A connection of the pool in a transaction, which ends with the block."""
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
                # An interrupt may come in the middle of a statement: closing is the one rollback that works then.
                connection.close()
                raise

    def first_steps(self) -> list[tuple[str, Parameters]]:
        """What is to be sent in front of the first statement of a transaction."""
        if not self.shared:
            return []
        return [(statements.load(session_settings.STATEMENT, self.schema), self._settings.parameters)]

    def whole(self, texts: Sequence[tuple[str, Parameters]]) -> list[tuple[str, Parameters]]:
        """Statements that are sent in one go, as one transaction that says itself where it begins and ends."""
        return [(self._settings.begin.decode(), {}), *self.first_steps(), *texts, ("COMMIT", {})]

    @contextlib.contextmanager
    def connection(self) -> "Iterator[psycopg.Connection[Any]]":
        """A driver connection of the pool, in autocommit. One that is broken, or in a transaction, does not go back."""
        with self._translated():
            pooled = self.engine.raw_connection()
            driver = pooled.driver_connection
            assert isinstance(driver, psycopg.Connection)
            try:
                yield driver
            finally:
                if driver.pgconn.transaction_status != TransactionStatus.IDLE:
                    pooled.invalidate()
                pooled.close()

    def apart(self) -> "psycopg.Connection[Any]":
        """A connection in autocommit, set up like those of the pool and not one of them. Whoever asked for it closes it.

        Raises:
            DatabaseUnavailable: there is none.
        """
        with self._translated():
            pooled = self.engine.raw_connection()
            driver = pooled.driver_connection
            assert isinstance(driver, psycopg.Connection)
            pooled.detach()
            return driver

    def begin_apart(self) -> Transaction:
        """A transaction of ours on a connection of its own. Whoever asked for it ends it, and closes the connection.

        Raises:
            DatabaseUnavailable: there is none.
        """
        connection = self.apart()
        transaction = Transaction(connection, self)
        self.begin_again(transaction)
        return transaction

    def begin_again(self, transaction: Transaction) -> None:
        """Begin another transaction on the connection of one that has ended."""
        transaction.connection.execute(self._settings.begin)

    def beside(self, *, pool_size: int = 1) -> "Database":
        """The same database with a pool of its own. Whoever asked for it closes it.

        Args:
            pool_size: the most connections kept and opened at a time.
        """
        return Database(self.url, pool_size=pool_size, **self._given)

    def joined(self, connection: CallerConnection | None) -> "Database | Transaction | SqlAlchemyExecutor":
        """Where to run a statement: the caller's transaction if he gives one, else this pool.

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
        """The caller's transaction on a connection that is awaited.

        Raises:
            InvalidInput: the connection is none that can be awaited; the message names its type.
        """
        return AsyncTransaction(connection, self)

    def within(self, connection: CallerConnection | None) -> "Transaction | SqlAlchemyExecutor | None":
        """The caller's transaction, for what would else have one of ours; None if he gives none.

        Raises:
            InvalidInput: the object is not a connection that can be joined.
        """
        check_connection(connection)
        joined = self.joined(connection)
        return None if isinstance(joined, Database) else joined

    def _prepare_connection(self, driver: "psycopg.Connection[Any]", _record: object) -> None:
        if self.pooler is None and session_settings.is_shared(driver):
            self.shared = True
        if self.shared:
            # Its session is somebody else's in the next transaction: nothing is prepared or set in it.
            driver.prepare_threshold = None
            driver.adapters.register_loader("timestamptz", session_settings.LoadedInUtc)
        else:
            driver.execute(self._settings.of_session)
        if not driver.autocommit:
            driver.commit()

    def _user(self, connection: object) -> str:
        """Who was refused. A connection that an error has closed does not say it any more."""
        return user_of(connection) or self._url.username or ""

    @contextlib.contextmanager
    def naming_schema(self, *names: str, connection: object = None) -> Iterator[None]:
        """Raise what `explained` says in place of the driver's errors of the block.

        Args:
            names: of the SQL files that the block runs.
            connection: the driver's connection that they run on.

        Raises:
            SchemaMissing, AccessRefused: see the classes.
        """
        try:
            yield
        except (psycopg.ProgrammingError, sa.exc.ProgrammingError) as error:
            raise self.explained(error, *names, connection=connection) from None

    def explained(self, error: Exception, *names: str, connection: object = None) -> Exception:
        """Return the error to raise in place of the driver's: which command makes the tables that were not found, or which
        role may run these statements. The driver's own, where there is nothing to add.

        Args:
            error: the driver's, or SQLAlchemy's around it.
            names: of the SQL files that were run; none: they may be any, and a refusal stays as the driver words it.
            connection: the driver's connection that they ran on.
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
        """The error that says why this database cannot be used, and what to do.

        Args:
            reason: the driver's words.
            state: the SQLSTATE, if there is one.
        """
        return driver_errors.unavailable(self.where, reason, state)


def _connection_of(session: object) -> sa.Connection:
    # The ORM takes a fifth of the time in which this module is imported, and whoever has a session of it has loaded it.
    from sqlalchemy.orm import Session, scoped_session

    if not isinstance(session, Session | scoped_session):
        raise InvalidInput(
            f"connection is a {type(session).__name__}; give a psycopg.Connection, a SQLAlchemy Connection on psycopg, or an"
            " ORM Session"
        )
    return session.connection()
