"""A schema for a module of many small tests, emptied between them, with its followers."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Followers, JobEnded
from tests.support import Work
from tests.support.cleared import cleared


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=f"followers_{request.path.stem.removeprefix('test_')}") as queue:
        queue.migrate()
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queues `work` and `ended`, and nothing in them."""
    cleared(shared, spec)
    shared.create_queue(ENDED)
    return shared


ENDED = QueueSpec("ended", JobEnded, bucket_count=4)


@pytest.fixture
def followers(queue: SqlQueue) -> Followers:
    """Without any."""
    return Followers(queue)
