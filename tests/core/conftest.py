"""Fixtures of several modules."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.core.support import Work, value


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=request.path.stem.removeprefix("test_")) as queue:
        queue.init()
        yield queue


@pytest.fixture
def ordered(queue: SqlQueue, spec: QueueSpec[Work]) -> QueueSpec[Work]:
    """The queue `work`, made an ordered one."""
    made = replace(spec, ordered=True)
    queue.create_queue(made)
    return made


@pytest.fixture
def today(queue: SqlQueue) -> date:
    """The day, in UTC, by the database's clock."""
    day: date = value(queue, "SELECT CAST(timezone('UTC', now()) AS date)")
    return day
