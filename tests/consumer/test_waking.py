"""Whom a job wakes: one of those who have nothing to do, when it is committed, by any producer."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import Consumer, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer import waiter as waiting
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.topics import Topics
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, numbers, rows, until, value
from tests.support.armed import Armed, armed, wakes
from tests.support.few import few

LATER = datetime(2100, 1, 1, tzinfo=UTC)
NEVER = 3_600.0


@pytest.fixture
def deaf_but_for_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters that poll once after they have armed themselves, and then once an hour: a notification is what ends a wait."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", NEVER)
    monkeypatch.setattr(waiting, "_FIRST_ARMED_SECONDS", 3 * NEVER)
    monkeypatch.setattr(waiting, "_LAST_ARMED_SECONDS", 3 * NEVER)
    monkeypatch.setattr(waiting, "_LAST_PAUSE_SECONDS", 0.0)


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
                queue.database.run("waiter_register", {"queue": "work", "worker": "w", "seconds": NEVER})
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            connection.execute("SELECT 1 FROM pg_class LIMIT 1")
            sessions[0].arm()
            sessions[1].run("waiter_disarm", queue="work")
            queue.enqueue(spec, Work(n=1), connection=connection)
            connection.commit()
            assert [session.notifications() for session in sessions] == [[(schema, "work")] * known] * 2


def test_a_producer_that_is_open_while_one_arms_himself_wakes_him(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, deaf_but_for_notifications: None
) -> None:
    with caller(url) as connection, Waiter(queue.catalog, "work", "w") as waiter, ThreadPoolExecutor(1) as pool:
        queue.enqueue(spec, Work(n=1), connection=connection)
        assert not waiter.wait(0)
        wait = pool.submit(waiter.wait, 2 * PATIENCE)
        until(wait.running)
        connection.commit()
        assert wait.result(PATIENCE) is True
        assert numbers(claim(queue)) == [1]


def test_a_producer_that_looked_before_one_armed_himself_is_waited_for(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, monkeypatch: pytest.MonkeyPatch, deaf_but_for_notifications: None
) -> None:
    """As one that has fired its triggers and writes its commit. The waiter checks again when it has ended."""
    monkeypatch.setattr(waiting, "_LAST_PAUSE_SECONDS", NEVER)
    with caller(url) as connection, Waiter(queue.catalog, "work", "w") as waiter, ThreadPoolExecutor(1) as pool:
        queue.enqueue(spec, Work(n=1), connection=connection)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert not waiter.wait(0)
        waiter._armed_until = 0.0
        wait = pool.submit(waiter.wait, 2 * PATIENCE)
        until(lambda: value(queue, "SELECT count(*) FROM {s}.armed_waiter"))
        connection.commit()
        assert wait.result(PATIENCE) is True


def test_what_came_between_the_claim_and_the_arming_is_found_at_once(
    queue: SqlQueue, spec: QueueSpec[Work], deaf_but_for_notifications: None
) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        queue.enqueue(spec, Work(n=1))
        assert waiter.wait(PATIENCE)


def test_where_a_poll_takes_long_the_next_ones_begin_at_the_head_hints(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch, deaf_but_for_notifications: None
) -> None:
    """And find what came since, but not what is due before them; that is found when the next poll is a whole one again."""
    monkeypatch.setattr(waiting, "_SLOW_SECONDS", -1.0)
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    with Waiter(queue.catalog, "work", "w") as waiter:
        assert not waiter.wait(0)
        rows(queue, "UPDATE {s}.bucket SET head_hint = now(), swept_at = now() + interval '1 hour'")
        queue.enqueue(spec, NewJob(Work(n=1), run_at=long_ago))
        assert waiter._poll([]) == (None, [])
        queue.enqueue(spec, Work(n=2))
        (due_in, _) = waiter._poll([])
        assert due_in is not None
        assert -PATIENCE < due_in <= 0
        waiter._hinted_until = 0.0
        (due_in, _) = waiter._poll([])
        assert due_in is not None
        assert due_in < -1e8


def test_a_consumer_that_is_woken_finds_what_is_due_before_its_head_hints(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, deaf_but_for_notifications: None
) -> None:
    """As a job of a transaction that took long; the claim before has looked everywhere a moment ago."""
    done: list[int] = []
    with consumers(queue, Consumer(queue, spec, lambda job: done.append(job.payload.n))):
        for n in range(3):
            queue.enqueue(spec, NewJob(Work(n=n), run_at=datetime(2000 - n, 1, 1, tzinfo=UTC)))
            until(lambda: done[-1:] == [n])  # noqa: B023


def test_due_jobs_that_cannot_be_claimed_end_one_wait_and_not_the_next(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    queue.pause("work")
    with Waiter(queue.catalog, "work", "w") as waiter:
        assert waiter.wait(PATIENCE)
        assert not waiter.wait(0.05)
        # Later they are worth another try.
        assert waiter.wait(PATIENCE)


def test_a_job_that_becomes_due_ends_a_wait(
    queue: SqlQueue, spec: QueueSpec[Work], deaf_but_for_notifications: None
) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), run_at=value(queue, "SELECT now() + interval '2 seconds'")))
    with Waiter(queue.catalog, "work", "w") as waiter:
        assert waiter.wait(PATIENCE, [0, 1, 2, 3])
        assert numbers(claim(queue)) == [1]


def test_one_that_is_at_work_is_not_woken(queue: SqlQueue) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        assert not waiter.wait(0)
        assert value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 1
        waiter.busy()
        assert value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 0


def test_a_job_that_woke_one_at_work_wakes_another(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter, caller(url, autocommit=True) as connection:
        assert not waiter.wait(0)
        queue.enqueue(spec, Work(n=1))
        session = Armed(queue, connection)
        session.arm()
        # It has found something by itself meanwhile.
        waiter.busy()
        assert session.notifications() == [("own", "work")]


def test_one_that_stops_passes_on_its_notification(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with caller(url, autocommit=True) as connection:
        session = Armed(queue, connection)
        with Waiter(queue.catalog, "work", "w") as waiter:
            assert not waiter.wait(0)
            queue.enqueue(spec, Work(n=1))
            assert waiter.wait(PATIENCE)
            session.arm()
            assert session.notifications() == []
        assert session.notifications() == [("own", "work")]


@contextmanager
def consumers(queue: SqlQueue, *them: Consumer[Work]) -> Iterator[None]:
    """Consumers that have found nothing, and wait."""
    with ThreadPoolExecutor(len(them)) as pool:
        draining = [pool.submit(one.drain, linger_seconds=NEVER) for one in them]
        try:
            until(lambda: value(queue, "SELECT count(*) FROM {s}.armed_waiter") == len(them), "all of them wait")
            yield
        finally:
            for one in them:
                one.stop()
            for one_draining in draining:
                one_draining.result(PATIENCE)


def test_a_burst_gets_all_to_work(queue: SqlQueue, spec: QueueSpec[Work], deaf_but_for_notifications: None) -> None:
    """Four jobs of one bucket, put there by one transaction, wake one consumer; each wakes the next."""
    together = threading.Barrier(4)
    rows(queue, "UPDATE {s}.queue SET bucket_count = 1")

    def handler(job: Job[Work]) -> None:
        together.wait(PATIENCE)

    them = [Consumer(queue, spec, handler, batch_size=1, create=False) for _ in range(4)]
    with consumers(queue, *them):
        queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
        until(lambda: value(queue, "SELECT count(*) FROM {s}.job_archive") == 4, "the end of all")


def test_consumers_with_filters_and_buckets_get_theirs(
    queue: SqlQueue, spec: QueueSpec[Work], deaf_but_for_notifications: None
) -> None:
    mine: list[int] = []
    choosy = Consumer(queue, spec, lambda job: mine.append(job.payload.n), filter=ClaimFilter(tags=["mine"]))
    with consumers(queue, choosy):
        queue.enqueue(spec, Work(n=1))
        until(lambda: value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 1, "it waits again")
        queue.enqueue(spec, NewJob(Work(n=2), tags=["mine"]))
        until(lambda: mine == [2])


WORKER = """
import sys
from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from tests.support import Work
from tests.support.few import few
with SqlQueue(sys.argv[1], schema=sys.argv[2]) as queue:
    Consumer(queue, QueueSpec("work", Work), lambda job: print(job.payload.n, flush=True)).drain(linger_seconds=3_600)
