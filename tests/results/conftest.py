"""A schema for a module of many small tests, emptied between them."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.results import Results
from tests.core.cleared import cleared
from tests.core.support import Work, rows


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=f"results_{request.path.stem.removeprefix('test_')}") as queue:
        queue.init()
        yield queue


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it."""
    rows(shared, "TRUNCATE {s}.follower, {s}.job_progress, {s}.reply_queue CASCADE")
    return cleared(shared, spec)


@pytest.fixture
def results(queue: SqlQueue) -> Iterator[Results]:
    """That listen."""
    with Results(queue) as made:
        yield made
