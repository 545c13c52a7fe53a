"""The priorities of a queue are noted with the first job that has one, and claims go through these."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue, Strategy
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.doctor import Verdict, examine
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, raw_rows, rows, value
from tests.support.raw_rows import in_schema

COLUMNS = """name, bucket_count, strategy, ordered, on_poison, lease_seconds, max_attempts, backoff_seconds, backoff_factor,
    backoff_max_seconds, backoff_jitter"""
KEPT = f"CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT {COLUMNS} FROM {{s}}.queue WHERE name = 'work'"
AGAIN = f"INSERT INTO {{s}}.queue ({COLUMNS}) SELECT * FROM kept"
NOTED = "SELECT priority FROM {s}.queue_priority WHERE queue = 'work' ORDER BY priority"
UNNOTED = "SELECT count(*) FROM {s}.stray_job"

SPEC = QueueSpec("work", Work)


def put(queue: SqlQueue, connection: "psycopg.Connection[Any]", priority: int, jobs: int = 1) -> None:
    raw_rows.insert(queue, connection, ["work"] * jobs, priority)


def copy(queue: SqlQueue, connection: "psycopg.Connection[Any]", priority: int) -> None:
    raw_rows.copy(queue, connection, [("work", 0)] * 50 + [("work", priority)] + [("work", 0)] * 49)


def by_function(queue: SqlQueue, connection: "psycopg.Connection[Any]", priority: int) -> None:
    call = f"SELECT {pinned_schema(queue.database.schema)}.enqueue('work', '{{\"n\": 0}}', priority => {priority})"
    connection.execute(call.encode())


def reprioritise(queue: SqlQueue, connection: "psycopg.Connection[Any]", priority: int) -> None:
    put(queue, connection, 0)
    connection.execute(in_schema(queue, "UPDATE {s}.job SET priority = %s"), [priority])


WAYS: dict[str, Callable[[SqlQueue, "psycopg.Connection[Any]", int], object]] = {
    "a row": put,
    "a COPY": copy,
    "one job": lambda queue, connection, priority: queue.enqueue(
        SPEC, NewJob(Work(n=0), priority=priority), connection=connection
    ),
    "many jobs": lambda queue, connection, priority: queue.enqueue_many(
        SPEC, [NewJob(Work(n=n), priority=priority * (n % 2)) for n in range(3_000)], connection=connection
    ),
    "jobs with keys": lambda queue, connection, priority: queue.enqueue_many(
        SPEC, [NewJob(Work(n=n), priority=priority, unique_key=f"{uuid4()}") for n in range(10)], connection=connection
    ),
    "a function": by_function,
    "a job that changes its priority": reprioritise,
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_puts_a_job_notes_its_priority(queue: SqlQueue, url: str, spec: QueueSpec[Work], way: str) -> None:
    assert rows(queue, NOTED) == [(0,)]
    with caller(url) as connection:
        WAYS[way](queue, connection, 7)
        WAYS[way](queue, connection, 7)
        connection.commit()
    assert rows(queue, NOTED) == [(0,), (7,)]
    assert claim(queue, limit=1)[0].priority == 7
    assert value(queue, UNNOTED) == 0


@pytest.mark.parametrize("strategy", Strategy)
def test_all_ten_are_claimed_from_the_highest_on(queue: SqlQueue, spec: QueueSpec[Work], strategy: Strategy) -> None:
    other = QueueSpec("other", Work, strategy=strategy, bucket_count=1)
    queue.create_queue(other)
    queue.enqueue_many(other, [NewJob(Work(n=n), priority=n) for n in (3, 0, 9, 5, 1, 8, 2, 7, 4, 6)])
    if strategy is Strategy.ASSIGN:
        worker = AssignedSource(queue, "other", "w")
        assert worker.take(10) == []
        assert Manager(queue, "other").assign() == 10
        assert {job.priority for job in worker.take(10)} == set(range(10))
        return
    seen: list[int] = []
    Consumer(queue, other, lambda job: seen.append(job.payload.n), batch_size=10).drain()
    assert sorted(seen) == list(range(10))
    if strategy is not Strategy.FIFO:
        assert seen == list(range(9, -1, -1))


def test_nobody_waits_for_another_that_brings_the_same_priority(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    with caller(url) as first, caller(url) as second:
        put(queue, first, 5)
        second.execute(f"SET LOCAL lock_timeout = '{PATIENCE}s'".encode())
        put(queue, second, 5)
        second.commit()
        assert [job.priority for job in claim(queue)] == [5]
        first.commit()
    assert [job.priority for job in claim(queue)] == [5]
    assert rows(queue, NOTED) == [(0,), (5,), (5,)]
    queue.maintain()
    assert rows(queue, NOTED) == [(0,), (5,)]
    third = queue.enqueue(spec, NewJob(Work(n=1), priority=5))
    assert [job.id for job in claim(queue)] == [third]


def test_a_priority_whose_first_job_was_undone_is_noted_by_the_next(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    with caller(url) as connection:
        queue.enqueue_many(spec, [Work(n=1)], connection=connection)
        connection.execute("SAVEPOINT before")
        put(queue, connection, 5)
        connection.execute("ROLLBACK TO before")
        put(queue, connection, 5)
        connection.commit()
        put(queue, connection, 6)
        connection.rollback()
    assert rows(queue, NOTED) == [(0,), (5,)]
    assert [job.priority for job in claim(queue)] == [5, 0]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_notes_what_it_does_not_see(
    queue: SqlQueue, url: str, spec: QueueSpec[Work], isolation: str
) -> None:
    with caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        connection.execute("SELECT 1")
        queue.enqueue(spec, NewJob(Work(n=1), priority=5))
        put(queue, connection, 5)
        connection.commit()
    assert [job.priority for job in claim(queue)] == [5, 5]


def test_a_queue_that_is_made_again_in_a_transaction_has_none_of_the_priorities_of_before(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    with caller(url) as connection:
        queue.enqueue_many(spec, [NewJob(Work(n=1), priority=5)], connection=connection)
        connection.execute(in_schema(queue, "DELETE FROM {s}.job"))
        connection.execute(in_schema(queue, "DELETE FROM {s}.bucket WHERE queue = 'work'"))
        connection.execute(in_schema(queue, KEPT))
        connection.execute(in_schema(queue, "DELETE FROM {s}.queue WHERE name = 'work'"))
        connection.execute(in_schema(queue, AGAIN))
        connection.execute(in_schema(queue, "INSERT INTO {s}.bucket (queue, bucket) VALUES ('work', 0)"))
        put(queue, connection, 5)
        connection.commit()
    assert rows(queue, NOTED) == [(0,), (5,)]
    assert [job.priority for job in claim(queue)] == [5]


def test_a_queue_that_was_inserted_by_hand_has_the_default_priority(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    with caller(url) as connection:
        connection.execute(in_schema(queue, KEPT))
        connection.execute(in_schema(queue, "UPDATE kept SET name = 'other'"))
        connection.execute(in_schema(queue, AGAIN))
        connection.commit()
    assert rows(queue, "SELECT priority FROM {s}.queue_priority WHERE queue = 'other'") == [(0,)]


def test_a_default_priority_that_was_deleted_is_recorded_by_maintain(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    """The first job does not record it again: it is taken for granted that it is there."""
    rows(queue, "DELETE FROM {s}.queue_priority")
    with caller(url) as connection:
        put(queue, connection, 0, 3)
        connection.commit()
    assert claim(queue) == []
    queue.maintain()
    assert rows(queue, NOTED) == [(0,)]
    assert len(claim(queue)) == 3


def test_a_queue_that_is_renamed_keeps_its_priorities(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), priority=5))
    rows(queue, "DELETE FROM {s}.job")
    rows(queue, "DELETE FROM {s}.bucket WHERE queue = 'work'")
    rows(queue, "UPDATE {s}.queue SET name = 'renamed' WHERE name = 'work'")
    assert rows(queue, "SELECT DISTINCT queue FROM {s}.queue_priority") == [("renamed",)]


def test_what_came_past_the_triggers_is_noted_by_maintain(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    with caller(url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        for priority in (0, 4, 9):
            put(queue, connection, priority, 3)
        connection.commit()
    assert [job.priority for job in claim(queue)] == [0, 0, 0]
    found = next(check for check in examine(queue.database) if check.name == "strays")
    assert found.verdict is Verdict.WARN
    assert "6 of queue work" in found.found
    queue.maintain()
    assert rows(queue, NOTED) == [(0,), (4,), (9,)]
    assert [job.priority for job in claim(queue)] == [9, 9, 9, 4, 4, 4]
