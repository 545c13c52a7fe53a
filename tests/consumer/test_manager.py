"""Managers, who assign the jobs of a queue to its workers."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from tests.gate.patience import sized
from tests.support import Work, make_due, numbers, rows, until, value


def test_two_managers_grant_every_job_to_one_worker(url: str, queue: SqlQueue) -> None:
    jobs = sized(200, 600)
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(jobs)])
    seen: Counter[int] = Counter()
    stopping = threading.Event()
    consumers: list[Consumer[Work]] = []

    def work(name: str) -> int:
        with (
            SqlQueue(url, schema=queue.database.schema) as own,
            AssignedSource(own, "work", name) as source,
        ):
            consumer = Consumer(
                own, spec, lambda job: seen.update([job.payload.n]), source=source, worker=name, batch_size=20
            )
            consumers.append(consumer)
            return consumer.drain(linger_seconds=3_600).succeeded

    with ThreadPoolExecutor(5) as pool:
        workers = [pool.submit(work, f"worker {n}") for n in range(3)]
        # One that came late would find everything granted to the others.
        until(lambda: value(queue, "SELECT count(*) FROM {s}.worker") == 3, "the workers")
        managers = [pool.submit(Manager(queue, "work").run, stopping, poll_seconds=0.02) for _ in range(2)]
        until(lambda: len(seen) == jobs, "the end of all jobs")
        for consumer in consumers:
            consumer.stop()
        done = [worker.result() for worker in workers]
        stopping.set()
        assert sum(manager.result() for manager in managers) == jobs
    assert sum(done) == jobs
    assert set(seen.values()) == {1}
    assert all(count > 0 for count in done)


def test_a_manager_remembers_what_it_swept(queue: SqlQueue) -> None:
    spec = QueueSpec("wide", Work, bucket_count=16, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(16 * 40)])
    manager, worker = Manager(queue, "wide"), AssignedSource(queue, "wide", "w")

    def granted() -> set[int]:
        taken: set[int] = set()
        for _ in range(16):
            assert worker.take(5) == []
            assert manager.assign() == 5
            taken |= set(numbers(worker.take(5)))
        return taken

    granted()
    late = [NewJob(Work(n=n), run_at=datetime.now(UTC) - timedelta(hours=1)) for n in range(1_000, 1_016)]
    queue.enqueue_many(spec, late)
    rows(
        queue,
        "UPDATE {s}.job SET bucket = row.no - 1 FROM (SELECT id, row_number() OVER () AS no FROM {s}.job"
        " WHERE CAST(payload ->> 'n' AS integer) >= 1000) AS row WHERE row.id = job.id",
    )
    manager.hints.sweep_next()
    assert granted() >= set(range(1_000, 1_016))


def test_what_a_worker_never_took_goes_to_another(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    manager = Manager(queue, "work")
    gone, there = AssignedSource(queue, "work", "gone"), AssignedSource(queue, "work", "there")
    assert gone.take(10) == []
    assert manager.assign() == 4
    assert there.take(10) == []
    assert manager.assign() == 0
    make_due(queue)
    rows(queue, "UPDATE {s}.worker SET expires_at = now() WHERE name = 'gone'")
    taken: list[ClaimedJob] = []
    while manager.assign():
        (job,) = there.take(10)
        assert (job.attempt, job.alone) == (1, True)
        taken.append(job)
    assert len(taken) == 4
    assert gone.take(10) == []
    queue.complete(taken)
    assert value(queue, "SELECT count(*) FROM {s}.assignment") == 0


def test_a_worker_that_leaves_gives_back_what_it_did_not_take(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    with AssignedSource(queue, "work", "w") as source:
        assert source.take(10) == []
        assert Manager(queue, "work").assign() == 4
    assert queue.depth("work").ready == 4
    assert value(queue, "SELECT count(*) FROM {s}.worker") == 0


def test_a_manager_is_for_its_strategy(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with pytest.raises(InvalidInput, match="has the strategy 'round_robin'"):
        Manager(queue, "work")
