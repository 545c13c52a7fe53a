"""The queue as a Dagster resource."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_sqlqueue.db.database import Database, parse_url
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue

ALLOWED_HOSTS_VARIABLE = "SQLQUEUE_ALLOWED_HOSTS"
"""Hosts, apart by commas and each with its port if one likes, to which a launch may point the resource beside its own."""

_TICK_CONNECT_SECONDS = 3
_MASKED = "********"
"""What the launchpad fills in for a secret, and would send back as the URL."""


class SqlQueueResource(dg.ConfigurableResource[Any]):
    """The queues of one schema of one database, opened and closed for each run and each sensor tick.

    Whoever may open Dagster's launchpad may give a run another configuration. So a run refuses a URL that is not the one in
    the code, unless the environment variable `SQLQUEUE_ALLOWED_HOSTS` of the deployment names its host.

    Example:
        `SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))`
    """

    url: str = Field(
        description="The database: postgresql://user:password@host:5432/database. Pass dg.EnvVar('SQLQUEUE_URL'): the UI"
        " then shows the variable's name only.",
        json_schema_extra={"dagster__is_secret": True},
    )
    schema_name: str = Field(default="sqlqueue", description="The schema that holds the queue's tables.")
    pool_size: int = Field(default=5, ge=1, le=100, description="The most connections opened at a time.")
    connect_timeout_seconds: int = Field(default=5, ge=1, description="How long to wait for a connection.")
    statement_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        description="The longest a single statement of a run may take; unset: the server's own limit.",
    )
    tick_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        description="The longest a single statement of a sensor's or schedule's tick may take: a tick that waits keeps"
        " Dagster from the other sensors.",
    )

    _queue: SqlQueue | None = PrivateAttr(default=None)

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["SqlQueueResource"]:
        """Open the pool (nothing is connected before the first statement) and close it at the end."""
        if context.run:
            opened = self._open(
                f"dagster-sqlqueue/{context.run.run_id}", self.connect_timeout_seconds, self.statement_timeout_seconds
            )
        else:
            connect = min(self.connect_timeout_seconds, _TICK_CONNECT_SECONDS)
            opened = self._open("dagster-sqlqueue/tick", connect, self.tick_timeout_seconds)
        with opened as queue:
            self._queue = queue
            try:
                yield self
            finally:
                self._queue = None

    @contextmanager
    def open(self, application_name: str = "dagster-sqlqueue") -> Iterator[SqlQueue]:
        """The queue outside of a run: for scripts and tests. A resource that holds an `EnvVar` cannot be used so."""
        with self._open(application_name, self.connect_timeout_seconds, self.statement_timeout_seconds) as queue:
            yield queue

    @property
    def queue(self) -> SqlQueue:
        """The queue's verbs, inside a run, a tick, or a context of `dagster.build_op_context`.

        Raises:
            InvalidInput: the resource is not open.
        """
        if self._queue is None:
            raise InvalidInput(
                "the resource is not open: use it inside a run or tick, or with: with resource.open() as queue"
            )
        return self._queue

    def _open(self, application_name: str, connect_timeout: int, statement_timeout: float | None) -> SqlQueue:
        database = Database(
            self.url,
            schema=self.schema_name,
            pool_size=self.pool_size,
            application_name=application_name,
            connect_timeout=connect_timeout,
            statement_timeout=statement_timeout,
        )
        return SqlQueue(database)

    def _with_updated_values(self, values: Mapping[str, Any] | None) -> "SqlQueueResource":
        """What Dagster makes of the resource in the code and the configuration of a launch."""
        wanted = (values or {}).get("url")
        if wanted == _MASKED:
            wanted = _plain(self.url)
            values = {name: value for name, value in (values or {}).items() if name != "url"}
            values |= {} if wanted is None else {"url": wanted}
        made: SqlQueueResource = super()._with_updated_values(values)  # type: ignore[assignment]
        if isinstance(wanted, str) and wanted != _plain(self.url):
            _check_allowed(wanted)
        return made


def _plain(url: str) -> str | None:
    """The URL itself, of the variable that is to hold it; None: it is not set."""
    return os.environ.get(url.env_var_name) if isinstance(url, dg.EnvVar) else url


def _check_allowed(url: str) -> None:
    parsed = parse_url(url)
    host = parsed.host or parsed.query.get("host") or "localhost"
    allowed = {name.strip() for name in os.environ.get(ALLOWED_HOSTS_VARIABLE, "").split(",")}
    if not {host, f"{host}:{parsed.port or 5432}"} & allowed:
        raise InvalidInput(
            f"this launch points the resource at the host {host!r}, by another URL than the one in the code; leave the"
            f" URL out of the run's configuration, or have the deployment allow the host: {ALLOWED_HOSTS_VARIABLE}={host}"
        )
