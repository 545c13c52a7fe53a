"""One embedded PostgreSQL for the whole run, and for each test a schema of its own in it.

What must hold on every version runs on each server of `SERVERS`: the embedded one, and those that Debian's packages have
installed; or on a database of one's own alone, if SQLQUEUE_TEST_URL names it.
"""

import itertools
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from dagster_sqlqueue import Backoff, QueueSpec, SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.core.support import Work, installed_servers, own_server

_EMBEDDED = "embedded"
_GIVEN = "SQLQUEUE_TEST_URL"
_INSTALLED = {f"debian-{version}": programs for version, programs in installed_servers().items()}
SERVERS = [_GIVEN] if os.environ.get(_GIVEN) else [_EMBEDDED, *_INSTALLED]

_numbers = itertools.count(1)

# Whatever started the tests in the background may have had them ignore Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session", params=SERVERS)
def any_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of each server in turn."""
    if request.param == _EMBEDDED:
        yield request.getfixturevalue("url")
    elif request.param == _GIVEN:
        yield os.environ[_GIVEN].replace("postgresql+psycopg://", "postgresql://", 1)
    else:
        with own_server(programs=_INSTALLED[request.param], settings=["fsync=off"]) as server:
            yield server.url


@pytest.fixture
def schema() -> str:
    """A schema name that nothing used before."""
    return f"t_{os.environ.get('PYTEST_XDIST_WORKER', '')}{next(_numbers)}"


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
