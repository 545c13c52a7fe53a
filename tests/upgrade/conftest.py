"""A schema for each test, at the version of the library, and processes that work on it."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.support import Work
from tests.upgrade.crowd import Crowd


@pytest.fixture
def queue(url: str, schema: str, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    """With the queue `work`, and nothing in it."""
    with SqlQueue(url, schema=schema) as queue:
        queue.migrate()
        queue.create_queue(spec)
        yield queue


@pytest.fixture
def crowd(queue: SqlQueue, url: str) -> Iterator[Crowd]:
    """No process yet, and none is left at the end."""
    crowd = Crowd(url, queue.database.schema)
    yield crowd
    crowd.kill()
