"""Queues to test with, in a schema of their own, on a server that starts with the first use."""

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db.schema_name import quote_schema
from dagster_sqlqueue.embedded import EmbeddedPostgres
from dagster_sqlqueue.errors import DatabaseUnavailable, EmbeddedServerError, SchemaBusy
from dagster_sqlqueue.model.queue import QueueSpec, check_spec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema.functions import pinned_schema

TEST_URL_VARIABLE = "SQLQUEUE_TEST_URL"
"""The environment variable with the URL of the database to test on, instead of the embedded one."""

_PATIENCE_SECONDS = 30

_lock = threading.Lock()
_started: list[str] = []


@contextlib.contextmanager
def queue_for_test(*specs: QueueSpec[Any], url: str | None = None) -> Iterator[SqlQueue]:
    """Create queues in a schema of their own for the block, and drop it at the end.

    The database is the embedded PostgreSQL, started by the first use in a process and stopped at its end; or the one that
    the environment variable `SQLQUEUE_TEST_URL` names, where its user may create schemas.

    Args:
        specs: the queues to create.
        url: of the database, instead of either.

    Raises:
        InvalidInput: one of these is no queue.
        SchemaBusy: at the end, a transaction that has used the queues is open still.
        EmbeddedServerError: the embedded server is needed, and is not installed or does not start.
        DatabaseUnavailable, AccessRefused: the named database cannot be used.

    Example:
        ```python
        @pytest.fixture
        def queue():
            with queue_for_test(emails) as queue:
                yield queue
        ```
    """
    for spec in specs:
        check_spec(spec)
    url = url or os.environ.get(TEST_URL_VARIABLE) or _embedded_url()
    schema = f"test_{uuid4().hex[:12]}"
    with SqlQueue(url, schema=schema, application_name="dagster-sqlqueue/test") as queue:
        try:
            queue.migrate()
            for spec in specs:
                queue.create_queue(spec)
            yield queue
        except BaseException as error:
            try:
                _drop(queue)
            except (SchemaBusy, DatabaseUnavailable) as undropped:
                error.add_note(str(undropped))
            raise
        _drop(queue)


def _drop(queue: SqlQueue) -> None:
    schema = queue.database.schema
    try:
        with queue.database.transaction() as transaction:
            transaction.connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE_SECONDS}s'".encode())
            for name in (schema, pinned_schema(schema)):
                transaction.connection.execute(f"DROP SCHEMA IF EXISTS {quote_schema(name)} CASCADE".encode())
    except psycopg.errors.LockNotAvailable:
        raise SchemaBusy(
            f"the schema {schema} of the test is still there: a transaction that has used its queues is open. End it, or"
            " close its connection, before the block of queue_for_test ends; of two fixtures, the transaction's has to ask"
            " for the queue's"
        ) from None


def _embedded_url() -> str:
    """Return the URL of this process's embedded server."""
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
