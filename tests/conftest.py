"""One embedded PostgreSQL for the whole run, and for each test a schema of its own in it.

What must hold on every version runs on each server of `SERVERS`: the embedded one, and those that Debian's packages have
installed; or on a database of one's own alone, if SQLQUEUE_TEST_URL names it.
"""

import contextlib
import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg.rows import dict_row

from dagster_sqlqueue import Backoff, QueueSpec, SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.gate.patience import FULL
from tests.support import Work, caller, own_server
from tests.support.callers import django_connection, orm_session, sqlalchemy_connection
from tests.support.server_names import EMBEDDED, GIVEN, INSTALLED, SERVERS

pytest_plugins = ["tests.gate.plugin"]

_FIRST = (
    ("spark",),
    ("plans", "faults", "statemachine"),
    ("demo", "browser", "gate", "docs", "orchestration", "worker"),
)
"""The folders with the longest tests, as each process of a run begins with some of them: one of them with all that share its
Spark session, and one with all plans, whose tables take longer to be filled than any of them.
"""

_TESTS = Path(__file__).parent
_numbers = itertools.count(1)

# Whatever started the tests in the background may have had them ignore Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting makes a million objects that stay: to look through them again and again takes as long as to make them.
gc.disable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What has been collected is left out of every garbage collection of the tests."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests that prove a promise: with the whole numbers, all of a module that sizes its own. And deal what is left
    of them after the choice of the command line out to the processes, in the random order within each folder.
    """
    for item in items:
        if FULL and isinstance(item, pytest.Function) and hasattr(item.module, "sized"):
            item.add_marker(pytest.mark.prove)
    yield
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """The tests in the order of their shares: worksteal begins with as many for each process, one share after the other, and
    takes from the end of a share what another process has time for. So what is left at the end is short.
    """
    places = {folder: (share, place) for share, folders in enumerate(_FIRST) for place, folder in enumerate(folders)}
    long = sorted((item for item in items if _folder(item) in places), key=lambda item: places[_folder(item)])
    short = [item for item in items if _folder(item) not in places]
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for item in long:
        shares[places[_folder(item)][0] % processes].append(item)
    for left, share in zip(range(processes, 0, -1), shares, strict=True):
        room = max((len(short) + sum(map(len, shares[-left:]))) // left - len(share), 0)
        share += short[:room]
        del short[:room]
    return [*itertools.chain.from_iterable(shares), *short]


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).parts[0]


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's URL, as psycopg and the library take it."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("server") / "postgres") as server:
        plain = server.url.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(plain, autocommit=True) as connection:
            # The files die with the run: waiting for the disk would only slow it. What a crash of the server leaves
            # behind is tested on a server of its own, with its own defaults.
            connection.execute("ALTER SYSTEM SET fsync = off")
            # As often as any server checks its tables, and not as often as one that a person just started.
            connection.execute("ALTER SYSTEM SET autovacuum_naptime = '1min'")
            connection.execute("SELECT pg_reload_conf()")
        yield plain


@pytest.fixture(scope="session", autouse=True)
def migrations_of_dagster() -> Iterator[None]:
    """What is in the files of Dagster's migrations is read once, and not for each storage of each instance."""
    read = ScriptDirectory.from_config
    known: dict[str | None, ScriptDirectory] = {}

    def remembered(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = read(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", remembered)
        yield


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a server by its name; each is started once, when the first test asks for it."""
    with contextlib.ExitStack() as stack:

        @cache
        def started(name: str) -> str:
            if name == EMBEDDED:
                return str(request.getfixturevalue("url"))
            if name == GIVEN:
                return os.environ[GIVEN].replace("postgresql+psycopg://", "postgresql://", 1)
            return stack.enter_context(own_server(programs=INSTALLED[name], settings=["fsync=off"])).url

        yield started


@pytest.fixture(scope="session", params=SERVERS)
def any_server(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> str:
    """The URL of each server in turn."""
    return servers(request.param)


@pytest.fixture
def schema() -> str:
    """A schema name that nothing used before."""
    return f"t_{os.environ.get('PYTEST_XDIST_WORKER', '')}{next(_numbers)}"


@pytest.fixture
def spec() -> QueueSpec[Work]:
    """A queue with few buckets, leases that no test outlasts, and retries that are due at once."""
    return QueueSpec("work", Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0))


@pytest.fixture
def fresh(url: str, schema: str, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    """The queues of a fresh schema, with the queue of `spec` made."""
    with SqlQueue(url, schema=schema) as queue:
        queue.migrate()
        queue.create_queue(spec)
        yield queue


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """The queues that a test works with: of a fresh schema, where a folder does not say that it shares one."""
    return fresh


_CALLERS = {
    "psycopg": lambda url: caller(url, row_factory=dict_row),
    "SQLAlchemy connection": sqlalchemy_connection,
    "ORM session": orm_session,
    "Django's": django_connection,
}


@pytest.fixture(params=list(_CALLERS))
def theirs(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The caller's own connection, whose transaction verbs join: of each kind, as far as they differ."""
    with _CALLERS[request.param](url) as connection:
        yield connection
