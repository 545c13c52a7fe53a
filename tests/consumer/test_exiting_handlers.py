"""Handlers that raise what is no `Exception`: their jobs fail by themselves, and the others are done."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel, field_validator

import dagster_sqlqueue.orchestration.drain  # noqa: F401
from dagster_sqlqueue import Consumer, Job, Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.model.interrupts import add_interrupt
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


def test_jobs_that_had_not_begun_beside_one_that_exits_go_back(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The event loop is left at once, with tasks that it has not begun."""
    queue.enqueue_many(spec, [Work(n=n) for n in range(JOBS)])
    begun = []

    async def handle(job: Job[Work]) -> None:
        begun.append(job.payload.n)
        sys.exit(3)

    consumer = Consumer(queue, spec, handle, concurrency=JOBS)
    with pytest.raises(SystemExit):
        consumer.drain()
    others = "SELECT count(*) FROM {s}.job WHERE state = 'queued' AND attempt = 0"
    assert rows(queue, others) == [(JOBS - len(begun),)]
    assert len(begun) < JOBS


class Panic(BaseException):
    """As extensions in Rust raise it."""


class Strict(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _panics(cls, n: int) -> int:
        if n == EXITS:
            raise Panic("panicked at src/lib.rs")
        return n


def panics(job: Job[Work]) -> None:
    if job.payload.n == EXITS:
        raise Panic("panicked at src/lib.rs")


async def panics_awaited(job: Job[Work]) -> None:
    panics(job)


def panics_over_batch(jobs: Sequence[Job[Work]]) -> None:
    for job in jobs:
        panics(job)


async def awaits_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


def cancelled(job: Job[Work]) -> None:
    if job.payload.n == EXITS:
        asyncio.run(awaits_cancelled())


async def cancelled_over_batch(jobs: Sequence[Job[Work]]) -> None:
    if any(job.payload.n == EXITS for job in jobs):
        await awaits_cancelled()


@pytest.mark.parametrize(
    ("handler", "more"),
    [
        pytest.param(panics, {"batch_size": JOBS}, id="leased"),
        pytest.param(panics, {"concurrency": 2}, id="in threads"),
        pytest.param(panics, {"mode": Mode.TRANSACTIONAL}, id="transactional"),
        pytest.param(panics_awaited, {"batch_size": JOBS}, id="async"),
        pytest.param(panics_awaited, {"concurrency": 2}, id="async, with concurrency"),
        pytest.param(panics_over_batch, {"batch": True, "batch_size": 1}, id="batch"),
        pytest.param(cancelled, {"batch_size": JOBS}, id="cancelled within"),
        pytest.param(cancelled, {"mode": Mode.TRANSACTIONAL}, id="cancelled within, transactional"),
        pytest.param(cancelled_over_batch, {"batch": True, "batch_size": 1}, id="cancelled within, async batch"),
    ],
)
def test_what_is_no_exception_is_a_failed_attempt(
    queue: SqlQueue, spec: QueueSpec[Work], handler: Any, more: dict[str, Any]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(JOBS)])
    while queue.depth("work").live:
        summary = Consumer(queue, spec, handler, **more).drain()
        assert summary.released == 0
    ended = rows(queue, "SELECT CAST(payload ->> 'n' AS integer), state, attempt FROM {s}.job_archive ORDER BY 1")
    assert ended == [(n, "failed", 3) if n == EXITS else (n, "succeeded", 1) for n in range(JOBS)]
    (dead,) = queue.dead_letters("work")
    assert (dead.error or "").startswith(("Panic: panicked at src/lib.rs", "CancelledError: "))


def test_a_model_that_panics_over_a_payload_holds_its_job(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(JOBS)])
    summary = Consumer(queue, replace(spec, payload=Strict), lambda job: None, batch_size=JOBS).drain()  # type: ignore[type-var]
    assert (summary.succeeded, summary.held) == (JOBS - 1, 1)


class Terminated(BaseException):
    """As a framework has one, for a run that is terminated."""


class TerminatedSoon(Terminated):
    pass


@pytest.fixture(scope="module", autouse=True)
def framework() -> None:
    add_interrupt(Terminated)


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt, Terminated, TerminatedSoon, dg.DagsterExecutionInterruptedError]
)
@pytest.mark.parametrize(
    "more", [{"batch_size": JOBS}, {"concurrency": 2}, {"mode": Mode.TRANSACTIONAL}], ids=["leased", "threads", "in tx"]
)
def test_an_interrupt_ends_the_drain_and_spends_no_attempt(
    queue: SqlQueue, spec: QueueSpec[Work], interrupt: type[BaseException], more: dict[str, Any]
) -> None:
    def handle(job: Job[Work]) -> None:
        raise interrupt

    queue.enqueue(spec, Work(n=1))
    with pytest.raises(interrupt):
        Consumer(queue, spec, handle, **more).drain()
    assert rows(queue, "SELECT state, attempt FROM {s}.job") == [("queued", 0)]
