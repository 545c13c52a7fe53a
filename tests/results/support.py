"""What the tests of waits share."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.results import Results
from tests.gate.patience import PATIENCE
from tests.support import Work, others_at

FOLLOWERS = "SELECT count(*) FROM {s}.follower"
LONG = 2 * PATIENCE
"""The time of a wait: one that nothing wakes polls for the last time when it is up, after the test has given up."""


def enqueued(queue: SqlQueue, spec: QueueSpec[Work], count: int = 1) -> list[UUID]:
    ids = [queue.enqueue(spec, Work(n=n)) for n in range(count)]
    return [id for id in ids if id]


def listeners(queue: SqlQueue) -> list[int]:
    return others_at(queue, "ended_listen")


@contextmanager
def waiting(wait: Callable[[], Any]) -> "Iterator[Future[Any]]":
    """A wait in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(wait)


def heard(results: Results) -> bool:
    return results._end_listener.listening
