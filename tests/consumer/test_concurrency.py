"""Jobs worked on side by side: as many as there are slots, claimed when they can begin, each ended once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Cancel, Consumer, Done, Job, NewJob, QueueSpec, Reject, Retry, SqlQueue
from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until, value
from tests.support.meeting import handlers

PROJECT = Path(__file__).resolve().parents[2]
SLOTS = 4


def fill(queue: SqlQueue, spec: QueueSpec[Work], count: int) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(count)])


def running(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'running' AND available_at > now()"))


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_as_many_as_there_are_slots_are_worked_on_and_no_more_is_claimed(
    queue: SqlQueue, spec: QueueSpec[Work], kind: str
) -> None:
    together = threading.Barrier(SLOTS, timeout=PATIENCE)
    claimed: list[int] = []

    def meeting(n: int) -> None:
        together.wait()
        claimed.append(running(queue))
        together.wait()

    fill(queue, spec, 5 * SLOTS)
    summary = Consumer(queue, spec, handlers(meeting)[kind], concurrency=SLOTS).drain()
    assert (summary.claimed, summary.succeeded, summary.stale) == (5 * SLOTS, 5 * SLOTS, 0)
    assert max(claimed) == SLOTS
    assert value(queue, "SELECT count(DISTINCT (result->>'n')::int) FROM {s}.job_archive") == 5 * SLOTS


COUNTED = "jobs side by side"
"""The application's name of the connections that are counted."""


@pytest.fixture
def taken_by(fresh: SqlQueue) -> Callable[[], set[int]]:
    """A queue whose claims are noted; gives the server processes that have claimed."""
    rows(fresh, "CREATE TABLE {s}.taken (backend integer)")
    rows(
        fresh,
        "CREATE FUNCTION {s}.note_taken() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN INSERT INTO {s}.taken VALUES (pg_backend_pid()); RETURN NULL; END $$",
    )
    rows(
        fresh,
        "CREATE TRIGGER notes AFTER UPDATE OF state ON {s}.job FOR EACH ROW"
        " WHEN (OLD.state = 'queued' AND NEW.state = 'running') EXECUTE FUNCTION {s}.note_taken()",
    )
    return lambda: {pid for (pid,) in rows(fresh, "SELECT backend FROM {s}.taken")}


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_one_connection_claims_for_all_slots_and_one_listens(
    fresh: SqlQueue, spec: QueueSpec[Work], url: str, taken_by: Callable[[], set[int]], kind: str
) -> None:
    """Two in all, however many jobs are worked on; a lease that is extended, and maintenance, may take one for a moment."""
    slots, count = 8, 40
    seen: list[set[int]] = []

    def connections() -> set[int]:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        return {pid for (pid,) in rows(fresh, query, COUNTED)}

    def meeting(n: int) -> None:
        seen.append(connections())

    with SqlQueue(url, schema=fresh.database.schema, application_name=COUNTED) as queue:
        consumer = Consumer(queue, spec, handlers(meeting)[kind], concurrency=slots, maintain=False)
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(consumer.drain, linger_seconds=3_600)
            try:
                idle = until(lambda: found if len(found := connections()) == 2 else None, "the connection that listens")
                fill(fresh, spec, count)
                until(lambda: fresh.depth("work").live == 0, "the end of all jobs")
                seen.append(connections())
            finally:
                consumer.stop()
            assert working.result().succeeded == count
    assert seen == [idle] * len(seen)
    assert len(seen) == count + 1
    assert len(taken_by()) == 1
    assert taken_by() < idle


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_free_slot_is_filled_while_another_job_goes_on(queue: SqlQueue, spec: QueueSpec[Work], kind: str) -> None:
    others = threading.Semaphore(0)

    def meeting(n: int) -> None:
        if n == 0:
            for _ in range(9):
                assert others.acquire(timeout=PATIENCE), "the slow job blocks the others"
        else:
            others.release()

    fill(queue, spec, 10)
    assert Consumer(queue, spec, handlers(meeting)[kind], concurrency=2).drain().succeeded == 10


