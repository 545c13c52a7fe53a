"""Jobs that wait behind others of their ordering key are let in by the transaction that ends, gives back or holds those."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from dagster_sqlqueue import Mode, NewJob, QueueSpec, Reject, SqlQueue
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Retry
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, make_due, rows, states, take_time, until, value
from tests.support.decisions import ALL, ORDERED, PLAIN, finish_all, put
from tests.support.leased import ids_of, publish, seal

LIMITED = replace(PLAIN, max_running_per_key=1)

TERMINATED = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

Write = Callable[[SqlQueue, ClaimedJob], object]
WRITES: dict[str, Write] = {
    "complete": lambda queue, job: queue.complete([job]),
    "finish with a result": lambda queue, job: queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"n": 1})]),
    "requeue": lambda queue, job: queue.requeue([(job, Retry("again", after=3_600))]),
    "hold": lambda queue, job: queue.hold([(job, "look")]),
    "finish and claim": lambda queue, job: queue.leases.finish_and_claim(
        Endings.of([Ending(job, ArchiveState.SUCCEEDED)]), ClaimRequest("work", limit=1, worker="late")
    ),
}


@pytest.fixture
def late(queue: SqlQueue, url: str) -> Iterator[SqlQueue]:
    """The same queues in another process, as it were: what this one knows of their settings stays as it was."""
    with SqlQueue(url, schema=queue.database.schema) as other:
        other.settings("work")
        yield other


def given_turns(queue: SqlQueue, late: SqlQueue, spec: QueueSpec[Work], count: int = 3) -> ClaimedJob:
    """The job of the key that was claimed before its queue was given turns; the others of the key wait for it."""
    put(queue, PLAIN, count, ordering_key="k")
    (first,) = claim(late, 1, worker="late")
    queue.create_queue(spec)
    assert claim(queue) == []
    assert waiting(queue) == count - 1
    return first


def waiting(queue: SqlQueue) -> int:
    """How many jobs wait for their turn."""
    return int(value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'queued' AND available_at = 'infinity'"))


@pytest.mark.parametrize("write", list(WRITES))
@pytest.mark.parametrize("spec", [ORDERED, LIMITED], ids=["ordered", "limited"])
def test_a_connection_lost_while_a_key_is_decided_about_leaves_nobody_waiting(
    queue: SqlQueue, late: SqlQueue, spec: QueueSpec[Work], write: str
) -> None:
    """The job was claimed before its key took turns, and its consumer is cut off while others decide about the key."""
    job = given_turns(queue, late, spec)
    failures: list[Exception] = []

    def work() -> None:
        try:
            WRITES[write](late, job)
        except DatabaseUnavailable as error:
            failures.append(error)

    consumer = threading.Thread(target=work)
    with queue.database.transaction() as decision:
        take_time(decision)
        decision.run("key_wait", {"queue": "work", "keys": ["k"]})
        consumer.start()
        until(lambda: rows(queue, TERMINATED), "the consumer's wait for the key")
        consumer.join(PATIENCE)
    assert len(failures) == 1
    rows(queue, "UPDATE {s}.job SET available_at = now() WHERE state = 'running'")
    assert sorted(finish_all(queue)) == [0, 1, 2]
    assert set(states(queue).values()) == {"succeeded"}


@pytest.mark.parametrize("write", list(WRITES))
@pytest.mark.parametrize("spec", [ORDERED, LIMITED], ids=["ordered", "limited"])
def test_the_end_of_a_job_that_was_claimed_before_its_key_took_turns_lets_the_next_in(
    queue: SqlQueue, late: SqlQueue, spec: QueueSpec[Work], write: str
) -> None:
    job = given_turns(queue, late, spec)
    WRITES[write](late, job)
    assert rows(queue, "SELECT coalesce(sum(writes), 0) FROM {s}.stale_write") == [(0,)]
    make_due(queue)
    queue.release_held("work", ALL)
    assert sorted(finish_all(queue)) == ([0, 1, 2] if write in ("requeue", "hold") else [1, 2])


OVER: dict[str, Callable[[SqlQueue, Batch], object]] = {
    "published": publish,
    "published with reports": lambda queue, batch: (
        batches.report(queue, batch, [(ids_of(queue)[0], Reject("no"))]),
        publish(queue, batch),
    ),
    "reported and given up": lambda queue, batch: (
        batches.report(queue, batch, [(ids_of(queue)[0], Reject("no"))]),
        batches.abandon(queue, batch, "stopped"),
    ),
    "left behind": lambda queue, batch: (
        batches.report(queue, batch, [(ids_of(queue)[0], Reject("no"))]),
        make_due(queue),
        batches.sweep_batches(queue, grace_seconds=0),
    ),
}


@pytest.mark.parametrize("over", list(OVER))
@pytest.mark.parametrize("spec", [ORDERED, LIMITED], ids=["ordered", "limited"])
def test_the_end_of_a_batch_that_was_sealed_before_its_keys_took_turns_lets_the_next_in(
    queue: SqlQueue, spec: QueueSpec[Work], over: str
) -> None:
    put(queue, PLAIN, 1, ordering_key="k")
    batch = seal(queue)
    queue.create_queue(spec)
    for n in (1, 2):
        queue.enqueue(spec, NewJob(Work(n=n), ordering_key="k"))
    assert claim(queue) == []
    assert waiting(queue) == 2
    OVER[over](queue, batch)
    assert finish_all(queue) == [1, 2]


def test_what_stands_in_a_line_is_not_buried_by_the_sealing_of_a_batch(queue: SqlQueue) -> None:
    """The claim that meets it does it, and lets in the next."""
    put(queue, replace(ORDERED, max_attempts=1), 2, ordering_key="k")
    assert len(claim(queue)) == 1
    make_due(queue)
    assert queue.database.run("bury_spent", {"queue": "work", "buckets": [0, 1, 2, 3]}) == [(0,)]
    assert finish_all(queue) == [1]
    assert states(queue) == {0: "failed", 1: "succeeded"}


def test_a_transactional_batch_is_refused_whose_queue_is_given_turns_while_it_begins(queue: SqlQueue, url: str) -> None:
    """Its transaction would not see who was set aside behind its jobs."""
    put(queue, PLAIN, 2, ordering_key="k")
    with caller(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            f'INSERT INTO "{queue.database.schema}".batch (id, key, queue, state, lease_until, owner)'
            " VALUES (gen_random_uuid(), 'k', 'work', 'sealing', now(), 'other')".encode()
        )
        sealed = pool.submit(seal, queue, mode=Mode.TRANSACTIONAL)
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%.batch %%'"
        until(lambda: value(queue, blocked), "the wait for the batch of the same key")
        queue.create_queue(ORDERED)
        other.rollback()
        with pytest.raises(InvalidInput, match="queue 'work' is ordered or has limits"):
            sealed.result(PATIENCE)
    assert finish_all(queue) == [0, 1]


@pytest.mark.parametrize("write", ["complete", "requeue", "hold"])
def test_an_end_in_autocommit_is_undone_if_the_next_cannot_be_let_in(queue: SqlQueue, url: str, write: str) -> None:
    verbs: dict[str, Callable[[ClaimedJob, Executor | None], object]] = {
        "complete": lambda job, executor: queue.complete([job], executor=executor),
        "requeue": lambda job, executor: queue.requeue([(job, Retry("again", after=3_600))], executor=executor),
        "hold": lambda job, executor: queue.hold([(job, "look")], executor=executor),
    }
    put(queue, LIMITED, 2, ordering_key="k")
    (first,) = claim(queue, 1)
    claim(queue)
    before = states(queue)
    with caller(url) as locking, caller(url, autocommit=True) as theirs:
        locking.execute(f'SELECT FROM "{queue.database.schema}".job WHERE id <> %s FOR UPDATE'.encode(), (first.id,))
        theirs.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            verbs[write](first, queue.database.within(theirs))
    assert states(queue) == before
    verbs[write](first, None)
    assert waiting(queue) == 0
