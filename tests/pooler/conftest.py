"""A server of one's own behind PgBouncer in transaction mode, and the queues as applications have them through it.

Where PgBouncer is not installed nothing of this folder is run, and the run says how much it left out; what a pooler does to
a session is tried everywhere by tests/db, with one that is written in Python.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.faults.checker import audited
from tests.faults.conftest import Fleet
from tests.support import Work, own_server
from tests.support.cleared import cleared
from tests.support.pgbouncer import PROGRAM, pgbouncer

SESSIONS = 3
"""Fewer than the clients that use them at a time."""


@dataclass(frozen=True)
class Pooled:
    """A database and the pooler in front of it.

    Attributes:
        direct: the URL of the database itself.
        through: the URL of the pooler, without a word about what it is.
        owner: the queues, by connections to the database itself.
    """

    direct: str
    through: str
    owner: SqlQueue

    @property
    def url(self) -> str:
        """The URL of the pooler, as the documentation has it."""
        return f"{self.through}&pooler=transaction"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs PgBouncer where it is not installed."""
    if PROGRAM is not None:
        return
    here = Path(__file__).parent
    left_out = [item for item in items if here in item.path.parents]
    items[:] = [item for item in items if here not in item.path.parents]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def pooled() -> Iterator[Pooled]:
    """One for all tests of a process."""
    with own_server(settings=["fsync=off"]) as server, SqlQueue(server.url, schema="pooled") as owner:
        owner.migrate()
        with pgbouncer(server.url, sessions=SESSIONS) as through:
            yield Pooled(server.url, through, owner)


@pytest.fixture
def owner(pooled: Pooled, spec: QueueSpec[Work]) -> SqlQueue:
    """The queues by connections to the database itself, with the queue `work` and nothing in it."""
    return cleared(pooled.owner, spec)


@pytest.fixture
def queue(owner: SqlQueue, pooled: Pooled) -> Iterator[SqlQueue]:
    """The same through the pooler."""
    with SqlQueue(pooled.url, schema="pooled") as through:
        yield through


@pytest.fixture
def fleet(pooled: Pooled, schema: str, spec: QueueSpec[Work], tmp_path: Path) -> Iterator[Fleet]:
    """Processes whose connections go through the pooler, audited and judged by one that does not."""
    with SqlQueue(pooled.direct, schema=schema) as judge:
        judge.migrate()
        judge.create_queue(spec)
        audited(judge)
        made = Fleet(judge, pooled.url, tmp_path)
        yield made
        made.end()
