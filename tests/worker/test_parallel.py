"""Several queues in one process, of which one has several jobs at a time: none waits for another."""

from pathlib import Path

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.support import Work, own_server, rows, states, until
from tests.worker import jobs
from tests.worker.conftest import Shop, Worker

OTHER = "tests.worker.jobs:handle_other"


def running(queue: SqlQueue) -> dict[str, int]:
    query = "SELECT queue, count(*) FROM {s}.job WHERE state = 'running' GROUP BY queue"
    return dict(rows(queue, query))


def begun(shop: Shop, worker: Worker) -> dict[str, int]:
    """How many jobs of each queue have begun and not ended."""
    assert worker.process.poll() is None, worker.errors
    counts: dict[str, int] = {}
    for event, count in (("begun", 1), ("done", -1)):
        for line in shop.history(event):
            counts[line["queue"]] = counts.get(line["queue"], 0) + count
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("processes", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_a_queue_whose_jobs_wait_keeps_no_other_queue_from_its_own(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    queue.create_queue(jobs.other)
    queue.enqueue_many(spec, [Work(n=n, note="wait") for n in range(8)])
    queue.enqueue_many(jobs.other, [Work(n=n) for n in range(100, 300)])
    worker = shop.start(OTHER, "--every", "100ms", *processes, handler="tests.worker.jobs:handle_async")
    until(lambda: len(shop.numbers("done")) == 200 and begun(shop, worker) == {"work": 3}, "all of the other queue's")
    until(lambda: running(queue) == {"work": 3}, "the end of what the handlers have done")
    queue.enqueue(jobs.other, Work(n=300))
    until(lambda: 300 in shop.numbers("done"), "a job that came later")
    worker.signal()
    worker.event("stopping")
    shop.go.touch()
    assert worker.ended() == 0, worker.errors
    assert shop.numbers("begun") == shop.numbers("done")
    ended = len([n for n in shop.numbers("done") if n < 100])
    # A worker says that it stops before its queues hear of it, which may have begun others by then.
    assert ended >= 3
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": ended}
    assert (running(queue), queue.depth("work").ready) == ({}, 8 - ended)
    last = {line["queue"]: line for line in worker.events("stats")}
    assert (last["work"]["succeeded"], last["other"]["succeeded"]) == (ended, 201)


def test_each_handler_has_as_many_jobs_at_a_time_as_were_asked_for(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.create_queue(jobs.other)
    for each in (spec, jobs.other):
        queue.enqueue_many(each, [Work(n=n, note="wait") for n in range(8)])
    worker = shop.start(OTHER, "--concurrency", "2", "--drain")
    until(lambda: begun(shop, worker) == {"work": 2, "other": 2}, "two jobs of each")
    assert running(queue) == {"work": 2, "other": 2}
    shop.go.touch()
    assert worker.ended() == 0, worker.errors
    assert (
        queue.archived("work", since_seconds=3_600) == queue.archived("other", since_seconds=3_600) == {"succeeded": 8}
    )


def test_a_drain_ends_when_no_queue_has_jobs_left_that_its_handlers_made(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=12))
    worker = shop.start("tests.worker.jobs:pass_to_work", "--drain", handler="tests.worker.jobs:pass_to_other")
    assert worker.ended() == 0, worker.errors
    assert shop.numbers("done") == list(range(13))
    assert states(queue) == dict.fromkeys(range(13), "succeeded")


@pytest.mark.prove
def test_an_error_of_one_queue_ends_them_all_in_good_order(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(jobs.other)
    queue.enqueue_many(spec, [Work(n=n, note="wait") for n in range(5)])
    worker = shop.start(OTHER, handler="tests.worker.jobs:handle_async")
    until(lambda: begun(shop, worker) == {"work": 3}, "three jobs")

    def deleted() -> bool:
        try:
            for table, column in (("waiter", "queue"), ("bucket", "queue"), ("queue", "name")):
                rows(queue, f"DELETE FROM {{s}}.{table} WHERE {column} = 'other'")
        except psycopg.errors.ForeignKeyViolation:
            # Its consumer has said again meanwhile that it waits.
            return False
        return True

    until(deleted, "the end of the other queue")
    shop.go.touch()
    assert worker.ended() == 5
    assert "there is no queue 'other'" in worker.errors
    assert shop.numbers("begun") == shop.numbers("done")
    assert (running(queue), queue.depth("work").ready + len(shop.numbers("done"))) == ({}, 5)


def test_what_cannot_be_interrupted_is_left_and_all_jobs_are_given_back(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.create_queue(jobs.other)
    queue.enqueue_many(spec, [Work(n=n, note="wait") for n in range(3)])
    queue.enqueue(jobs.other, Work(n=3, note="wait"))
    worker = shop.start(*(OTHER, "--drain-timeout", "0", "--grace", "1s"), handler="tests.worker.jobs:handle_async")
    until(lambda: begun(shop, worker) == {"work": 3, "other": 1}, "jobs of both")
    assert worker.stopped() == 7
    assert worker.events("abandoned")
    query = "SELECT count(*) FROM {s}.job WHERE state = 'queued' AND available_at <= now() AND attempt = 0"
    assert rows(queue, query) == [(4,)]


def test_a_database_that_goes_away_is_waited_for_by_each(spec: QueueSpec[Work], tmp_path: Path) -> None:
    with own_server(settings=["fsync=off"]) as server, SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(spec)
        queue.create_queue(jobs.other)
        shop = Shop(queue, server.url, tmp_path)
        try:
            worker = shop.start(OTHER, "--lease", "500ms", "--concurrency", "2")
            queue.enqueue(spec, Work(n=0))
            until(lambda: states(queue) == {0: "succeeded"}, "the first job")
            server.stop()
            worker.event("database_away", times=2)
            server.start()
            queue.enqueue(spec, Work(n=1))
            queue.enqueue(jobs.other, Work(n=2))
            until(lambda: states(queue) == dict.fromkeys(range(3), "succeeded"), "jobs of both")
            assert worker.stopped() == 0, worker.errors
        finally:
            shop.end()
