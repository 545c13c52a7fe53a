"""Producers that enqueue the same new jobs at the same time, in opposite orders: each is enqueued once, and nobody fails."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import TransactionLost
from dagster_sqlqueue.followers import Followers
from dagster_sqlqueue.topics import Message, Topics
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, caller, rows, until, value
from tests.support.few import few

ROUNDS = sized(12, 60)
_Put = Callable[[SqlQueue, QueueSpec[Work], Sequence[Any]], Any]


def _keyed(count: int) -> list[NewJob[Work]]:
    return [NewJob(Work(n=n), unique_key=f"k{n}") for n in range(count)]


def _named(count: int) -> list[NewJob[Work]]:
    return [NewJob(Work(n=n), id=uuid7()) for n in range(count)]


def _publish(queue: SqlQueue, spec: QueueSpec[Work], jobs: Sequence[NewJob[Work]]) -> int:
    done = Topics(queue).publish_many("orders", [Message(job.payload, job.id) for job in jobs])
    return done.inserted


WAYS: dict[str, tuple[Callable[[int], list[NewJob[Work]]], _Put]] = {
    "unique keys": (_keyed, lambda queue, spec, jobs: queue.enqueue_many(spec, jobs).inserted),
    "messages": (_named, _publish),
    "a generator": (_keyed, lambda queue, spec, jobs: queue.enqueue_many(spec, (job for job in jobs)).inserted),
    "replacing": (_keyed, lambda queue, spec, jobs: queue.enqueue_many(spec, jobs, on_conflict="replace").inserted),
    "ids": (_named, lambda queue, spec, jobs: queue.enqueue_many(spec, jobs).inserted),
    "followers": (
        _keyed,
        lambda queue, spec, jobs: Followers(queue).enqueue_many(spec, jobs, on_conflict="ignore").inserted,
    ),
    "merging": (_keyed, lambda queue, spec, jobs: Followers(queue).enqueue_many(spec, jobs).inserted),
}


def _raced(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call returns; they begin together."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, call) for call in calls]]


@pytest.mark.parametrize("way", few(list(WAYS), 2))
def test_the_same_jobs_in_opposite_orders(queue: SqlQueue, spec: QueueSpec[Work], way: str) -> None:
    make, put = WAYS[way]
    Topics(queue).subscribe("orders", "worker", "work")
    for _ in range(ROUNDS):
        jobs = make(500)
        inserted = _raced([partial(put, queue, spec, jobs), partial(put, queue, spec, jobs[::-1])])
        assert sum(inserted) == value(queue, "SELECT count(*) FROM {s}.job") == 500
        rows(queue, "TRUNCATE {s}.job")


@pytest.mark.prove
def test_in_chunks_that_meet_crosswise_all_begins_again(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """One order within each chunk does not help where the chunks come in opposite orders."""
    for _ in range(3):
        first, second = _keyed(4_000)[:2_000], _keyed(4_000)[2_000:]
        done = _raced([partial(queue.enqueue_many, spec, jobs) for jobs in (first + second, second + first)])
        assert sum(one.inserted for one in done) == value(queue, "SELECT count(*) FROM {s}.job") == 4_000
        rows(queue, "TRUNCATE {s}.job")


@pytest.fixture
def blocked(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> Iterator[Callable[[str], None]]:
    """Has somebody else hold the key `k0`, and then want another: a circle with the one that has it and waits for `k0`."""
    with caller(url) as connection, ThreadPoolExecutor(1) as pool:
        # The one that checks for a deadlock first is the one that it ends.
        connection.execute("SET deadlock_timeout = '1h'")
        queue.enqueue(spec, NewJob(Work(n=0), unique_key="k0"), connection=connection)

        def want(key: str) -> None:
            # It waits on the server until the other one's transaction is gone.
            pool.submit(queue.enqueue, spec, NewJob(Work(n=0), unique_key=key), connection=connection)
            until(lambda: value(queue, WAITING), "a wait")

        yield want
        pool.shutdown()
        connection.rollback()


WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'transactionid'"


def test_a_generator_that_cannot_begin_again_says_so(
    queue: SqlQueue, spec: QueueSpec[Work], blocked: Callable[[str], None]
) -> None:
    def jobs() -> Iterator[NewJob[Work]]:
        for n in range(1, 2_001):
            yield NewJob(Work(n=n), unique_key=f"k{n}")
        blocked("k1")
        yield NewJob(Work(n=0), unique_key="k0")

    with pytest.raises(
        TransactionLost, match=r"deadlock detected.*a generator cannot be read again: nothing was enqueued"
    ):
        queue.enqueue_many(spec, jobs())


def test_a_callers_transaction_is_his_to_begin_again(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, blocked: Callable[[str], None]
) -> None:
    with caller(url) as connection:
        queue.enqueue_many(spec, [NewJob(Work(n=1), unique_key="k1")], connection=connection)
        blocked("k1")
        with pytest.raises(psycopg.errors.DeadlockDetected):
            queue.enqueue_many(spec, [NewJob(Work(n=0), unique_key="k0")], connection=connection)
        connection.rollback()
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_the_jobs_of_a_key_are_numbered_as_they_were_given(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, ordered=True))
    jobs = [NewJob(Work(n=n), unique_key=f"k{99 - n}", ordering_key="o") for n in range(50)]
    assert queue.enqueue_many(spec, jobs).inserted == 50
    found = rows(queue, "SELECT CAST(payload ->> 'n' AS int) FROM {s}.job ORDER BY order_no")
    assert [n for (n,) in found] == list(range(50))


def test_of_jobs_with_one_key_the_first_is_taken(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    ids = sorted(uuid7() for _ in range(6))[::-1]
    jobs = [NewJob(Work(n=n), unique_key=f"k{n % 3}", id=id) for n, id in enumerate(ids)]
    assert queue.enqueue_many(spec, jobs).inserted == 3
    found = rows(queue, "SELECT CAST(payload ->> 'n' AS int) FROM {s}.job ORDER BY 1")
    assert [n for (n,) in found] == [0, 1, 2]
