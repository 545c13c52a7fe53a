"""The pool of connections to one database, and the statements that run on one of them in autocommit.

Every connection is READ COMMITTED, in UTC and UTF-8, and has an application name. Planner settings are set per session, or
per transaction behind a pooler (see `session_settings`).
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
import tenacity
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import driver_errors, forks, session_settings, statements, uuid_arrays
from dagster_sqlqueue.db.answers import AnsweredConnection
from dagster_sqlqueue.db.error_translation import ErrorTranslation
from dagster_sqlqueue.db.execution import Parameters, Row, Step, execute, execute_together
from dagster_sqlqueue.db.schema_name import Unnamed, default_schema, quote_schema
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.db.urls import driver_options, parse_url, pooler_of
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_number, is_whole

T = TypeVar("T")

_IDLE_SINCE = "idle_since"
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_ENCODING = {"client_encoding": "UTF8"}
"""Goes before those of URL, environment, role and database: rows are packed in it for COPY, and any text can be sent."""
_TRUSTED_SECONDS = 0.5
"""Idle seconds after which a connection is tested before it is used: one round trip, which busy connections are spared."""

_LONGEST_STATEMENT = (2**31 - 1) // 1000
"""Seconds: the server counts milliseconds."""

_OF_DRIVER = (psycopg.Error, sa.exc.SQLAlchemyError)

_RETRYING = tenacity.Retrying(
    retry=tenacity.retry_if_exception(driver_errors.lost_a_race),
    wait=tenacity.wait_random_exponential(multiplier=0.005, max=1),
    stop=tenacity.stop_after_attempt(8),
    reraise=True,
)


def retried(work: Callable[..., T], *arguments: object) -> T:
    """Call `work`, again after a serialization failure or a deadlock, up to nine times in total.

    Returns:
        The result of `work`.

    Raises:
        Exception: any other exception of `work`, or that of its last call.
    """
    # The first attempt without tenacity: it is nearly always the only one, and tenacity costs as much as a short statement.
    try:
        return work(*arguments)
    except psycopg.Error as error:
        if not driver_errors.lost_a_race(error):
            raise
    return _RETRYING(work, *arguments)


def _check(pool_size: object, application_name: object, connect_timeout: object, statement_timeout: object) -> None:
    if not is_whole(pool_size, 1):
        raise InvalidInput(f"pool_size is {pool_size!r}; it must be a whole number of at least 1")
    if not isinstance(application_name, str):
        raise InvalidInput(f"application_name is {application_name!r:.100}; give a text, for pg_stat_activity")
    if not is_whole(connect_timeout, 1):
        raise InvalidInput(f"connect_timeout is {connect_timeout!r}; it must be a whole number of seconds, at least 1")
    if not (statement_timeout is None or is_number(statement_timeout, 0.001, _LONGEST_STATEMENT)):
        raise InvalidInput(
            f"statement_timeout is {statement_timeout!r}; it must be seconds, 0.001 to {_LONGEST_STATEMENT:,}, or None: no"
            " limit"
        )


class Pool:
    """Pool of connections to one schema of one database.

    The connections are in autocommit, in UTC and in UTF-8. Their statements use generic plans, by index. The first
    connection is opened for the first statement. A forked process opens its own, and finds those of its parent lost.

    Args:
        url: see `parse_url`.
        schema: schema of the queue's tables; default: `default_schema()`.
        pool_size: maximum number of open connections.
        application_name: name shown in `pg_stat_activity`.
        connect_timeout: whole seconds to wait for the server, or for a free connection of the pool.
        statement_timeout: seconds; None for no limit, whatever is set for the role, unless the URL's `options` set it.
        answer_seconds: longest time for which a connection may wait in silence, by the client's clock; None for no limit.
        pooler: kind of pooler between client and server, see `Pooler`; None: as in the URL (`?pooler=transaction`), or else
            detected when a connection is opened.

    Raises:
        InvalidInput: a setting is not usable.

    Attributes:
        schema: schema of the queue's tables.
        pooler: the pooler given by argument or URL; None if none was given.
        shared: whether a pooler lends sessions for one transaction at a time, as given or detected.
        connections: the pool.
        errors: translates the driver's errors.
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
        answer_seconds: float | None = None,
        pooler: Pooler | str | None = None,
    ) -> None:
        if isinstance(schema, Unnamed):
            schema = default_schema()
        quote_schema(schema)
        _check(pool_size, application_name, connect_timeout, statement_timeout)
        self.schema = schema
        self._url, in_url = pooler_of(parse_url(url))
        self.pooler = in_url if pooler is None else session_settings.pooler(pooler)
        self.shared = self.pooler is Pooler.TRANSACTION
        self._answer_seconds = answer_seconds
        self._given: dict[str, Any] = {
            "schema": schema,
            "application_name": application_name,
            "connect_timeout": connect_timeout,
            "statement_timeout": statement_timeout,
            "answer_seconds": answer_seconds,
        }
        self.errors = ErrorTranslation(self.where, schema, self._url.username or "", pool_size)
        self._options = {**driver_options(self._url), "connect_timeout": connect_timeout, **_KEEPALIVES, **_ENCODING}
        self._settings = session_settings.Settings(
            application_name[:63],
            None if statement_timeout is None else round(statement_timeout * 1000),
            self._options.get("options", os.environ.get("PGOPTIONS", "")),
        )
        if not self.shared:
            # A pooler would leave the name in the session, where it would apply to clients that set none.
            self._options["application_name"] = application_name[:63]
        connect: Any = self._connect
        self.connections = sa.QueuePool(
            connect,
            pool_size=pool_size,
            max_overflow=0,
            # The session used last has its statements and caches at hand; in turns, each of them would be kept warm.
            use_lifo=True,
            timeout=connect_timeout,
            reset_on_return=None,
        )
        forks.begin_anew_in_child(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r}, schema={self.schema!r})"

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
        """Close the idle connections. It can be used again; those in use do not come back to it."""
        self.connections.dispose()
        self.connections = self.connections.recreate()

    def begin_anew(self) -> None:
        """Leave the connections to the parent, in a forked process: the next statement opens one."""
        self.connections = self.connections.recreate()

    def run(self, name: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement in autocommit; retry it after a serialization failure or deadlock.

        Returns:
            Its rows.

        Raises:
            DatabaseUnavailable, SchemaMissing, AccessRefused: see the classes.
            psycopg.Error: any other error of the database.
        """
        return retried(self._run_once, name, statements.load(name, self.schema), parameters)

    def _run_once(self, name: str, sql: str, parameters: Parameters) -> Sequence[Row]:
        with self.connection() as connection:
            try:
                if self.shared:
                    return execute_together(connection, self.whole([(sql, parameters)]))[-2]
                return execute(connection, sql, parameters)
            except psycopg.ProgrammingError as error:
                raise self.errors.explained(error, name, connection=connection) from None

    def run_together(self, *steps: Step) -> list[Sequence[Row]]:
        """Run statements in order in one transaction, pipelined.

        Each statement sees what was committed before it began, so the first one may wait for a lock that the next one needs.
        After a serialization failure or deadlock the whole transaction is retried.

        Returns:
            The rows of each statement.

        Raises:
            DatabaseUnavailable, SchemaMissing, psycopg.Error: as for `run`.
        """
        return retried(self._run_together_once, steps)

    def _run_together_once(self, steps: Sequence[Step]) -> list[Sequence[Row]]:
        texts = [(statements.load(name, self.schema), given) for name, given in steps]
        with self.connection() as connection:
            try:
                if self.shared:
                    return execute_together(connection, self.whole(texts))[-1 - len(texts) : -1]
                return execute_together(connection, texts)
            except psycopg.ProgrammingError as error:
                raise self.errors.explained(error, *(name for name, _ in steps), connection=connection) from None

    def first_steps(self) -> list[tuple[str, Parameters]]:
        """Return the statements to send before the first one of a transaction: settings, or none."""
        if not self.shared:
            return []
        return [(statements.load(session_settings.STATEMENT, self.schema), self._settings.parameters)]

    def lending(self, *, again: bool) -> bytes:
        """Return the statements to send before a connection is lent to other code.

        Args:
            again: whether it was lent in this transaction before; what was set then is undone.
        """
        return self._settings.lend_again(shared=self.shared) if again else self._settings.lend

    def taking_back(self) -> bytes:
        """Return the statements to send after other code: they undo what it has set."""
        return self._settings.take_back(shared=self.shared)

    def whole(self, texts: Sequence[tuple[str, Parameters]]) -> list[tuple[str, Parameters]]:
        """Return the statements of one pipelined transaction: BEGIN, `first_steps`, `texts`, COMMIT."""
        return [(self._settings.begin.decode(), {}), *self.first_steps(), *texts, ("COMMIT", {})]

    def connection(self) -> "_Lent":
        """Provide a driver connection of the pool for a block, in autocommit.

        A connection that is broken or still in a transaction is discarded instead of returned to the pool.

        Raises:
            DatabaseUnavailable: there is no connection, or it was lost in the block.
            SchemaMissing: the block did not find the queue's tables.
        """
        return _Lent(self)

    def apart(self) -> "psycopg.Connection[Any]":
        """Open a connection in autocommit, set up like those of the pool but not one of them. The caller closes it.

        Raises:
            DatabaseUnavailable: no connection could be opened.
        """
        pooled, driver = self._checked_out()
        pooled.detach()
        return driver

    def _checked_out(self) -> "tuple[sa.PoolProxiedConnection, psycopg.Connection[Any]]":
        """Take a connection of the pool; the caller returns it.

        Raises:
            DatabaseUnavailable: there is none.
        """
        try:
            return self._pooled()
        except _OF_DRIVER as error:
            if (meant := self.errors.of_connection(error)) is error:
                raise
            raise meant from None

    def _pooled(self) -> "tuple[sa.PoolProxiedConnection, psycopg.Connection[Any]]":
        """Take a connection of the pool. One that was idle is tested first, and replaced if it was lost."""
        while True:
            pooled = self.connections.connect()
            driver, now = pooled.driver_connection, time.monotonic()
            assert isinstance(driver, psycopg.Connection)
            if now - pooled.info.get(_IDLE_SINCE, now) < _TRUSTED_SECONDS:
                return pooled, driver
            try:
                driver.execute("SELECT 1")
            except psycopg.Error:
                pooled.invalidate()
                pooled.close()
            else:
                return pooled, driver

    def _connect(self) -> "psycopg.Connection[Any]":
        driver = self._driver(**self._options, autocommit=True)
        forks.cut_off_in_child(driver)
        try:
            self._prepare(driver)
        except BaseException:
            driver.close()
            raise
        return driver

    def _driver(self, **options: Any) -> "psycopg.Connection[Any]":
        if self._answer_seconds is None:
            return psycopg.connect(**options)
        driver = AnsweredConnection.connect(**options)
        driver.answer_seconds = self._answer_seconds
        return driver

    def _prepare(self, driver: "psycopg.Connection[Any]") -> None:
        if self.pooler is None and session_settings.is_shared(driver):
            self.shared = True
        if self.shared:
            # Another client uses the session in the next transaction: nothing is prepared or set in it.
            driver.prepare_threshold = None
            driver.adapters.register_loader("timestamptz", session_settings.LoadedInUtc)
        else:
            driver.execute(self._settings.of_session)
        uuid_arrays.register(driver)


class _Lent:
    """A connection of a pool for a block.

    A generator of contextlib's would take 8 microseconds more, of the 170 that a process needs for an enqueue of one job.

    Args:
        pool: gets it back.
    """

    __slots__ = ("_driver", "_pool", "_pooled")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> "psycopg.Connection[Any]":
        self._pooled, self._driver = self._pool._checked_out()
        return self._driver

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        pooled, driver = self._pooled, self._driver
        # Handlers and callers may have set their own.
        driver.row_factory, driver.cursor_factory = tuple_row, psycopg.Cursor
        if driver.pgconn.transaction_status != TransactionStatus.IDLE:
            pooled.invalidate()
        else:
            pooled.info[_IDLE_SINCE] = time.monotonic()
        pooled.close()
        if isinstance(error, _OF_DRIVER) and (meant := self._pool.errors.of_connection(error)) is not error:
            raise meant from None
