"""Handlers that end their process by `sys.exit`: their jobs are found like those that crash it, and the others are done."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Job, Mode, QueueSpec, SqlQueue
from tests.support import Work, rows

EXITS = 5
JOBS = 9


def one(job: Job[Work]) -> None:
    if job.payload.n == EXITS:
        sys.exit(3)


async def asynchronous(job: Job[Work]) -> None:
    one(job)


def batch(jobs: Sequence[Job[Work]]) -> None:
    for job in jobs:
        one(job)


@pytest.mark.parametrize(
    ("handler", "more"),
    [
        pytest.param(one, {"batch_size": JOBS}, id="leased"),
        pytest.param(one, {}, id="no batch size given"),
        pytest.param(one, {"batch_size": 1}, id="one by one"),
        pytest.param(one, {"concurrency": 2}, id="in threads"),
        pytest.param(one, {"mode": Mode.TRANSACTIONAL}, id="transactional"),
        pytest.param(one, {"mode": Mode.TRANSACTIONAL, "batch_size": 1}, id="transactional, one by one"),
        pytest.param(asynchronous, {"batch_size": JOBS}, id="async"),
        pytest.param(asynchronous, {"concurrency": 2}, id="async, with concurrency"),
        pytest.param(batch, {"batch": True, "batch_size": JOBS}, id="batch"),
    ],
)
def test_a_job_that_exits_each_time_fails_by_itself(
    queue: SqlQueue, spec: QueueSpec[Work], handler: Any, more: dict[str, Any]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(JOBS)])
    exits = 0
    while queue.depth("work").live:
        try:
            Consumer(queue, spec, handler, **more).drain()
        except SystemExit as exit:
            exits += exit.code == 3
    ended = rows(queue, "SELECT CAST(payload ->> 'n' AS integer), state, attempt FROM {s}.job_archive ORDER BY 1")
    assert ended == [(n, "failed", 3) if n == EXITS else (n, "succeeded", 1) for n in range(JOBS)]
    # As with a crash: once among others without an attempt spent, unless it is the only job of its claim. Without a batch
    # size, the first claim has one job, which may be any.
    possible = (3, 4) if not more else (3,) if more == {"batch_size": 1} else (4,)
    assert exits in possible


def test_what_else_ends_a_thread_ends_the_drain(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    class Odd(BaseException):
        pass

    def handle(job: Job[Work]) -> None:
        raise Odd

    queue.enqueue(spec, Work(n=1))
    with pytest.raises(Odd):
        Consumer(queue, spec, handle, concurrency=2).drain()
    assert rows(queue, "SELECT state, attempt FROM {s}.job") == [("queued", 0)]
