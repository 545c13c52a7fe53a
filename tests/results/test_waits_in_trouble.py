"""Waiting for the ends of jobs where notifications, connections, processes or servers are lost: nothing is left over."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from uuid import UUID

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, UnknownJob
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.results import Results, waits
from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE, sized
from tests.results.support import FOLLOWERS, LONG, enqueued, heard, listeners, waiting
from tests.support import OwnServer, Work, claim, narrow_queue, own_server, rows, until, value
from tests.support.few import few


def test_where_no_notification_comes(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    """As behind a pooler that lends connections for a transaction: it takes the LISTEN, and nothing is heard."""
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 1)
        rows(queue, "DELETE FROM {s}.follower")
        queue.complete(claim(queue))
        assert wait.result(PATIENCE).succeeded


def test_where_listening_is_refused(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = enqueued(queue, spec)
    rows(queue, "ALTER FUNCTION {s}.listen_to_ends() RENAME TO nobody_may")
    try:
        with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
            until(lambda: "no notifications are received (the database refused: function" in caplog.text)
            queue.complete(until(lambda: claim(queue)))
            assert wait.result(PATIENCE).succeeded
    finally:
        rows(queue, "ALTER FUNCTION {s}.nobody_may() RENAME TO listen_to_ends")
    assert not heard(results)


def test_where_no_connection_is_to_be_had(
    url: str,
    queue: SqlQueue,
    spec: QueueSpec[Work],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (id,) = enqueued(queue, spec)
    with (
        narrow_queue(url, queue.database.schema) as narrow,
        Results(narrow) as results,
        contextlib.ExitStack() as others,
    ):
        begin = results._end_listener._begin

        def begin_without() -> None:
            """Somebody else takes the only connection between the first read and the listening."""
            others.enter_context(narrow.database.connection())
            begin()

        monkeypatch.setattr(results._end_listener, "_begin", begin_without)
        with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
            until(lambda: "connections to" in caplog.text and "became free in time" in caplog.text)
            others.close()
            queue.complete(until(lambda: claim(queue)))
            assert wait.result(PATIENCE).succeeded


@pytest.mark.usefixtures("rare")
def test_a_lost_connection_is_made_again(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    first, second = enqueued(queue, spec, 2)
    jobs = {job.id: job for job in claim(queue)}
    with (
        waiting(lambda: results.wait(first, timeout_seconds=LONG)) as wait,
        waiting(lambda: results.wait(second, timeout_seconds=LONG)) as later,
    ):
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 2)
        (pid,) = listeners(queue)
        assert value(queue, "SELECT pg_terminate_backend(%s)", pid)
        queue.complete([jobs[first]])
        assert wait.result(PATIENCE).succeeded
        until(lambda: listeners(queue) not in ([], [pid]))
        until(lambda: heard(results))
        queue.complete([jobs[second]])
        assert later.result(PATIENCE).succeeded


def claimed_again(queue: SqlQueue) -> list[ClaimedJob]:
    """Claimed, once the connections that the crash ended have been met."""
    with contextlib.suppress(DatabaseUnavailable):
        return claim(queue)
    return []


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with own_server() as made:
        yield made


def test_a_server_that_crashed_is_waited_for(
    server: OwnServer, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_PATIENCE_SECONDS", LONG)
    with SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(spec)
        (id,) = enqueued(queue, spec)
        with Results(queue) as results, waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
            until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
            server.stop()
            until(lambda: not heard(results))
            server.start()
            assert not wait.done()
            queue.complete(until(lambda: claimed_again(queue)))
            assert wait.result(PATIENCE).succeeded


def test_a_job_that_is_removed_meanwhile(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    (id,) = enqueued(queue, spec)
    with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: value(queue, FOLLOWERS) == 1)
        rows(queue, "DELETE FROM {s}.job")
        with pytest.raises(UnknownJob):
            wait.result(PATIENCE)
    assert value(queue, FOLLOWERS) == 0


def test_maintenance_forgets_waits_that_died(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    ids = enqueued(queue, spec, 2)
    with waiting(lambda: results.wait_many(ids, timeout_seconds=LONG)) as wait:
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
        wait.result(PATIENCE)


class Waiters:
    """Waits in processes of their own."""

    def __init__(self, url: str, queue: SqlQueue) -> None:
        self._url = url
        self._queue = queue
        self.started: list[subprocess.Popen[str]] = []

    def start(self, how: str, ids: list[UUID]) -> "subprocess.Popen[str]":
        """Begins to wait; returns the process once it does."""
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


@pytest.mark.parametrize("how", few(["listening", "polling"], 1))
def test_in_other_processes(waiters: Waiters, queue: SqlQueue, spec: QueueSpec[Work], how: str) -> None:
    ids = enqueued(queue, spec, 6)
    processes = [waiters.start(how, ids[n % 3 :]) for n in range(sized(2, 4))]
    waits = sum(6 - n % 3 for n in range(len(processes)))
    if how == "listening":
        until(lambda: value(queue, FOLLOWERS) == waits and len(listeners(queue)) == len(processes))
    for job in claim(queue):
        queue.finish([Ending(job, ArchiveState.SUCCEEDED, str(job.id))])
    for n, process in enumerate(processes):
        said = process.communicate(timeout=PATIENCE)[0].splitlines()
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
        victim.wait(PATIENCE)
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
    assert process.wait(PATIENCE) != 0
    assert value(queue, FOLLOWERS) == 0


def test_an_interrupt_between_the_note_and_its_answer_leaves_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = enqueued(queue, spec)
    run = queue.database.run

    def interrupted(name: str, parameters: dict[str, object]) -> object:
        answer = run(name, parameters)
        if name == "follow":
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(queue.database, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            results.wait(id, timeout_seconds=LONG)
    assert value(queue, FOLLOWERS) == 0


def test_a_closed_one_still_polls(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (id,) = enqueued(queue, spec)
    results = Results(queue)
    with waiting(lambda: results.wait(id, timeout_seconds=LONG)) as wait:
        until(lambda: heard(results) and value(queue, FOLLOWERS) == 1)
        results.close()
        assert not heard(results)
        queue.complete(claim(queue))
        assert wait.result(PATIENCE).succeeded


@pytest.mark.parametrize("lost_at", ["INSERT", "DELETE"], ids=["the new one", "the old one"])
def test_a_renewal_that_fails_is_repeated_and_leaves_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results, monkeypatch: pytest.MonkeyPatch, lost_at: str
) -> None:
    ids = enqueued(queue, spec)
    wait = waits.Wait(results.outcomes, queue.database, ids, timeout_seconds=None, notified=True)
    assert not wait.poll()
    assert not wait.poll()
    ((first,),) = rows(queue, "SELECT id FROM {s}.follower")
    with monkeypatch.context() as patched, ending_sessions(queue, lost_at):
        patched.setattr(waits, "_REGISTERED_SECONDS", 0.0)
        assert not wait.poll()
    assert (first,) in rows(queue, "SELECT id FROM {s}.follower")
    assert not wait.poll()
    ((second,),) = rows(queue, "SELECT id FROM {s}.follower")
    assert second != first
    with monkeypatch.context() as patched:
        patched.setattr(waits, "_REGISTERED_SECONDS", 0.0)
        assert not wait.poll()
    assert value(queue, FOLLOWERS) == 1
    wait.unfollow()
    assert value(queue, FOLLOWERS) == 0


@contextlib.contextmanager
def ending_sessions(queue: SqlQueue, event: str) -> Iterator[None]:
    """A database that loses each connection that registers waits, or unregisters them, as long as the block runs."""
    rows(
        queue,
        "CREATE FUNCTION {s}.gone() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
    )
    rows(queue, f"CREATE TRIGGER gone BEFORE {event} ON {{s}}.follower EXECUTE FUNCTION {{s}}.gone()")
    try:
        yield
    finally:
        rows(queue, "DROP TRIGGER gone ON {s}.follower")
        rows(queue, "DROP FUNCTION {s}.gone")
