"""Whom a job wakes: one of those who have nothing to do, when it is committed, by any producer."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.orm import Session

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.topics import Topics
from tests.support import Work, caller, claim, own_server, rows, until, value
from tests.support.armed import armed, wakes

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def by_function(queue: SqlQueue, call: str) -> None:
    with queue.database.connection() as connection:
        connection.execute(sql.SQL("SELECT {}." + call).format(sql.Identifier(f"{queue.database.schema}_v1")))  # type: ignore[arg-type, operator]


def redrive(queue: SqlQueue) -> None:
    (job,) = claim(queue)
    queue.finish([Ending(job, ArchiveState.FAILED, error="no")])
    by_function(queue, f"retry('work', ARRAY[CAST('{job.id}' AS uuid)])")


def publish(queue: SqlQueue) -> None:
    topics = Topics(queue)
    topics.subscribe("orders", "them", "work")
    topics.publish("orders", {"n": 1})


def called_back(queue: SqlQueue) -> None:
    other = QueueSpec("followed", Work)
    queue.create_queue(other)
    Followers(queue).enqueue(other, Work(n=1), callbacks=Callback("work"))
    for job in queue.claim("followed", limit=1, worker="w"):
        queue.complete([job])


SPEC = QueueSpec("work", Work)
ONE: dict[str, Callable[[SqlQueue], object]] = {
    "a job": lambda queue: queue.enqueue(SPEC, Work(n=1)),
    "one that replaces": lambda queue: queue.enqueue(SPEC, NewJob(Work(n=1), unique_key="u"), on_conflict="replace"),
    "an INSERT": lambda queue: rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " VALUES (gen_random_uuid(), 'work', 0, 0, now(), now(), 1, '{{}}')",
    ),
    "a function": lambda queue: by_function(queue, "enqueue('work', '{{}}')"),
    "a function that replaces": lambda queue: by_function(
        queue, "enqueue('work', '{{}}', unique_key => 'u', on_duplicate => 'replace')"
    ),
    "a topic": publish,
    "a callback": called_back,
}


@pytest.mark.parametrize("put", list(ONE))
def test_one_job_wakes_one_of_many(queue: SqlQueue, spec: QueueSpec[Work], url: str, put: str) -> None:
    queue.enqueue(spec, NewJob(Work(n=0), unique_key="u"))
    with armed(queue, url, 4) as sessions:
        ONE[put](queue)
        assert wakes(sessions) == [1, 0, 0, 0]
        # The next one finds the others.
        ONE[put](queue)
        ONE[put](queue)
        assert wakes(sessions) == [1, 1, 0, 0]
        ONE[put](queue)
        ONE[put](queue)
        assert wakes(sessions) == [1, 0, 0, 0]
        assert value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 0


def test_what_is_brought_back_wakes(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    queue.enqueue(spec, Work(n=0))
    with armed(queue, url, 2) as sessions:
        redrive(queue)
        assert wakes(sessions) == [1, 0]


MANY: dict[str, Callable[[SqlQueue], object]] = {
    "by arrays": lambda queue: queue.enqueue_many(SPEC, [NewJob(Work(n=n), unique_key=str(n)) for n in range(100)]),
    "copied in": lambda queue: queue.enqueue_many(SPEC, [Work(n=n) for n in range(1_000)]),
    "by a function": lambda queue: by_function(
        queue, "enqueue_many('work', ARRAY(SELECT CAST('{{}}' AS jsonb) FROM generate_series(1, 100)))"
    ),
}


@pytest.mark.parametrize("put", list(MANY))
def test_many_jobs_wake_one_for_each_bucket(queue: SqlQueue, url: str, put: str) -> None:
    buckets = int(value(queue, "SELECT bucket_count FROM {s}.queue WHERE name = 'work'"))
    with armed(queue, url, buckets + 2) as sessions:
        MANY[put](queue)
        assert wakes(sessions) == [1] * buckets + [0, 0]


def test_new_content_of_a_job_that_was_copied_in_wakes(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(300)])
    with armed(queue, url, 2) as sessions:
        rows(
            queue,
            "UPDATE {s}.job SET payload = '{{\"n\": 1}}' WHERE id = (SELECT id FROM {s}.job WHERE NOT wakes LIMIT 1)",
        )
        assert wakes(sessions) == [1, 0]


def test_what_needs_no_waking_wakes_nobody(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    other = QueueSpec("other", Work)
    queue.create_queue(other)
    queue.enqueue(spec, NewJob(Work(n=1), unique_key="u"))
    with armed(queue, url, 1) as sessions:
        queue.enqueue(spec, NewJob(Work(n=1), run_at=LATER))
        queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=LATER) for n in range(300)])
        queue.enqueue(spec, NewJob(Work(n=2), unique_key="u"))
        queue.enqueue(spec, NewJob(Work(n=2), unique_key="u", run_at=LATER), on_conflict="replace")
        queue.enqueue(other, Work(n=1))
        with caller(url) as connection:
            queue.enqueue(spec, Work(n=1), connection=connection)
        with caller(url) as connection:
            connection.execute("SAVEPOINT s")
            queue.enqueue(spec, Work(n=1), connection=connection)
            connection.execute("ROLLBACK TO s")
            connection.commit()
        claim(queue)
        assert wakes(sessions) == [0]
        # What was rolled back to a savepoint keeps no other job from waking.
        with caller(url) as connection:
            connection.execute("SAVEPOINT s")
            queue.enqueue(spec, Work(n=1), connection=connection)
            connection.execute("ROLLBACK TO s")
            queue.enqueue_many(spec, [Work(n=n) for n in range(20)], connection=connection)
            connection.commit()
        assert wakes(sessions) == [1]


def test_nobody_is_woken_whose_time_is_up_and_maintenance_forgets_him(queue: SqlQueue, url: str) -> None:
    with armed(queue, url, 1, seconds=0) as sessions:
        ONE["a job"](queue)
        assert wakes(sessions) == [0]
        assert value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 1
        rows(queue, "UPDATE {s}.armed_waiter SET expires_at = now() - interval '2 minutes'")
        queue.database.run("forget_expired", {})
        assert value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 0


def test_one_who_serves_other_buckets_is_not_woken(queue: SqlQueue, url: str) -> None:
    rows(queue, "UPDATE {s}.queue SET bucket_count = 1")
    with armed(queue, url, 1, buckets=[1, 2]) as others, armed(queue, url, 1, buckets=[3, 0]) as sessions:
        ONE["a job"](queue)
        assert (wakes(others), wakes(sessions)) == ([0], [1])


def test_those_who_choose_are_notified_in_addition(queue: SqlQueue, url: str) -> None:
    with armed(queue, url, 2, choosy=True) as choosy, armed(queue, url, 2) as sessions:
        ONE["a job"](queue)
        assert (wakes(choosy), wakes(sessions)) == ([1, 1], [1, 0])


def test_jobs_that_are_committed_at_once_wake_different_ones(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    """One that is about to commit has taken its waiter already; the next one neither waits for it nor wakes the same."""
    with armed(queue, url, 2) as sessions, caller(url) as slow, caller(url) as slower:
        for number, connection in enumerate((slow, slower)):
            queue.enqueue(spec, Work(n=number), connection=connection)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        # Nobody is left: this one commits without a notification.
        queue.enqueue(spec, Work(n=2))
        assert wakes(sessions) == [0, 0]
        slow.commit()
        assert wakes(sessions) == [1, 0]
        slower.commit()
        assert wakes(sessions) == [1, 0]


def test_who_rolls_back_leaves_the_waiter_to_others(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with armed(queue, url, 1) as sessions:
        with caller(url) as connection:
            queue.enqueue(spec, Work(n=1), connection=connection)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        until(lambda: value(queue, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%%'") == 0)
        queue.enqueue(spec, Work(n=2))
        assert wakes(sessions) == [1]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_keeps_its_snapshot_notifies_all_who_listen(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, level: str
) -> None:
    """It would not see who has armed himself since, and fail over one who was taken by another."""
    schema = queue.database.schema
    with caller(url) as connection, armed(queue, url, 2) as sessions:
        for known in (False, True):
            if known:
                queue.database.run("waiter_register", {"queue": "work", "worker": "w", "seconds": 3_600.0})
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            connection.execute("SELECT 1 FROM pg_class LIMIT 1")
            sessions[0].arm()
            sessions[1].run("waiter_disarm", queue="work")
            queue.enqueue(spec, Work(n=1), connection=connection)
            connection.commit()
            assert [session.notifications() for session in sessions] == [[(schema, "work")] * known] * 2


def test_a_dead_producer_wakes_nobody_and_stops_nobody(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with armed(queue, url, 1) as sessions, caller(url) as connection:
        queue.enqueue(spec, Work(n=1), connection=connection)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert value(queue, "SELECT pg_terminate_backend(%s, 60000)", connection.info.backend_pid)
        queue.enqueue(spec, Work(n=2))
        assert wakes(sessions) == [1]
        with pytest.raises(psycopg.OperationalError):
            connection.commit()


def test_who_is_armed_knows_how_many_others_take_each_job(queue: SqlQueue, url: str) -> None:
    """Those that take some of the jobs, wait for another queue, or have expired do not count."""
    queue.create_queue(QueueSpec("other", Work))
    with ExitStack() as stack:
        sessions = stack.enter_context(armed(queue, url, 3))
        for how in ({"buckets": [1]}, {"choosy": True}, {"queue": "other"}, {"seconds": -1}):
            stack.enter_context(armed(queue, url, 1, **how))
        assert [session.arm() for session in sessions] == [3, 3, 3]
    with armed(queue, url, 17) as sessions:
        assert sessions[0].arm() == 16


def test_a_two_phase_transaction_that_wakes_nobody_can_be_prepared() -> None:
    with own_server(settings=["max_prepared_transactions=5"]) as server, SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(SPEC)
        engine = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))

        with Waiter(queue.catalog, "work", "w"), armed(queue, server.url, 1) as sessions:
            for n, isolation in enumerate([psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.SERIALIZABLE]):
                with caller(server.url) as connection:
                    connection.isolation_level = isolation
                    connection.tpc_begin(f"of {n}")
                    queue.enqueue(SPEC, Work(n=n), connection=connection)
                    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot PREPARE"):
                        connection.tpc_prepare()
                with Session(engine, twophase=True) as session:
                    session.execute(sa.text(f"SET TRANSACTION ISOLATION LEVEL {isolation.name.replace('_', ' ')}"))
                    session.execute(sa.text("SET LOCAL dagster_sqlqueue.wake = off"))
                    queue.enqueue(SPEC, Work(n=n + 10), connection=session)
                    session.commit()
                assert wakes(sessions) == [0]
            # The setting ends with its transaction.
            queue.enqueue(SPEC, Work(n=20))
            assert wakes(sessions) == [1]
        engine.dispose()
        assert rows(queue, "SELECT CAST(payload ->> 'n' AS integer) FROM {s}.job ORDER BY 1") == [(10,), (11,), (20,)]
