"""The queue as a Dagster resource."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_sqlqueue.database import Database
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue


class SqlQueueResource(dg.ConfigurableResource[Any]):
    """The queues of one schema of one database, opened and closed for each run and each sensor tick.

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
        default=None, gt=0, description="The longest a single statement may take; unset: the server's own limit."
    )

    _queue: SqlQueue | None = PrivateAttr(default=None)

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["SqlQueueResource"]:
        """Open the pool (nothing is connected before the first statement) and close it at the end."""
        run = f"/{context.run.run_id}" if context.run else ""
        with self.open(application_name=f"dagster-sqlqueue{run}") as queue:
            self._queue = queue
            try:
                yield self
            finally:
                self._queue = None

    @contextmanager
    def open(self, application_name: str = "dagster-sqlqueue") -> Iterator[SqlQueue]:
        """The queue outside of a run: for scripts and tests. A resource that holds an `EnvVar` cannot be used so."""
        database = Database(
            self.url,
            schema=self.schema_name,
            pool_size=self.pool_size,
            application_name=application_name,
            connect_timeout=self.connect_timeout_seconds,
            statement_timeout=self.statement_timeout_seconds,
        )
        with SqlQueue(database) as queue:
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
