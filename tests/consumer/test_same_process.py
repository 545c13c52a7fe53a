"""Consumers of one process: which jobs count as the only one that it had, and that none waits for another for ever."""

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dagster_sqlqueue import Consumer, Job, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.same_process import Member
from dagster_sqlqueue.model.job import ClaimedJob
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, states, value


@pytest.fixture
def other(queue: SqlQueue, spec: QueueSpec[Work]) -> QueueSpec[Work]:
    another = replace(spec, name="other")
    queue.create_queue(another)
    return another


@contextlib.contextmanager
def elsewhere(consumer: Consumer[Work]) -> Iterator[None]:
    """The consumer is at work in another thread, with nothing to do."""
    working, over = threading.Event(), threading.Event()

    def work() -> None:
        with consumer.working():
            working.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert working.wait(PATIENCE)
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def in_a_thread(member: Member, patience: float) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(member.take_turn(patience)))
    thread.start()
    thread.join(PATIENCE)
    return found[0]


def test_one_at_a_time_has_the_turn() -> None:
    first, second = Member(), Member()
    assert first.take_turn(math.inf)
    assert not in_a_thread(second, math.inf)
    first.pass_turn()
    assert in_a_thread(second, math.inf)


def test_one_that_has_waited_long_enough_takes_the_turn() -> None:
    first, second = Member(), Member()
    assert first.take_turn(math.inf)
    assert not in_a_thread(second, PATIENCE)
    assert in_a_thread(second, 0.0)


def test_one_of_the_same_thread_is_not_waited_for() -> None:
    first, second = Member(), Member()
    assert first.take_turn(math.inf)
    assert second.take_turn(math.inf)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_handler_may_drain_another_queue(
    queue: SqlQueue, spec: QueueSpec[Work], other: QueueSpec[Work], mode: Mode, batch_size: int
) -> None:
    queue.enqueue(spec, Work(n=1))
    queue.enqueue_many(other, [Work(n=n) for n in range(2, 5)])
    rows(queue, "UPDATE {s}.job SET state = 'running', lease_no = 1, attempt = 1 WHERE queue = 'other'")

    def handle(job: Job[Work]) -> None:
        Consumer(queue, other, lambda job: None, mode=mode, batch_size=batch_size).drain()

    Consumer(queue, spec, handle, mode=mode, batch_size=batch_size).drain()
    assert set(states(queue).values()) == {"succeeded"}


def test_a_consumer_that_was_made_beside_it_changes_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], other: QueueSpec[Work]
) -> None:
    """What it claims by itself counts as the only job of the process: it begins at most as often as it may."""
    unused = Consumer(queue, other, lambda job: None, batch_size=1)
    queue.enqueue(spec, Work(n=1))
    claimed: list[ClaimedJob] = []
    Consumer(queue, spec, lambda job: None, batch_size=1, on_claim=claimed.extend).drain()
    assert [job.alone for job in claimed] == [True]
    assert unused.summary.claimed == 0


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("mode", "until"), [(Mode.LEASED, None), (Mode.TRANSACTIONAL, "claim")])
def test_a_job_that_runs_beside_another_thread_is_not_the_only_one(
    queue: SqlQueue, spec: QueueSpec[Work], other: QueueSpec[Work], mode: Mode, until: str | None, *, beside: bool
) -> None:
    """In transactional mode one that frees its key begins by itself, so that others see it."""
    queue.enqueue(spec, NewJob(Work(n=1), unique_key="u", unique_until=until or "end"))
    counted: list[bool] = []

    def handle(job: Job[Work]) -> None:
        counted.append(value(queue, "SELECT alone FROM {s}.job WHERE id = %s", job.id))

    with elsewhere(Consumer(queue, other, lambda job: None)) if beside else contextlib.nullcontext():
        Consumer(queue, spec, handle, mode=mode, batch_size=1).drain()
    assert counted == [not beside]
    assert states(queue) == {1: "succeeded"}
