"""What waiters and consumers do that are armed: what ends their waits, and whom they wake in turn."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from dagster_sqlqueue import Consumer, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer import waiter as waiting
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, numbers, rows, until, value
from tests.support.armed import Armed, armed
from tests.support.few import few

NEVER = 3_600.0


@pytest.fixture
def deaf_but_for_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters that poll once after they have armed themselves, and then once an hour: a notification is what ends a wait."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", NEVER)
    monkeypatch.setattr(waiting, "_FIRST_ARMED_SECONDS", 3 * NEVER)
    monkeypatch.setattr(waiting, "_LAST_ARMED_SECONDS", 3 * NEVER)
    monkeypatch.setattr(waiting, "_LAST_PAUSE_SECONDS", 0.0)


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
        assert not waiter.wait(30 * PATIENCE, buckets)
        assert (3.0 <= waits[-1] <= 5.0) if shares else waits[-1] == 1.0
