"""Transactions on the connections of a pool, and inside those of callers."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db.django_connection import driver_of, is_django
from dagster_sqlqueue.db.executors import AsyncTransaction, CallerConnection, Transaction, check_connection
from dagster_sqlqueue.db.pool import Pool, retried
from dagster_sqlqueue.db.sqlalchemy_executor import SqlAlchemyExecutor, connection_of

T = TypeVar("T")

_IDLE_TIMEOUT = b"SET LOCAL idle_in_transaction_session_timeout = '5s'"
"""Server-side timeout for transactions without pauses between their statements. Without it, a process that is stopped or
disconnected between two statements would hold its locks, and block a limited queue for all others, until TCP gives up its
connection, which takes hours."""


class Database(Pool):
    """One schema of one database: its pool of connections, with transactions of the library and of callers.

    The arguments and attributes are those of `Pool`.
    """

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
        result: T = retried(self._transact_once, work, idling)
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
            begin = [self._settings.begin]
            if self.shared:
                begin.append(self._settings.of_transaction(connection.info.server_version))
            if not idling:
                begin.append(_IDLE_TIMEOUT)
            connection.execute(b"; ".join(begin))
            try:
                yield connection
                connection.commit()
            except Exception:
                if not connection.closed:
                    try:
                        connection.rollback()
                    except psycopg.Error:
                        # A block of the driver's that somebody left open forbids it.
                        connection.close()
                raise
            except BaseException:
                # An interrupt may arrive in the middle of a statement: then only closing the connection rolls back.
                connection.close()
                raise

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
            case _ if is_django(connection):
                driver = driver_of(connection)
                # The caller's check has seen Django's object, not the connection in it.
                check_connection(driver)
                return Transaction(driver, self)
            case _:
                return SqlAlchemyExecutor(connection_of(connection), self)

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
