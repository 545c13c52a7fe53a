"""A schema for a folder of many small tests, emptied between them, with its followers."""

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Followers, JobEnded
from tests.support import Work
from tests.support.cleared import cleared
from tests.support.shared_schema import shared

__all__ = ["shared"]


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
