"""A schema for a module of many small tests, emptied between them, with the people of it."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.people import HumanWork
from tests.support import Work
from tests.support.cleared import cleared


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=f"people_{request.path.stem.removeprefix('test_')}") as queue:
        queue.migrate()
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queues `work` and `mail`, and nothing in them."""
    cleared(shared, spec)
    shared.create_queue(QueueSpec("mail", Work, bucket_count=4))
    return shared


@pytest.fixture
def people(queue: SqlQueue) -> HumanWork:
    return HumanWork(queue)
