"""Waiting for the ends of jobs: woken where the database can, looking where it cannot, and leaving nothing behind."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import QueueSpec, Retry, SqlQueue, statements
from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, QueueError, UnknownJob, WaitTimedOut
from dagster_sqlqueue.model import ArchiveState, ClaimedJob
from dagster_sqlqueue.results import Results, waits, watching
from dagster_sqlqueue.selection import Selection
from tests.cli.support import PROJECT
from tests.core.support import OwnServer, Work, claim, own_server, rows, until, value

FOLLOWERS = "SELECT count(*) FROM {s}.follower"
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query = %s"
SOON = 10.0
"""Less than it takes a wait that listens until its first look, where that is `rare`."""


def enqueued(queue: SqlQueue, spec: QueueSpec[Work], count: int = 1) -> list[UUID]:
    ids = [queue.enqueue(spec, Work(n=n)) for n in range(count)]
    return [id for id in ids if id]


def listeners(queue: SqlQueue) -> list[int]:
    return [row[0] for row in rows(queue, LISTENERS, statements.load("ended_listen", queue.database.schema))]


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that listen look only after half a minute: what ends them sooner is the notification."""
    monkeypatch.setattr(waits, "_FIRST_LISTENING_SECONDS", 30.0)
    monkeypatch.setattr(waits, "_LAST_LISTENING_SECONDS", 30.0)


