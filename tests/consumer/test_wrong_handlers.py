"""Handlers that cannot be called are refused; the jobs of those that return what nothing runs are given back."""

import asyncio
import functools
import gc
import inspect
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Done, Job, QueueSpec, SqlQueue, handles
from dagster_sqlqueue.consumer.hooks import ConsumerHooks
from dagster_sqlqueue.errors import InvalidInput, WrongHandler
from dagster_sqlqueue.model.job import Mode
from tests.support import Work, rows

GOOD = 3
"""How many jobs are done before one comes for which the handler returns a coroutine."""


_NEVER_RUN = (
    r"returned a ((coroutine|Task), which is to be awaited"
    r"|(generator|async_generator|map), which does nothing until it is iterated)"
)


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


def generated(job: Job[Work]) -> Any:
    return None if job.payload.n < GOOD else (Done() for _ in range(1))


async def generates(job: Any) -> AsyncIterator[Done]:
    yield Done()


def async_generated(job: Job[Work]) -> Any:
    return None if job.payload.n < GOOD else generates(job)


async def awaited_and_generated(job: Job[Work]) -> Any:
    return generated(job)


def batch_generated(jobs: Sequence[Job[Work]]) -> Any:
    return (Done() for _ in jobs)


def batch_mapped(jobs: Sequence[Job[Work]]) -> Any:
    return map(one, jobs)


def batch_of_too_few(jobs: Sequence[Job[Work]]) -> Any:
    return [later(jobs)] * 99


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
        pytest.param(generated, {}, id="generator"),
        pytest.param(generated, {"concurrency": 4}, id="generator in threads"),
        pytest.param(generated, {"mode": Mode.TRANSACTIONAL}, id="generator in a transaction"),
        pytest.param(async_generated, {}, id="async generator"),
        pytest.param(awaited_and_generated, {}, id="generator, awaited"),
        pytest.param(awaited_and_generated, {"concurrency": 4}, id="generator, awaited, with concurrency"),
        pytest.param(batch_generated, {"batch": True}, id="generator of a batch"),
        pytest.param(batch_mapped, {"batch": True}, id="map of a batch"),
        pytest.param(batch_of_too_few, {"batch": True}, id="another number of them"),
    ],
)
def test_what_nothing_runs_ends_the_drain_and_spends_no_attempt(
    queue: SqlQueue, spec: QueueSpec[Work], handler: Any, more: dict[str, Any]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(12)])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        consumer = Consumer(queue, spec, handler, **more)
        with pytest.raises(WrongHandler, match=_NEVER_RUN):
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


def test_a_handler_that_is_not_called_with_its_job_alone_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def by_name(*, job: Job[Work]) -> None: ...
    def bank_first(bank: str, job: Job[Work]) -> None: ...
    async def two(job: Job[Work], bank: str) -> None: ...
    def nothing() -> None: ...

    @functools.wraps(two)
    async def by_name_only(**given: Any) -> None: ...

    class Called:
        def __call__(self, *, job: Job[Work]) -> None: ...

        def method(self) -> None: ...

    wrong: list[Any] = [
        by_name,
        bank_first,
        functools.partial(bank_first, bank="x"),
        two,
        nothing,
        by_name_only,
        Called(),
        Called().method,
    ]
    for handler in wrong:
        for more in ({}, {"hooks": [ConsumerHooks()]}, {"batch": True}):
            with pytest.raises(InvalidInput, match="of queue 'work' is called with one positional argument, its job"):
                Consumer(queue, spec, handler, **more)
        with pytest.raises(InvalidInput, match=r"does not take: .*\. Let it take that first, and nothing else without"):
            handles(spec)(handler)

    @functools.wraps(two)
    async def injecting(*given: Any) -> None:
        await two(*given, bank="x")

    def signed(*given: Any) -> None: ...

    signed.__signature__ = inspect.signature(two)  # type: ignore[attr-defined]

    class Signed:
        __signature__ = inspect.signature(two)

        def __call__(self, *given: Any) -> None: ...

    fit: list[Any] = [
        functools.partial(bank_first, "x"),
        functools.partial(two, bank="x"),
        injecting,
        signed,
        Signed(),
        functools.lru_cache(lambda job: None),
        functools.singledispatch(lambda job: None),
        [].append,
        print,
    ]
    for n, handler in enumerate(fit):
        queue.enqueue(spec, Work(n=n))
        assert Consumer(queue, spec, handler).drain().succeeded == 1
