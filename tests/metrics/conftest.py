"""A schema for a module of tests, emptied between them."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.support import Work
from tests.support.cleared import cleared, own_schema


@pytest.fixture(scope="module")
def shared(url: str) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with own_schema(url, "metrics") as queue:
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it."""
    return cleared(shared, spec)