@contextmanager
def waiting(wait: Callable[[], Any]) -> "Iterator[Future[Any]]":
    """A wait in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(wait)


def heard(results: Results) -> bool:
    return results._ends.listening


@pytest.mark.usefixtures("rare")
def test_a_wait_is_woken_by_the_end(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    (job,) = claim(queue)
    with waiting(lambda: (results.wait(id, timeout_seconds=30), time.monotonic())) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"n": 7})])
        ended = time.monotonic()
        outcome, woken = wait.result(20)
    assert (outcome.state, outcome.result) == ("succeeded", {"n": 7})
    assert woken - ended < SOON
    assert value(queue, FOLLOWERS) == 0


@pytest.mark.parametrize("state", list(ArchiveState))
def test_by_every_end(queue: SqlQueue, spec: QueueSpec[Work], results: Results, state: ArchiveState) -> None:
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=30)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 1)
        (job,) = claim(queue)
        queue.requeue([(job, Retry("again", 0))])
        assert not wait.done()
        (job,) = claim(queue)
        queue.finish([Ending(job, state, error="x")])
        assert wait.result(20).state == state


@pytest.mark.usefixtures("rare")
def test_by_an_operator(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        queue.cancel("work", Selection(ids=[id]), reason="not wanted")
        ended = time.monotonic()
        assert wait.result(20).error == "not wanted"
        assert time.monotonic() - ended < SOON


def test_what_has_ended_needs_no_wait(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    queue.complete(claim(queue))
    assert results.wait(id).succeeded
    assert results.wait(id, timeout_seconds=0).succeeded
    assert listeners(queue) == []


def test_all_waits_of_a_process_share_one_connection(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 40)
    jobs = {job.id: job for job in claim(queue)}
    with ThreadPoolExecutor(40) as pool:
        begun = [pool.submit(results.wait, id, timeout_seconds=30) for id in ids]
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 40)
        assert len(listeners(queue)) == 1
        for id in ids:
            queue.finish([Ending(jobs[id], ArchiveState.SUCCEEDED, str(id))])
        assert [wait.result(20).result for wait in begun] == [str(id) for id in ids]
    assert len(listeners(queue)) == 1
    results.close()
    until(lambda: listeners(queue) == [])


def test_many_at_once(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 30)
    with waiting(lambda: results.wait_many([*reversed(ids), ids[0]], timeout_seconds=30)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 30)
        queue.complete(claim(queue, 29))
        (last,) = claim(queue)
        assert not wait.done()
        queue.finish([Ending(last, ArchiveState.FAILED, error="x")])
        outcomes = wait.result(20)
    assert list(outcomes) == list(reversed(ids))
    assert sum(outcome.succeeded for outcome in outcomes.values()) == 29


def test_in_time_or_not(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 3)
    jobs = claim(queue)
    queue.complete(jobs[:1])
    queue.note_progress(jobs[1], 40, "sorting")
    with pytest.raises(WaitTimedOut, match=r"has not ended within 0\.3 seconds: it is running, 40 % done") as one:
        results.wait(jobs[1].id, timeout_seconds=0.3)
    assert isinstance(one.value, TimeoutError | QueueError)
    assert one.value.outcomes[jobs[1].id].progress.message == "sorting"
    with pytest.raises(WaitTimedOut, match="2 of 3 jobs have not ended") as many:
        results.wait_many(ids, timeout_seconds=0)
    assert list(many.value.outcomes) == ids
    assert sum(outcome.ended for outcome in many.value.outcomes.values()) == 1
    assert value(queue, FOLLOWERS) == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
def test_a_timeout_that_is_none(queue: SqlQueue, spec: QueueSpec[Work], results: Results, timeout: object) -> None:
    (id,) = enqueued(queue, spec)
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        results.wait(id, timeout_seconds=timeout)  # type: ignore[arg-type]


def test_without_listening(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (id,) = enqueued(queue, spec)
    with Results(queue, listen=False) as results, waiting(lambda: results.wait(id, timeout_seconds=30)) as wait:
        until(lambda: wait.running())
        assert value(queue, FOLLOWERS) == 0
        assert listeners(queue) == []
        queue.complete(claim(queue))
        assert wait.result(20).succeeded


def test_where_no_notification_comes(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    """As behind a pooler that lends connections for a transaction: it takes the LISTEN, and nothing is heard."""
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=30)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 1)
        rows(queue, "DELETE FROM {s}.follower")
        queue.complete(claim(queue))
        assert wait.result(20).succeeded


def test_where_listening_is_refused(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = enqueued(queue, spec)
    rows(queue, "ALTER FUNCTION {s}.listen_to_ends() RENAME TO nobody_may")
    try:
        with waiting(lambda: results.wait(id, timeout_seconds=30)) as wait:
            until(lambda: "no notifications are heard (the database refused: function" in caplog.text)
            queue.complete(until(lambda: claim(queue)))
            assert wait.result(20).succeeded
    finally:
        rows(queue, "ALTER FUNCTION {s}.nobody_may() RENAME TO listen_to_ends")
    assert not heard(results)


def test_where_no_connection_is_to_be_had(url: str, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (id,) = enqueued(queue, spec)
    with (
        SqlQueue(url, schema=queue.database.schema, pool_size=2, connect_timeout=1) as narrow,
        narrow.database.connection(),
        Results(narrow) as results,
        waiting(lambda: results.wait(id, timeout_seconds=30)) as wait,
    ):
        with narrow.database.connection():
            until(lambda: results._ends._thread)
        queue.complete(until(lambda: claim(queue)))
        assert wait.result(20).succeeded


@pytest.mark.usefixtures("rare")
def test_a_lost_connection_is_made_again(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    first, second = enqueued(queue, spec, 2)
    jobs = {job.id: job for job in claim(queue)}
    with waiting(lambda: results.wait(first)) as wait, waiting(lambda: results.wait(second)) as later:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 2)
        (pid,) = listeners(queue)
        assert value(queue, "SELECT pg_terminate_backend(%s)", pid)
        queue.complete([jobs[first]])
        assert wait.result(20).succeeded
        until(lambda: listeners(queue) not in ([], [pid]))
        until(lambda: heard(results))
        queue.complete([jobs[second]])
        ended = time.monotonic()
        assert later.result(20).succeeded
        assert time.monotonic() - ended < SOON


def claimed_again(queue: SqlQueue) -> list[ClaimedJob]:
    """Claimed, once the connections that the crash ended have been met."""
    with contextlib.suppress(DatabaseUnavailable):
        return claim(queue)
    return []


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with own_server() as made:
        yield made


def test_a_server_that_crashed_is_waited_for(server: OwnServer, spec: QueueSpec[Work]) -> None:
    with SqlQueue(server.url, connect_timeout=2) as queue:
        queue.init()
        queue.create_queue(spec)
        (id,) = enqueued(queue, spec)
        with Results(queue) as results, waiting(lambda: results.wait(id, timeout_seconds=60)) as wait:
            until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
            server.stop()
            until(lambda: not heard(results))
            server.start()
            assert not wait.done()
            queue.complete(until(lambda: claimed_again(queue)))
            assert wait.result(20).succeeded


def test_a_job_that_is_removed_meanwhile(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=30)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 1)
        rows(queue, "DELETE FROM {s}.job")
        with pytest.raises(UnknownJob):
            wait.result(20)
    assert value(queue, FOLLOWERS) == 0


def test_the_connection_is_given_back_when_nobody_waits(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.05)
    for _ in range(2):
        (id,) = enqueued(queue, spec)
        with waiting(lambda id=id: results.wait(id, timeout_seconds=30)) as wait:  # type: ignore[misc]
            until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
            assert len(listeners(queue)) == 1
            queue.complete(claim(queue))
            assert wait.result(20).succeeded
        until(lambda: listeners(queue) == [] and not heard(results))


@pytest.mark.usefixtures("rare")
def test_no_wake_up_is_lost(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    """Jobs that end while their wait begins: every one is seen soon, without the look that comes later."""
    (warm,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(warm, timeout_seconds=30)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        queue.complete(claim(queue))
        wait.result(20)
    ids = enqueued(queue, spec, 150)
    jobs = {job.id: job for job in claim(queue, 200)}
    took: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        for id in ids:
            wait = pool.submit(results.wait, id, timeout_seconds=30)
            queue.complete([jobs[id]])
            ended = time.monotonic()
            assert wait.result(20).succeeded
            took.append(time.monotonic() - ended)
    assert max(took) < SOON
    assert value(queue, FOLLOWERS) == 0


@pytest.mark.usefixtures("rare")
def test_awaited(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 20)
    jobs = {job.id: job for job in claim(queue)}

    async def both() -> tuple[list[Any], float]:
        begun = [asyncio.create_task(results.await_outcome(id, timeout_seconds=30)) for id in ids[:10]]
        rest = asyncio.create_task(results.await_outcomes(ids[10:], timeout_seconds=30))
        while not heard(results) or await asyncio.to_thread(value, queue, FOLLOWERS) < 20:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(queue.complete, [jobs[id] for id in ids])
        ended = time.monotonic()
        done = [*await asyncio.gather(*begun), *(await rest).values()]
        return done, time.monotonic() - ended

    done, took = asyncio.run(both())
    assert [outcome.id for outcome in done] == ids
    assert all(outcome.succeeded for outcome in done)
    assert took < SOON
    assert value(queue, FOLLOWERS) == 0


def test_awaited_in_vain(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)

    async def cancelled() -> None:
        wait = asyncio.create_task(results.await_outcome(id))
        while await asyncio.to_thread(value, queue, FOLLOWERS) == 0:
            await asyncio.sleep(0.01)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    with pytest.raises(WaitTimedOut, match="it is queued"):
        asyncio.run(results.await_outcome(id, timeout_seconds=0.2))
    asyncio.run(cancelled())
    until(lambda: value(queue, FOLLOWERS) == 0)


def test_maintenance_forgets_waits_that_died(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 2)
    with waiting(lambda: results.wait_many(ids, timeout_seconds=60)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 2)
        rows(
            queue,
            "INSERT INTO {s}.follower (id, job_id, states, notify, created_at)"
            " SELECT gen_random_uuid(), gen_random_uuid(), '{{failed}}', true, now() - interval '25 hours'"
            " FROM generate_series(1, 2500)",
        )
        assert queue.maintain().expired_removed >= 2_500
        assert value(queue, FOLLOWERS) == 2
        queue.complete(claim(queue))
        wait.result(20)


class Waiters:
    """Waits in processes of their own."""

    def __init__(self, url: str, queue: SqlQueue) -> None:
        self._url = url
        self._queue = queue
        self.started: list[subprocess.Popen[str]] = []

    def start(self, how: str, ids: list[UUID]) -> "subprocess.Popen[str]":
        """Begins to wait; gives the process once it does."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.results.worker", self._url, self._queue.database.schema, how, *map(str, ids)],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        return process


