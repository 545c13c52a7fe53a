"""Limits that a user sets for the library's own statements: those that only help end no drain, and fail no job."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Consumer, DrainSummary, Job, QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, make_due, rows
from tests.support.around import Around


@pytest.fixture
def impatient(queue: SqlQueue, url: str) -> Iterator[SqlQueue]:
    """The queues of the test, whose statements wait for a lock no longer than a moment."""
    limited = f"{url}{'&' if '?' in url else '?'}options=-c%20lock_timeout%3D200"
    with SqlQueue(limited, schema=queue.database.schema) as limited_queue:
        yield limited_queue


@contextlib.contextmanager
def locked(url: str, statement: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())
        yield
        connection.rollback()


def test_the_row_of_a_waiter_may_be_locked(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    def handle(job: Job[Work]) -> None:
        consumer.stop()

    queue.enqueue(spec, Work(n=0))
    consumer = Consumer(impatient, spec, handle)
    with locked(url, f'LOCK TABLE "{queue.database.schema}".waiter IN SHARE MODE'):
        assert consumer.drain(linger_seconds=PATIENCE).succeeded == 1
    assert "canceling statement due to lock timeout); polling instead" in caplog.text


class Slow(Around):
    """Leases whose searches for the heads of buckets take longer than a statement may."""

    def note_sweep(self, queue: str) -> int:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")


def test_claims_do_without_hints_that_take_too_long(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(spec, Work(n=0))
    monkeypatch.setattr(queue, "leases", Slow(queue.leases))
    assert Consumer(queue, spec, lambda job: None).drain().succeeded == 1


def test_the_name_of_a_transactional_consumer_may_stay(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    holding, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        statement = f'LOCK TABLE "{queue.database.schema}".transactional_consumer IN ACCESS EXCLUSIVE MODE'
        with locked(url, statement):
            holding.set()
            go_on.wait(PATIENCE)

    def handle(job: Job[Work]) -> None:
        holder.start()
        assert holding.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    queue.enqueue(spec, Work(n=0))
    try:
        assert Consumer(impatient, spec, handle, mode="transactional").drain().succeeded == 1
    finally:
        go_on.set()
        holder.join()


def test_a_progress_that_waits_too_long_fails_no_job(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    def handle(job: Job[Work]) -> None:
        with locked(url, f'SELECT FROM "{queue.database.schema}".job FOR UPDATE'):
            job.progress(10, "begun")

    queue.enqueue(spec, Work(n=0))
    assert Consumer(impatient, spec, handle).drain().succeeded == 1
    assert "work: a progress could not be written: canceling statement due to lock timeout" in caplog.text


class Blocked:
    """A handler of a transactional consumer, beside a session on which the ends of its jobs wait, from the first call on.

    Args:
        queue: the queues of the test.
        url: of the database.
        frees_at: the number of the call that ends that session; None: it stays.
        stops_at: the number of the call that stops the consumer; None: none does.
    """

    def __init__(self, queue: SqlQueue, url: str, *, frees_at: int | None = None, stops_at: int | None = None) -> None:
        self.blocker = psycopg.connect(url)
        self.lock = f'LOCK TABLE "{queue.database.schema}".job_archive IN SHARE MODE'.encode()
        self.frees_at, self.stops_at = frees_at, stops_at
        self.attempts: list[int] = []
        self.consumer: Consumer[Work] | None = None

    def __call__(self, job: Job[Work]) -> None:
        self.attempts.append(job.attempt)
        if len(self.attempts) == 1:
            self.blocker.execute(self.lock)
        if len(self.attempts) == self.frees_at:
            self.blocker.rollback()
        if len(self.attempts) == self.stops_at and self.consumer is not None:
            self.consumer.stop()

    def drain(self, queue: SqlQueue, spec: QueueSpec[Work], **settings: Any) -> DrainSummary:
        self.consumer = Consumer(queue, spec, self, mode="transactional", **settings)
        with self.blocker:
            return self.consumer.drain()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_in_transactional_mode_an_end_that_waits_too_long_is_repeated_and_spends_no_attempt(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work], batch_size: int
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(batch_size)])
    blocked = Blocked(queue, url, frees_at=3 * batch_size + 1)
    summary = blocked.drain(impatient, spec, batch_size=batch_size, lease_seconds=600)
    assert (summary.succeeded, summary.retried, summary.claimed) == (batch_size, 0, batch_size)
    assert blocked.attempts == [1] * (4 * batch_size)


def test_in_transactional_mode_the_end_of_a_job_whose_lease_ran_out_is_repeated(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=0))
    assert [job.alone for job in claim(queue)] == [True]
    make_due(queue)
    blocked = Blocked(queue, url, frees_at=4)
    summary = blocked.drain(impatient, spec, lease_seconds=600)
    assert (summary.succeeded, summary.retried) == (1, 0)
    assert blocked.attempts == [2] * 4


def test_in_transactional_mode_a_handler_may_take_longer_than_the_lease_for_which_its_end_is_repeated(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    lease_seconds = 2.0

    class Slow(Blocked):
        def __call__(self, job: Job[Work]) -> None:
            super().__call__(job)
            if len(self.attempts) == 1:
                time.sleep(1.5 * lease_seconds)

    queue.enqueue(spec, Work(n=0))
    summary = Slow(queue, url, frees_at=2).drain(impatient, spec, lease_seconds=lease_seconds)
    assert (summary.succeeded, summary.retried) == (1, 0)


def test_in_transactional_mode_an_end_that_waits_for_longer_than_a_lease_spends_an_attempt(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    class OfOneAttempt(Blocked):
        def __call__(self, job: Job[Work]) -> None:
            super().__call__(job)
            if job.attempt == 2:
                self.blocker.rollback()

    queue.enqueue(spec, Work(n=0))
    summary = OfOneAttempt(queue, url).drain(impatient, spec, lease_seconds=0.5)
    assert (summary.succeeded, summary.retried) == (1, 1)
    ((attempt, error),) = rows(queue, "SELECT attempt, error FROM {s}.job_archive")
    assert attempt == 2
    assert error.startswith("a timeout ended the queue's own write for longer than a lease: LockNotAvailable: ")


def test_in_transactional_mode_a_stop_leaves_a_job_whose_end_waits_as_it_was(
    queue: SqlQueue, impatient: SqlQueue, url: str, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(spec, Work(n=0))
    blocked = Blocked(queue, url, stops_at=2)
    assert blocked.drain(impatient, spec, lease_seconds=600).claimed == 0
    assert rows(queue, "SELECT state, attempt, error FROM {s}.job") == [("queued", 0, None)]
    assert "work: 1 jobs were not ended: canceling statement due to lock timeout" in caplog.text
