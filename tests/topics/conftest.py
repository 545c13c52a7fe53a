"""A schema for a folder of many small tests, emptied between them, with the topics of it."""

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.topics import Topics
from tests.support import Work
from tests.support.cleared import cleared
from tests.support.shared_schema import shared

__all__ = ["shared"]


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
