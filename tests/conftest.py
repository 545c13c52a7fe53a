"""One embedded PostgreSQL for the whole run, and for each test a schema of its own in it."""

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from dagster_sqlqueue import Backoff, QueueSpec, SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.core.support import Work

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's URL, as psycopg and the library take it."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("server") / "postgres") as server:
        plain = server.url.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(plain, autocommit=True) as connection:
            # The files die with the run: waiting for the disk would only slow it. What a crash of the server leaves
            # behind is tested on a server of its own, with its own defaults.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield plain


@pytest.fixture
def schema() -> str:
    """A schema name that nothing used before."""
    return f"t_{next(_numbers)}"


@pytest.fixture
def spec() -> QueueSpec[Work]:
    """A queue with few buckets, and retries that are due at once."""
    return QueueSpec("work", Work, bucket_count=4, lease_seconds=30, max_attempts=3, backoff=Backoff(0, jitter=0))


@pytest.fixture
def queue(url: str, schema: str, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    """The queues of a fresh schema, with the queue of `spec` made."""
    with SqlQueue(url, schema=schema) as queue:
        queue.init()
        queue.create_queue(spec)
        yield queue
