"""Processes that are forked while their parent has connections: each opens its own, and leaves the parent's alone."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE
from tests.support import Work, value

SCRIPT = """
import logging, os, sys, threading, uuid
from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.results.notifications import JobEndListener
from dagster_sqlqueue.db.statements import load
from tests.support import Work, until, value

url, schema = sys.argv[1:]
queue, spec = SqlQueue(url, schema=schema, pool_size=2), QueueSpec("work", Work)
logging.disable()


def backends():
    with queue.database.connection() as one, queue.database.connection() as other:
        return {connection.execute("SELECT pg_backend_pid()").fetchone()[0] for connection in (one, other)}


def enqueue(name):
    for n in range(100):
        if queue.enqueue(spec, NewJob(Work(n=n), unique_key=f"{name}/{n}")) is None:
            sys.exit(f"another process was answered that {name}/{n} is no duplicate")


def forked(work):
    child = os.fork()
    if not child:
        # An exit as any other: what is left open is closed at the end of the interpreter.
        sys.exit(work())
    return child


def ended(*children):
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


"""

EACH_WORKS = """
before = backends()
children = [forked(lambda: enqueue(name)) for name in "abc"]
enqueue("parent")
assert ended(*children) == [0, 0, 0]
assert backends() == before
"""

IN_THE_MIDDLE = """
# Not while a thread imports something: Python's lock of that module would never be free in the child.
enqueue("before")
# While another thread has a connection, and its pool's lock perhaps.
stopping = threading.Event()


def busy():
    while not stopping.is_set():
        queue.database.run("queues", {"name": None})


threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
children = [forked(lambda: enqueue(name)) for name in "abc"]
assert ended(*children) == [0, 0, 0]
stopping.set()
for thread in threads:
    thread.join()
"""

IN_A_TRANSACTION = """
def lost():
    try:
        queue.database.run("queues", {"name": None})
        transaction.run("queues", {"name": None})
    except Exception as error:
        assert "connection" in str(error), error
        os._exit(0)


with queue.database.transaction() as transaction:
    queue.enqueue(spec, Work(n=1), connection=transaction.connection)
    assert ended(forked(lost)) == [0]
"""

LISTENING = """
listener = JobEndListener(queue.database)


def listening():
    return value(queue, "SELECT count(*) FROM pg_stat_activity WHERE query = %s", load("ended_listen", schema))


def listen():
    assert not listener.listening
    with listener.watch([uuid.uuid4()], lambda: None):
        until(lambda: listener.listening)
        assert listening() == 2


with listener.watch([uuid.uuid4()], lambda: None):
    until(lambda: listener.listening)
    assert ended(forked(listen)) == [0]
    until(lambda: listening() == 1)
    assert listener.listening
listener.close()
"""

CONSUMING = """
consumer = Consumer(queue, spec, lambda job: None)


def refused():
    try:
        consumer.drain()
    except InvalidInput as error:
        assert "make the consumer in the process that runs it" in str(error)
    else:
        sys.exit("it ran")
    enqueue("child")
    assert Consumer(queue, spec, lambda job: None).drain().succeeded == 100


assert ended(forked(refused)) == [0]
queue.enqueue(spec, Work(n=1))
assert consumer.drain().succeeded == 1
"""


@pytest.fixture
def run(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> Callable[[str], None]:
    """Runs a script, in a process that forks."""

    def run(script: str) -> None:
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT + script, url, queue.database.schema],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE,
        )
        assert ended.returncode == 0, ended.stderr
        assert not ended.stderr

    return run


def test_each_process_opens_its_own_connections(run: Callable[[str], None], queue: SqlQueue) -> None:
    run(EACH_WORKS)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 400


def test_nothing_hangs_that_another_thread_had_at_the_fork(run: Callable[[str], None], queue: SqlQueue) -> None:
    run(IN_THE_MIDDLE)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 400


def test_a_transaction_stays_its_parents(run: Callable[[str], None], queue: SqlQueue) -> None:
    run(IN_A_TRANSACTION)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 1


def test_each_process_listens_by_itself(run: Callable[[str], None]) -> None:
    run(LISTENING)


def test_a_consumer_works_in_the_process_that_made_it(run: Callable[[str], None]) -> None:
    run(CONSUMING)
