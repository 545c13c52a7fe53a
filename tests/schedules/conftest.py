"""Schedules on every server, in a schema for a module of tests, emptied between them."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.schedules import Schedules
from tests.support import Work
from tests.support.cleared import cleared, own_schema


@pytest.fixture(scope="module")
def shared(any_server: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with own_schema(any_server, request.path.stem.removeprefix("test_")) as queue:
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it."""
    return cleared(shared, spec)


@pytest.fixture
def schedules(queue: SqlQueue) -> Schedules:
    return Schedules(queue)
