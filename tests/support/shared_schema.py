"""Fixtures for tests that share a schema with the others of their folder: a folder's conftest takes them in."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.support import Work, caller, until, value
from tests.support.cleared import cleared

_made: set[str] = set()
"""The schemas that this process has made: to make one takes a third of a second of CPU."""


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of the folder's schema, with connections that no other module has used."""
    with SqlQueue(url, schema=f"{request.path.parent.name}_shared") as queue:
        if queue.database.schema not in _made:
            queue.migrate()
            _made.add(queue.database.schema)
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it."""
    return cleared(shared, spec)


@pytest.fixture
def ordered(queue: SqlQueue, spec: QueueSpec[Work]) -> QueueSpec[Work]:
    """The queue `work`, made an ordered one."""
    made = replace(spec, ordered=True)
    queue.create_queue(made)
    return made


@pytest.fixture
def whole_day(url: str) -> None:
    """A day that goes on while the test runs: made before it, and counted from in it, it is the same."""
    same = "SELECT date_trunc('day', now(), 'UTC') = date_trunc('day', now() + interval '1 minute', 'UTC')"
    with caller(url, autocommit=True) as connection:
        until(lambda: connection.execute(same).fetchone() == (True,), "the next day")


@pytest.fixture
def today(queue: SqlQueue) -> date:
    """The day, in UTC, by the database's clock."""
    day: date = value(queue, "SELECT CAST(timezone('UTC', now()) AS date)")
    return day


@pytest.fixture
def filled(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """Thirty jobs, a third of them with the note `x`."""
    queue.enqueue_many(spec, [Work(n=n, note="x" if n % 3 == 0 else "y") for n in range(30)])
    return queue
