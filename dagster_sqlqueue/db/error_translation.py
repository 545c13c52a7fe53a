"""The errors to raise for one database in place of the driver's: what is missing, who may run it, why it cannot be used."""

import contextlib
from collections.abc import Iterator

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db import driver_errors, permissions
from dagster_sqlqueue.errors import DatabaseUnavailable


class ErrorTranslation:
    """Translates the errors of the driver, and SQLAlchemy's that wrap them, for one database.

    Args:
        where: host, port and database, for messages.
        schema: schema of the queue's tables.
        user: user of the URL, for messages when the connection no longer knows its own.
        pool_size: maximum number of open connections.
    """

    def __init__(self, where: str, schema: str, user: str, pool_size: int) -> None:
        self._where = where
        self._schema = schema
        self._user = user
        self._pool_size = pool_size

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
        if missed := driver_errors.missing(original, self._schema, self._where):
            return missed
        if names and isinstance(original, psycopg.errors.InsufficientPrivilege):
            # An error may have closed the connection.
            return permissions.refusal(self._schema, names, user_of(connection) or self._user, str(original))
        return error

    def of_connection(self, error: Exception) -> Exception:
        """Return the error to raise in place of one that came while a connection was taken or used.

        Besides `explained`, it says that no connection is to be had, or that it was lost. All other errors are returned
        unchanged.
        """
        if isinstance(error, psycopg.ProgrammingError | sa.exc.ProgrammingError):
            return self.explained(error)
        if isinstance(error, sa.exc.TimeoutError):
            return DatabaseUnavailable(
                f"none of the {self._pool_size} connections to {self._where} became free in time; raise pool_size to the"
                " number of threads that use the queue, and by one for each consumer in transactional mode: its transaction"
                " has a connection while its handler uses the queue"
            )
        original = error.orig if isinstance(error, sa.exc.OperationalError) else error
        lost = psycopg.OperationalError | psycopg.errors.IdleInTransactionSessionTimeout
        if isinstance(original, lost) and driver_errors.is_unavailable(original):
            return self.unavailable(str(original), getattr(original, "sqlstate", None))
        return error

    def unavailable(self, reason: str, state: str | None = None) -> DatabaseUnavailable:
        """Return an error that says why this database cannot be used, and what to do.

        Args:
            reason: message of the driver's error.
            state: its SQLSTATE, if there is one.
        """
        return driver_errors.unavailable(self._where, reason, state)


def user_of(connection: object) -> str:
    """Return the user of a psycopg connection, for a message; an empty string if it is no longer known."""
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        with contextlib.suppress(psycopg.OperationalError):
            return str(connection.info.user)
    return ""
