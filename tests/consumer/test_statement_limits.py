"""Limits that a user sets for the library's own statements: those that only help end no drain, and fail no job."""

import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Job, QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE
from tests.support import Work
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


def test_claims_do_without_hints_that_take_too_long(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=0))
    queue.leases = Slow(queue.leases)  # type: ignore[assignment]
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
