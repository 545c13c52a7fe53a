"""A schema for a module of many small tests, emptied between them, with the topics of it."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.topics import Topics
from tests.support import Work
from tests.support.cleared import cleared


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=request.path.stem.removeprefix("test_")) as queue:
        queue.migrate()
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queues `work`, `mail` and `audit`, and nothing in them."""
    cleared(shared, spec)
    for name in ("mail", "audit"):
        shared.create_queue(QueueSpec(name, Work, bucket_count=4))
    return shared


@pytest.fixture
def topics(queue: SqlQueue) -> Topics:
    """Without any subscription."""
    return Topics(queue)
