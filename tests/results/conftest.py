"""A schema for a folder of many small tests, emptied between them."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.results import Results, waits
from tests.results.support import listeners
from tests.support import Work, until
from tests.support.cleared import cleared
from tests.support.shared_schema import shared

__all__ = ["shared"]


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it; and nobody listens any more for the test before."""
    until(lambda: not listeners(shared))
    return cleared(shared, spec)


@pytest.fixture
def results(queue: SqlQueue) -> Iterator[Results]:
    """That listen."""
    with Results(queue) as made:
        yield made


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that listen look only once an hour: what ends them is the notification."""
    monkeypatch.setattr(waits, "_FIRST_LISTENING_SECONDS", 3_600.0)
    monkeypatch.setattr(waits, "_LAST_LISTENING_SECONDS", 3_600.0)
