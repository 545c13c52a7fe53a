"""Helpers for users' tests: a queue for a block, and a drain run in the test's own process."""

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import dagster as dg
import sqlalchemy as sa

from dagster_sqlqueue.db.schema_name import quote_schema
from dagster_sqlqueue.embedded import EmbeddedPostgres
from dagster_sqlqueue.errors import EmbeddedServerError, InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration.drain import DrainJob
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource
from dagster_sqlqueue.orchestration.summary import counts_of
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema.functions import pinned_schema

TEST_URL_VARIABLE = "SQLQUEUE_TEST_URL"
"""The environment variable with the URL of the database to test on, instead of the embedded one."""

_lock = threading.Lock()
_started: list[str] = []


class QueueForTest(NamedTuple):
    """Queues to test with.

    Attributes:
        queue: the queues, for the test itself: to enqueue, and to check the outcome.
        resource: the same for Dagster: `resources={"sqlqueue": resource}`.
    """

    queue: SqlQueue
    resource: SqlQueueResource


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain run.

    Attributes:
        run: Dagster's result, with its events.
        counts: how many jobs were `claimed`, `succeeded`, `retried`, `snoozed`, `failed`, `held`, `cancelled`, …; empty
            if the run failed.
    """

    run: dg.ExecuteInProcessResult
    counts: Mapping[str, Any]

    @property
    def success(self) -> bool:
        """Whether the run succeeded; jobs of it may have failed."""
        return self.run.success


@contextlib.contextmanager
def queue_for_test(*specs: QueueSpec[Any], url: str | None = None) -> Iterator[QueueForTest]:
    """Create queues in a schema of their own for the block, and drop it at the end.

    The database is the embedded PostgreSQL, started by the first use in a process and stopped at its end; or the one that
    the environment variable `SQLQUEUE_TEST_URL` names, where its user may create schemas.

    Args:
        specs: the queues to create.
        url: of the database, instead of either.

    Raises:
        EmbeddedServerError: the embedded server is needed, and is not installed or does not start.
        DatabaseUnavailable, AccessRefused: the named database cannot be used.

    Example:
        ```python
        @pytest.fixture
        def made():
            with queue_for_test(emails) as made:
                yield made
        ```
    """
    resource = SqlQueueResource(
        url=url or os.environ.get(TEST_URL_VARIABLE) or _embedded_url(), schema_name=f"test_{uuid4().hex[:12]}"
    )
    with resource.open("dagster-sqlqueue/test") as queue:
        try:
            queue.migrate()
            for spec in specs:
                queue.create_queue(spec)
            yield QueueForTest(queue, resource)
        finally:
            with queue.database.connection() as connection:
                for schema in (queue.database.schema, pinned_schema(queue.database.schema)):
                    connection.execute(f"DROP SCHEMA IF EXISTS {quote_schema(schema)} CASCADE".encode())


def drain_in_process(
    consumer: DrainJob[Any] | dg.JobDefinition,
    queue: QueueForTest | SqlQueue | SqlQueueResource,
    *,
    config: Mapping[str, Any] | None = None,
    instance: dg.DagsterInstance | None = None,
    resources: Mapping[str, Any] | None = None,
    resource_key: str | None = None,
    raise_on_error: bool = True,
) -> Drained:
    """Run the drain job of a queue in this process, until nothing of the queue is due.

    The run does not wait for later retries: give the queue of the test `backoff=Backoff(0, jitter=0)` for all attempts.

    Args:
        consumer: what `queue_consumer` made, or its job.
        queue: where the queue is.
        config: further fields of the `DrainConfig`.
        instance: Dagster's, for the run; None: an ephemeral one.
        resources: further resources of the job.
        resource_key: of the queue's resource; None: the consumer's, and `sqlqueue` for a job.
        raise_on_error: whether to raise an error of the run, not of a job's handler; else see `Drained.success`.

    Raises:
        InvalidInput: the job has more ops than the one that drains.
    """
    job = consumer if isinstance(consumer, dg.JobDefinition) else consumer.job
    key = resource_key or (consumer.resource_key if isinstance(consumer, DrainJob) else RESOURCE_KEY)
    names = sorted(node.name for node in job.nodes)
    if len(names) != 1:
        raise InvalidInput(
            f"the job {job.name!r} has the ops {', '.join(names)}; drain_in_process runs the job of a queue_consumer, which"
            " has one. Run others with job.execute_in_process"
        )
    run = job.execute_in_process(
        run_config={"ops": {names[0]: {"config": {"linger_seconds": 0.0, **(config or {})}}}},
        resources={**(resources or {}), key: _resource(queue)},
        instance=instance,
        raise_on_error=raise_on_error,
    )
    return Drained(run, counts_of(run, names[0]))


def _resource(queue: QueueForTest | SqlQueue | SqlQueueResource) -> SqlQueueResource:
    match queue:
        case QueueForTest():
            return queue.resource
        case SqlQueueResource():
            return queue
        case SqlQueue():
            url = queue.database.url
            return SqlQueueResource(url=url, schema_name=queue.database.schema)
    raise InvalidInput(
        f"the queue is a {type(queue).__name__}; give the result of queue_for_test, or its queue or resource"
    )


def _embedded_url() -> str:
    """The URL of this process's embedded server."""
    with _lock:
        if not _started:
            directory = Path(tempfile.mkdtemp(prefix="sqlqueue-test-"))
            server = EmbeddedPostgres(directory / "postgres")
            try:
                url = sa.make_url(server.start())
            except EmbeddedServerError as error:
                shutil.rmtree(directory, ignore_errors=True)
                raise EmbeddedServerError(str(error).replace("SQLQUEUE_URL", TEST_URL_VARIABLE)) from None
            atexit.register(_remove, server, directory)
            # The data ends with the process: no write needs to wait for the disk.
            url = url.update_query_dict({"options": "-c synchronous_commit=off"})
            _started.append(url.render_as_string(hide_password=False))
        return _started[0]


def _remove(server: EmbeddedPostgres, directory: Path) -> None:
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)
