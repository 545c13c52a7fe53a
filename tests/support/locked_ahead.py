"""Batches that are locked while another one is worked on in transactional mode, and what is sent for them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.queue.lock import SentLock
from tests.support import Work, rows
from tests.support.around import Around

SIZE = 10
LONG = 100_000.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a batch of these tests is a quick one, and the queue is not read again in between."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy.QUICK_SECONDS", LONG)
    monkeypatch.setattr("dagster_sqlqueue.consumer.queue_view._REFRESH_SECONDS", LONG)


class Sending(Around):
    """Leases that note each lock that is asked for ahead, and do something instead of one, or after it."""

    sent = 0
    act_at = 0
    act: Callable[[Transaction, Callable[[], SentLock]], SentLock]

    def send_lock(self, transaction: Transaction, *given: Any) -> SentLock:
        self.sent += 1

        def send() -> SentLock:
            sent: SentLock = self.inner.send_lock(transaction, *given)
            return sent

        return self.act(transaction, send) if self.sent == self.act_at else send()


@pytest.fixture
def sending(queue: SqlQueue) -> Iterator[Sending]:
    """The queue's leases, watched for the test."""
    watched = Sending(queue.leases)
    queue.leases = watched  # type: ignore[assignment]
    yield watched
    queue.leases = watched.inner


def fill(queue: SqlQueue, spec: QueueSpec[Work], jobs: int, **settings: Any) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), **settings) for n in range(jobs)])


def consumer_of(queue: SqlQueue, spec: QueueSpec[Work], handler: Any, **settings: Any) -> Consumer[Work]:
    return Consumer(queue, spec, handler, mode=Mode.TRANSACTIONAL, **{"batch_size": SIZE, **settings})


def free(queue: SqlQueue) -> int:
    return len(rows(queue, "SELECT id FROM {s}.job FOR UPDATE SKIP LOCKED"))