"""


@pytest.mark.parametrize("how", few([signal.SIGSTOP, signal.SIGKILL], 1))
def test_a_job_that_woke_a_process_that_does_nothing_is_found_by_another(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, how: signal.Signals
) -> None:
    """By the poll that each waiter makes once a second."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, queue.database.schema], stdout=subprocess.PIPE, env={**os.environ}
    )
    try:
        until(lambda: value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 1, "the process waits")
        process.send_signal(how)
        if how is signal.SIGKILL:
            process.wait(PATIENCE)
        # The one armed for longer is woken first.
        rows(queue, "UPDATE {s}.armed_waiter SET expires_at = now() + interval '1 hour'")
        taken = "SELECT count(*) FROM {s}.armed_waiter WHERE expires_at > now() + interval '30 minutes'"
        done: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            other = Consumer(queue, spec, lambda job: done.append(job.payload.n))
            draining = pool.submit(other.drain, linger_seconds=NEVER)
            until(lambda: value(queue, "SELECT count(*) FROM {s}.armed_waiter") == 2, "the other one waits")
            queue.enqueue(spec, Work(n=7))
            assert value(queue, taken) == 0
            until(lambda: done == [7])
            other.stop()
            draining.result(PATIENCE)
    finally:
        process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def test_a_notification_that_comes_while_a_statement_runs_is_heard(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with Waiter(queue.catalog, "work", "w") as waiter:
        assert not waiter.wait(0)
        queue.enqueue(spec, Work(n=1))
        # What it says by itself comes with what was sent before.
        waiter._listener.run("waiter_poll", {"queue": "work", "buckets": None, "open": []})
        claim(queue)
        assert waiter.wait(PATIENCE)


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


@pytest.mark.parametrize(
    ("others", "choosy", "buckets"), [(15, False, None), (3, False, None), (15, True, None), (15, False, [0])]
)
def test_many_who_wait_for_all_jobs_share_the_polls(
    queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch, others: int, choosy: bool, buckets: "list[int] | None"
) -> None:
    """Four poll once a second, each; of sixteen each every three to five seconds; one that takes other jobs, by itself."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.waiter._FIRST_ARMED_SECONDS", 60.0)
    shares = others > 3 and not choosy and buckets is None
    waits: list[float] = []
    with armed(queue, url, others), Waiter(queue.catalog, "work", "w", choosy=choosy) as waiter:
        heard = waiter._listener.heard

        def until_the_poll(seconds: float) -> "list[tuple[str, str]] | None":
            waits.append(seconds)
            # Shorter ones are for transactions that were open when it was armed.
            return heard(seconds) if seconds < 0.5 else None

        monkeypatch.setattr(waiter._listener, "heard", until_the_poll)
        assert not waiter.wait(3_600.0, buckets)
        assert (3.0 <= waits[-1] <= 5.0) if shares else waits[-1] == 1.0
