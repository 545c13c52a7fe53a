"""A schema for a folder of many small tests, emptied between them, with the people of it."""

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.people import HumanWork
from tests.support import Work
from tests.support.cleared import cleared
from tests.support.shared_schema import shared

__all__ = ["shared"]


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queues `work` and `mail`, and nothing in them."""
    cleared(shared, spec)
    shared.create_queue(QueueSpec("mail", Work, bucket_count=4))
    return shared


@pytest.fixture
def people(queue: SqlQueue) -> HumanWork:
    return HumanWork(queue)
