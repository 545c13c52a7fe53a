"""Waking consumers: soon where somebody waits, silent where nobody does, and right without any of it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, UnknownQueue
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, narrow_queue, numbers, others_at, rows, until, value
from tests.support.armed import Armed


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters that stay known for longer than a test takes: none has to poll because it was forgotten."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.waiter.REGISTERED_SECONDS", 3_600.0)


def test_what_may_have_made_many_due_notifies_all_who_listen(queue: SqlQueue, url: str) -> None:
    """Whether they have nothing to do or are at work; and nobody, if nobody is known to listen."""
    with caller(url, autocommit=True) as connection:
        session = Armed(queue, connection)
        queue.pause("work")
        queue.resume("work")
        assert session.notifications() == []
        queue.database.run("waiter_register", {"queue": "work", "worker": "somebody", "seconds": 3_600.0})
        queue.pause("work")
        queue.resume("work")
        assert session.notifications() == [(queue.database.schema, "work")]


def test_a_waiter_is_woken_by_the_commit(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        assert not waiter.wait(0.05)
        with caller(url) as connection:
            queue.enqueue(spec, Work(n=1), connection=connection)
            assert not waiter.wait(0.05)
            timer = threading.Timer(0.05, connection.commit)
            timer.start()
            assert waiter.wait(PATIENCE)
            timer.join()
        assert numbers(claim(queue)) == [1]
        assert not waiter.wait(0.05)
    assert value(queue, "SELECT count(*) FROM {s}.waiter") == 0


def test_jobs_of_other_queues_do_not_wake(queue: SqlQueue) -> None:
    other = QueueSpec("other", Work)
    queue.create_queue(other)
    with Waiter(queue.catalog, "work", "w") as waiter, Waiter(queue.catalog, "other", "w") as theirs:
        queue.enqueue(other, Work(n=1))
        assert theirs.wait(PATIENCE)
        assert not waiter.wait(0.05)


def test_what_came_while_nobody_waited_is_returned_by_the_next_wait(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        queue.enqueue(spec, Work(n=1))
        assert waiter.wait(PATIENCE)
        assert not waiter.wait(0)


def test_a_waiter_says_in_time_that_it_still_waits(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.waiter.REGISTERED_SECONDS", 0.4)
    with Waiter(queue.catalog, "work", "w") as waiter:
        until_then = "SELECT max(expires_at) FROM {s}.waiter"
        first = value(queue, until_then)
        waiter.wait(0.6)
        assert value(queue, until_then) > first
        # One that was busy for longer than that was unknown for a while, and is to look for itself.
        until(lambda: rows(queue, "SELECT 1 FROM {s}.waiter WHERE expires_at < now()"), "the end of the registration")
        queue.enqueue(spec, Work(n=1))
        assert waiter.wait(PATIENCE)
        assert numbers(claim(queue)) == [1]


def test_another_thread_can_end_a_wait(queue: SqlQueue) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        with ThreadPoolExecutor(1) as pool:
            # By itself it comes back when the test has given up.
            wait = pool.submit(waiter.wait, 2 * PATIENCE)
            until(wait.running)
            waiter.wake()
            assert wait.result(PATIENCE) is False
        assert not waiter.wait(0.01)


def test_a_lost_connection_is_made_again(
    queue: SqlQueue, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        until(lambda: len(others_at(queue, "waiter_listen")) == 1, "the end of the connections of other tests")
        (pid,) = others_at(queue, "waiter_listen")
        assert value(queue, "SELECT pg_terminate_backend(%s)", pid)
        until(lambda: pid not in others_at(queue, "waiter_listen"), "the end of the connection")
        queue.enqueue(spec, Work(n=1))
        # The loss ends the wait: a claim shows whether the database is away.
        assert waiter.wait(PATIENCE)
        assert not waiter.listening
        # Back again, it may have missed something: worth a claim.
        until(lambda: waiter.wait(0.2), "a new connection")
        assert waiter.listening
        assert numbers(claim(queue)) == [1]
        queue.enqueue(spec, Work(n=2))
        assert waiter.wait(PATIENCE)
        assert numbers(claim(queue)) == [2]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "work: no notifications are received" in warning


def test_a_waiter_takes_no_connection_of_the_pool(url: str, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with SqlQueue(url, schema=queue.database.schema, pool_size=1) as narrow:
        with Waiter(narrow.catalog, "work", "w") as waiter:
            with narrow.database.connection():
                assert waiter.listening
            narrow.enqueue(spec, Work(n=1))
            assert waiter.wait(PATIENCE)
        until(lambda: not rows(queue, "SELECT 1 FROM {s}.waiter"), "the end of the registration")


def test_with_the_database_away_a_wait_is_a_wait(url: str, queue: SqlQueue) -> None:
    with narrow_queue(url, queue.database.schema) as narrow:
        waiter = Waiter(narrow.catalog, "work", "w")
        with narrow.database.connection():
            # No connection is to be had, as if the server were away.
            assert not waiter.wait(0.05)
            assert not waiter.listening
        waiter.close()


@pytest.mark.parametrize(("name", "worker"), [("No Queue", "w"), ("work", "")])
def test_a_waiter_of_nothing_is_refused(queue: SqlQueue, name: str, worker: str) -> None:
    with pytest.raises(InvalidInput):
        Waiter(queue.catalog, name, worker)


def test_a_waiter_of_a_missing_queue_gets_an_error(queue: SqlQueue) -> None:
    waiter: Any = Waiter(queue.catalog, "missing", "w")
    with pytest.raises(UnknownQueue, match="there are: work"), waiter:
        pass
    waiter.close()


def test_a_database_that_is_away_at_the_beginning_is_tried_again_by_the_wait(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failures = queue.database.run, [DatabaseUnavailable("cannot use the database: it is away")]

    def away_once(name: str, parameters: Any) -> Any:
        if name == "waiter_register" and failures:
            raise failures.pop()
        return run(name, parameters)

    monkeypatch.setattr(queue.database, "run", away_once)
    with Waiter(queue.catalog, spec.name, "w") as waiter:
        assert waiter.wait(PATIENCE)  # it has become known, and may have missed something
        queue.enqueue(spec, Work(n=1))
        assert waiter.wait(PATIENCE)
