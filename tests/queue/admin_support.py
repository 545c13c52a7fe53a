"""What the tests of a queue as a whole share: its settings, claims, and something that goes on beside."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from dagster_sqlqueue import Backoff, QueueSpec, SqlQueue
from dagster_sqlqueue.model.job import ClaimedJob
from tests.gate.patience import PATIENCE
from tests.support import Work

PLAIN = QueueSpec("work", Work, bucket_count=4, max_attempts=3, backoff=Backoff(0, jitter=0))


def take(queue: SqlQueue, limit: int = 100, **more: Any) -> list[ClaimedJob]:
    return queue.claim("work", limit=limit, worker="w", **more)


@contextmanager
def side(run: Any, *arguments: Any) -> Iterator[Any]:
    """Something that goes on in a thread while the block runs; it has ended without an error after the block."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, *arguments)
        yield future
        future.result(PATIENCE)