@pytest.fixture
def waiters(url: str, queue: SqlQueue) -> Iterator[Waiters]:
    made = Waiters(url, queue)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["listening", "looking"])
def test_in_other_processes(waiters: Waiters, queue: SqlQueue, spec: QueueSpec[Work], how: str) -> None:
    ids = enqueued(queue, spec, 6)
    processes = [waiters.start(how, ids[n % 3 :]) for n in range(4)]
    if how == "listening":
        until(lambda: value(queue, FOLLOWERS) == 6 + 5 + 4 + 6 and len(listeners(queue)) == 4)
    for job in claim(queue):
        queue.finish([Ending(job, ArchiveState.SUCCEEDED, str(job.id))])
    for n, process in enumerate(processes):
        said = process.communicate(timeout=20)[0].splitlines()
        assert [json.loads(line) for line in said] == [
            {"id": str(id), "state": "succeeded", "result": str(id)} for id in ids[n % 3 :]
        ]
        assert process.returncode == 0
    assert value(queue, FOLLOWERS) == 0


def test_a_wait_that_is_killed_leaves_nothing_for_ever(
    waiters: Waiters, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    ended, lasting = enqueued(queue, spec, 2)
    victims = [waiters.start("listening", [ended, lasting]) for _ in range(2)]
    until(lambda: value(queue, FOLLOWERS) == 4 and len(listeners(queue)) == 2)
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
        victim.wait(20)
    until(lambda: listeners(queue) == [])
    assert value(queue, FOLLOWERS) == 4
    queue.complete([job for job in claim(queue) if job.id == ended])
    assert rows(queue, "SELECT DISTINCT job_id FROM {s}.follower") == [(lasting,)]
    rows(queue, "UPDATE {s}.follower SET created_at = created_at - interval '25 hours'")
    queue.maintain()
    assert value(queue, FOLLOWERS) == 0


def test_an_interrupted_wait_leaves_nothing(waiters: Waiters, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (id,) = enqueued(queue, spec)
    process = waiters.start("listening", [id])
    until(lambda: value(queue, FOLLOWERS) == 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert value(queue, FOLLOWERS) == 0


def test_a_closed_one_still_looks(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (id,) = enqueued(queue, spec)
    results = Results(queue)
    with waiting(lambda: results.wait(id, timeout_seconds=30)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        results.close()
        assert not heard(results)
        queue.complete(claim(queue))
        assert wait.result(20).succeeded