def test_outcomes_of_each_kind_and_payloads_that_do_not_fit(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def handle(job: Job[Work]) -> Any:
        if job.payload.n == 1:
            raise ValueError("no")
        return {2: Reject("no"), 3: Retry("again", after=3_600)}.get(job.payload.n)

    fill(queue, spec, 6)
    rows(queue, "UPDATE {s}.job SET payload = '{{}}' WHERE (payload->>'n')::int = 5")
    rows(queue, "UPDATE {s}.job SET max_attempts = 1 WHERE (payload->>'n')::int = 1")
    summary = Consumer(queue, spec, handle, concurrency=3).drain()
    assert (summary.claimed, summary.succeeded, summary.failed, summary.retried) == (6, 2, 3, 1)


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_stopped_drain_ends_what_it_has_begun_and_claims_nothing_more(
    queue: SqlQueue, spec: QueueSpec[Work], kind: str
) -> None:
    consumer: Consumer[Work]

    def meeting(n: int) -> None:
        consumer.stop()

    fill(queue, spec, 20)
    consumer = Consumer(queue, spec, handlers(meeting)[kind], concurrency=SLOTS)
    summary = consumer.drain()
    assert 1 <= summary.succeeded <= SLOTS
    assert summary.claimed == summary.succeeded + summary.released
    depth = queue.depth("work")
    assert (depth.running, depth.ready) == (0, 20 - summary.succeeded)


def test_an_interrupt_cancels_the_handlers_and_waits_for_them(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    begun = threading.Barrier(3, timeout=PATIENCE)
    outcomes = [Done(), Cancel("the consumer stops")]

    def handle(job: Job[Work]) -> Done | Cancel:
        begun.wait()
        until(lambda: job.cancelled, "the word that the job is not wanted any more")
        return outcomes.pop()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    fill(queue, spec, 10)
    threading.Thread(target=interrupt, daemon=True).start()
    consumer = Consumer(queue, spec, handle, concurrency=2)
    with pytest.raises(KeyboardInterrupt):
        consumer.drain()
    assert (consumer.summary.succeeded, consumer.summary.cancelled) == (1, 0)
    assert consumer.summary.released + 1 == consumer.summary.claimed
    depth = queue.depth("work")
    assert (depth.running, depth.ready) == (0, 9)


def test_async_jobs_of_an_interrupted_drain_are_given_back(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    begun: list[int] = []

    async def handle(job: Job[Work]) -> Done:
        begun.append(job.payload.n)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(3_600)
        return Done()

    fill(queue, spec, 10)
    with pytest.raises(KeyboardInterrupt):
        Consumer(queue, spec, handle, concurrency=2).drain()
    depth = queue.depth("work")
    assert (depth.running, depth.ready) == (0, 10)


@pytest.mark.parametrize("concurrency", [None, 2], ids=["a batch at a time", "slots"])
def test_an_async_handler_is_cancelled_at_the_timeout_of_its_job(
    queue: SqlQueue, spec: QueueSpec[Work], concurrency: int | None
) -> None:
    """Its place is free then; a handler may still end its job as it likes."""

    async def handle(job: Job[Work]) -> Done | None:
        match job.payload.note:
            case "hang":
                await asyncio.sleep(3_600)
            case "tidy up":
                try:
                    await asyncio.sleep(3_600)
                except asyncio.CancelledError:
                    return Done({"n": job.payload.n})
            case "fail":
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(3_600)
        return None

    for n, note in enumerate(["hang", "hang", "tidy up", "tidy up"]):
        queue.enqueue(spec, NewJob(Work(n=n, note=note), timeout_seconds=0.05, max_attempts=1))
    queue.enqueue(spec, NewJob(Work(n=4, note="fail"), max_attempts=1))
    queue.enqueue_many(spec, [Work(n=n) for n in range(5, 10)])
    summary = Consumer(queue, spec, handle, concurrency=concurrency).drain()
    assert (summary.succeeded, summary.failed, summary.stale) == (7, 3, 0)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive WHERE result IS NOT NULL") == 2
    errors = dict(rows(queue, "SELECT (payload->>'n')::int, error FROM {s}.job_archive WHERE state = 'failed'"))
    assert set(errors) == {0, 1, 4}
    assert errors[0] == errors[1] == "the handler was cancelled at the time-out of its job"
    assert errors[4].startswith("TimeoutError")


@pytest.mark.parametrize("strategy", ["round_robin", "fifo", "fanout", "assign", "token"])
def test_what_may_have_killed_its_consumer_runs_with_nothing_beside_it(
    queue: SqlQueue, spec: QueueSpec[Work], strategy: str
) -> None:
    lock, at_work, beside = threading.Lock(), set[int](), dict[int, int]()

    def handle(job: Job[Work]) -> Done:
        with lock:
            at_work.add(job.payload.n)
            for n in at_work:
                beside[n] = max(beside.get(n, 0), len(at_work))
        threading.Event().wait(0.01)
        with lock:
            at_work.discard(job.payload.n)
        return Done()

    queue.create_queue(QueueSpec("work", Work, bucket_count=4, strategy=strategy))
    fill(queue, spec, 20)
    rows(
        queue,
        "UPDATE {s}.job SET state = 'running', claimed_by = 'dead', lease_no = 1, attempt = 1"
        " WHERE (payload->>'n')::int IN (3, 7, 8)",
    )
    assert Consumer(queue, spec, handle, concurrency=SLOTS).drain().succeeded == 20
    assert {n: beside[n] for n in (3, 7, 8)} == {3: 1, 7: 1, 8: 1}


DYING = """
import os, signal, sys, time
from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from tests.support import Work

def die(job):
    if job.payload.n == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)

with SqlQueue(sys.argv[1], schema=sys.argv[2]) as queue:
    Consumer(queue, QueueSpec("work", Work, lease_seconds=300), die, concurrency=4).drain()
"""


@pytest.mark.prove
def test_a_killed_consumer_loses_nothing_and_spends_no_attempt_of_those_beside(
    url: str, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), max_attempts=2) for n in range(8)])
    deaths = 0
    for _ in range(6):
        command = [sys.executable, "-c", DYING, url, queue.database.schema]
        done = subprocess.run(command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        deaths += done.returncode != 0
        rows(queue, "UPDATE {s}.job SET available_at = now() WHERE state = 'running'")
        if not queue.depth("work").live:
            break
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 7, "failed": 1}
    assert deaths == 3, "once beside others, which spends nothing, and twice alone"
    (letter,) = queue.dead_letters("work")
    assert "its consumer died or hung" in (letter.error or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0; it must be 1 to 1,000"),
        ({"concurrency": 2, "mode": "transactional"}, "one connection"),
        ({"concurrency": 2, "batch": True}, "a handler of a batch"),
    ],
)
def test_where_it_cannot_be_it_is_refused(
    queue: SqlQueue, spec: QueueSpec[Work], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Consumer(queue, spec, lambda job: None, **arguments)


def test_a_job_that_comes_while_the_process_is_idle_leaves_the_other_slots_free(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the claim of jobs that share the process and the one of a job that must not."""
    together = threading.Barrier(2, timeout=PATIENCE)
    looked: list[int] = []
    take = Claimer.take_for_slots

    def take_and_enqueue(claimer: Claimer, free: int, joining: bool) -> list[ClaimedJob]:
        jobs = take(claimer, free, joining)
        if joining and not looked:
            looked.append(len(jobs))
            queue.enqueue(spec, Work(n=1))
        return jobs

    def work(job: Job[Work]) -> None:
        if job.payload.n == 1:
            queue.enqueue(spec, Work(n=2))
        together.wait()

    monkeypatch.setattr(Claimer, "take_for_slots", take_and_enqueue)
    summary = Consumer(queue, spec, work, concurrency=2).drain()
    assert (looked, summary.claimed, summary.succeeded) == ([0], 2, 2)


def test_what_has_ended_when_an_error_ends_the_drain_is_written(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """Also what has ended in the last moments of the event loop, at which nothing has looked yet."""
    fill(queue, spec, 10 * SLOTS)
    ended = []

    async def handle(job: Job[Work]) -> None:
        for _ in range(job.payload.n % SLOTS + SLOTS):
            await asyncio.sleep(0)
        ended.append(job.id)

    def begin_no_others(jobs: Sequence[ClaimedJob]) -> None:
        if ended:
            raise ZeroDivisionError

    consumer = Consumer(queue, spec, handle, concurrency=5 * SLOTS, on_claim=begin_no_others)
    with pytest.raises(ZeroDivisionError):
        consumer.drain()
    assert {id for (id,) in rows(queue, "SELECT id FROM {s}.job_archive")} == set(ended)
    assert consumer.summary.succeeded == len(ended)
    assert running(queue) == 0
