"""What the tests about single jobs share: three queues, and jobs that are enqueued, claimed, finished and killed."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, numbers, rows, take_time, until, value

PLAIN = QueueSpec("work", Work, bucket_count=4, max_attempts=3, backoff=Backoff(0, jitter=0))
ORDERED = replace(PLAIN, ordered=True)
TWO_A_KEY = replace(PLAIN, max_running_per_key=2)
ALL = Selection(all=True)
LATER = datetime.now(UTC) + timedelta(days=1)
NEW = Work(n=77, note="new")
"""What a payload is replaced by."""
STORED = {"n": 77, "note": "new"}
"""The same, as it is stored."""


def take(queue: SqlQueue, limit: int = 100) -> list[ClaimedJob]:
    return queue.claim("work", limit=limit, worker="w")


def put(queue: SqlQueue, spec: QueueSpec[Work], count: int, **more: Any) -> list[UUID]:
    """So many jobs, numbered from 0, as they were enqueued."""
    queue.create_queue(spec)
    ids = [queue.enqueue(spec, NewJob(Work(n=n), **more)) for n in range(count)]
    return [job for job in ids if job is not None]


def ids(*jobs: UUID) -> Selection:
    return Selection(ids=jobs)


def finish_all(queue: SqlQueue) -> list[int]:
    """The numbers of the jobs in the order in which they ran, one batch of turns after the other."""
    ran: list[int] = []
    while jobs := take(queue):
        ran += numbers(jobs)
        queue.complete(jobs)
    return ran


def kill(queue: SqlQueue, count: int = 1) -> list[ClaimedJob]:
    """Jobs that went to the dead letter, as their consumer had claimed them."""
    jobs = take(queue, count)
    queue.finish([Ending(job, ArchiveState.FAILED, error=f"failure of {numbers([job])[0]}") for job in jobs])
    return jobs


def stored_payload(queue: SqlQueue, job: UUID) -> Any:
    return json.loads(queue.job(job).payload)


@contextmanager
def unchanged(queue: SqlQueue) -> Iterator[None]:
    """Nothing is written by the block."""
    every = "SELECT j::text FROM {s}.job_all AS j ORDER BY 1"
    before = rows(queue, every)
    assert before
    yield
    assert rows(queue, every) == before


@contextmanager
def waiting_for_the_key(queue: SqlQueue, act: Callable[..., Any], *arguments: Any) -> Iterator[Future[Any]]:
    """Another transaction decides about the key `k`, and this call waits for it in the block."""
    with ThreadPoolExecutor(1) as pool, queue.database.transaction() as decision:
        take_time(decision)
        decision.run("key_wait", {"queue": "work", "keys": ["k"]})
        future = pool.submit(act, *arguments)
        until(lambda: value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        yield future
