"""Schedules on every server, each test in a schema of its own."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.schedules import Schedules
from tests.core.support import Work, drop


@pytest.fixture
def queue(any_server: str, schema: str, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    with SqlQueue(any_server, schema=f"schedules_{schema}") as queue:
        queue.init()
        queue.create_queue(spec)
        try:
            yield queue
        finally:
            drop(queue)


@pytest.fixture
def schedules(queue: SqlQueue) -> Schedules:
    return Schedules(queue)
