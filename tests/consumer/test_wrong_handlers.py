"""Handlers that return what nothing awaits: their jobs are given back, and no attempt is spent."""

import asyncio
import functools
import gc
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Done, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, WrongHandler
from dagster_sqlqueue.model.job import Mode
from tests.support import Work, rows

GOOD = 3
"""How many jobs are done before one comes for which the handler returns a coroutine."""


async def later(job: Any) -> Done:
    return Done()


def one(job: Job[Work]) -> Any:
    return None if job.payload.n < GOOD else later(job)


def batch(jobs: Sequence[Job[Work]]) -> Any:
    return later(jobs)


def batch_of_each(jobs: Sequence[Job[Work]]) -> Any:
    return [Done(), *(later(job) for job in jobs[1:])]


async def nested(job: Job[Work]) -> Any:
    return None if job.payload.n < GOOD else later(job)


async def nested_batch(jobs: Sequence[Job[Work]]) -> Any:
    return [later(job) for job in jobs]


async def tasks(job: Job[Work]) -> Any:
    return None if job.payload.n < GOOD else asyncio.get_running_loop().create_task(later(job))


@pytest.mark.parametrize(
    ("handler", "more"),
    [
        pytest.param(one, {}, id="one"),
        pytest.param(one, {"concurrency": 4}, id="one in threads"),
        pytest.param(one, {"mode": Mode.TRANSACTIONAL}, id="one in a transaction"),
        pytest.param(batch, {"batch": True}, id="batch"),
        pytest.param(batch_of_each, {"batch": True}, id="batch of each"),
        pytest.param(nested, {}, id="nested"),
        pytest.param(nested, {"concurrency": 4}, id="nested, with concurrency"),
        pytest.param(nested_batch, {"batch": True}, id="nested batch"),
        pytest.param(tasks, {}, id="tasks"),
    ],
)
def test_what_nothing_awaits_ends_the_drain_and_spends_no_attempt(
    queue: SqlQueue, spec: QueueSpec[Work], handler: Any, more: dict[str, Any]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(12)])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        consumer = Consumer(queue, spec, handler, **more)
        with pytest.raises(WrongHandler, match=r"returned a (coroutine|Task), which is to be awaited"):
            consumer.drain()
        gc.collect()
    assert [str(warning.message) for warning in warned] == []
    left = rows(queue, "SELECT (payload->>'n')::int, state, attempt FROM {s}.job")
    assert {(state, attempt) for _, state, attempt in left} == {("queued", 0)}
    assert {n for n, *_ in left} >= set(range(GOOD, 12))
    assert queue.depth("work").running == 0


def test_a_plain_wrapper_around_an_async_function_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    @functools.wraps(later)
    def passing_on(*given: Any) -> Any:
        return later(*given)

    class Called:
        @functools.wraps(later)
        def __call__(self, *given: Any) -> Any:
            return later(*given)

    @functools.wraps(later)
    async def awaiting(job: Job[Work]) -> Any:
        return await later(job)

    for handler in (passing_on, functools.partial(passing_on), functools.wraps(passing_on)(lambda job: None), Called()):
        with pytest.raises(InvalidInput, match="a plain wrapper around the async function 'later'"):
            Consumer(queue, spec, handler)
    queue.enqueue(spec, Work(n=1))
    assert Consumer(queue, spec, awaiting).drain().succeeded == 1
    queue.enqueue(spec, Work(n=2))
    assert Consumer(queue, spec, functools.partial(later)).drain().succeeded == 1
