"""What code under test has enqueued, and a drain of it, as a user's test has them."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from dagster_sqlqueue import (
    Backoff,
    Done,
    Hold,
    Job,
    NewJob,
    QueueSpec,
    RateLimit,
    Retry,
    Selection,
    Snooze,
    SqlQueue,
    handles,
)
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownQueue
from dagster_sqlqueue.testing import drain, enqueued_jobs
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, rows
from tests.support.callers import django_connection

SPEC = QueueSpec("work", Work, max_attempts=3, backoff=Backoff(3_600, jitter=0))
LATER = timedelta(days=2)


@pytest.fixture(autouse=True)
def made(queue: SqlQueue) -> None:
    queue.create_queue(SPEC)


def test_jobs_are_there_with_their_payloads_as_models_in_their_order(queue: SqlQueue) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    queue.enqueue(SPEC, NewJob(Work(n=1), run_at=tomorrow, tags=["later"]))
    queue.enqueue(SPEC, NewJob(Work(n=2), priority=3, unique_key="u"))
    queue.enqueue(SPEC, Work(n=3))
    jobs = enqueued_jobs(queue, SPEC)
    assert [job.payload for job in jobs] == [Work(n=2), Work(n=3), Work(n=1)]
    assert (jobs[0].row.priority, jobs[0].row.unique_key) == (3, "u")
    assert jobs[2].row.run_at == tomorrow
    assert [job.payload.n for job in enqueued_jobs(queue, SPEC, Selection(tags=["later"]))] == [1]


def test_those_of_a_transaction_that_is_rolled_back_in_the_end(queue: SqlQueue, url: str) -> None:
    with caller(url) as connection:
        queue.enqueue(SPEC, Work(n=1), connection=connection)
        queue.enqueue_many(SPEC, [Work(n=2)] * 300, connection=connection)
        (job, *_) = jobs = enqueued_jobs(queue, SPEC, connection=connection)
        assert (job.payload, len(jobs)) == (Work(n=1), 301)
        assert enqueued_jobs(queue, SPEC) == []
        connection.rollback()
        assert enqueued_jobs(queue, SPEC, connection=connection) == []


def test_those_of_a_transaction_of_django_or_sqlalchemy(queue: SqlQueue, url: str) -> None:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with django_connection(url) as theirs, Session(engine) as session:
        theirs.set_autocommit(False)
        for connection in (theirs, session):
            queue.enqueue(SPEC, Work(n=1), connection=connection)
            assert [job.payload.n for job in enqueued_jobs(queue, SPEC, connection=connection)] == [1]
            assert enqueued_jobs(queue, SPEC) == []
            connection.rollback()
            assert enqueued_jobs(queue, SPEC, connection=connection) == []
        theirs.rollback()
    engine.dispose()


def test_what_cannot_be_listed_is_said(queue: SqlQueue) -> None:
    with pytest.raises(UnknownQueue, match="nowhere"):
        enqueued_jobs(queue, replace(SPEC, name="nowhere"))
    with pytest.raises(InvalidInput, match="connection is a str"):
        enqueued_jobs(queue, SPEC, connection="postgresql://")  # type: ignore[arg-type]
    queue.enqueue(SPEC, Work(n=1))
    rows(queue, """UPDATE {s}.job SET payload = '{{"n": "x"}}'""")
    with pytest.raises(InvalidPayload, match="n:"):
        enqueued_jobs(queue, SPEC)


def test_a_drain_ends_where_nothing_is_due(queue: SqlQueue) -> None:
    queue.enqueue_many(SPEC, [NewJob(Work(n=1)), NewJob(Work(n=2), run_at=datetime.now(UTC) + LATER)])
    summary = drain(queue, SPEC, lambda job: Retry("again"))
    assert (summary.claimed, summary.retried) == (1, 1)
    assert [job.payload.n for job in enqueued_jobs(queue, SPEC)] == [1, 2]


def test_a_drain_of_what_is_scheduled_ends_where_nothing_is_queued(queue: SqlQueue) -> None:
    """Jobs for later, retries with their backoff and snoozes are not waited for."""
    attempts: list[tuple[int, int]] = []

    @handles(SPEC)
    def work(job: Job[Work]) -> Done | Retry | Snooze | Hold:
        attempts.append((job.payload.n, job.attempt))
        match job.payload.n:
            case 1:
                return Retry("again")
            case 2:
                return Snooze(3_600) if attempts.count((2, 1)) < 3 else Done()
            case 3:
                return Hold("look")
        return Done()

    queue.enqueue_many(SPEC, [NewJob(Work(n=n), run_at=datetime.now(UTC) + n * LATER) for n in range(4)])
    summary = drain(queue, SPEC, work, scheduled=True)
    assert (summary.succeeded, summary.failed, summary.held) == (2, 1, 1)
    assert (summary.retried, summary.snoozed, summary.claimed) == (2, 2, 8)
    assert [(job.payload.n, job.row.state) for job in enqueued_jobs(queue, SPEC)] == [(3, "held")]
    assert [n for n, _ in attempts].count(1) == 3


def test_jobs_that_do_not_come_to_an_end_are_named(queue: SqlQueue) -> None:
    id = queue.enqueue(SPEC, Work(n=1))
    with pytest.raises(AssertionError, match=rf"do not come to an end, such as {id}, .* 4 snoozes"):
        drain(queue, SPEC, lambda job: Snooze(60), scheduled=True, rounds=3)


def test_so_are_those_that_are_due_again_at_once(queue: SqlQueue) -> None:
    id = queue.enqueue(SPEC, Work(n=1))
    with pytest.raises(AssertionError, match=rf"do not come to an end, such as {id}"):
        drain(queue, SPEC, lambda job: Snooze(0), budget_seconds=0.5)


def test_and_those_that_wait_for_a_rate(queue: SqlQueue) -> None:
    limited = replace(SPEC, rate=RateLimit(1, 3_600))
    queue.create_queue(limited)
    queue.enqueue(limited, Work(n=0))
    assert drain(queue, limited, lambda job: None).claimed == 1
    queue.enqueue(limited, Work(n=1))
    with pytest.raises(AssertionError, match=r"do not come to an end, .*: 0 were claimed"):
        drain(queue, limited, lambda job: None, budget_seconds=0.5)


def test_what_a_held_job_stops_stays(queue: SqlQueue) -> None:
    ordered = replace(SPEC, ordered=True)
    queue.create_queue(ordered)
    queue.enqueue_many(ordered, [NewJob(Work(n=n), ordering_key="k") for n in range(2)])
    summary = drain(queue, ordered, lambda job: Hold("look"), scheduled=True)
    assert (summary.held, summary.claimed) == (1, 1)
    assert len(enqueued_jobs(queue, ordered)) == 2


def test_the_settings_of_the_consumer_are_taken(queue: SqlQueue) -> None:
    queue.enqueue_many(SPEC, [Work(n=n) for n in range(5)])
    sizes: list[int] = []
    summary = drain(queue, SPEC, lambda jobs: sizes.append(len(jobs)), batch=True, batch_size=5)
    assert (summary.succeeded, sizes) == (5, [5])


def test_so_are_those_that_a_handler_was_bound_with(queue: SqlQueue) -> None:
    @handles(SPEC, concurrency=2)
    def meet(job: Job[Work]) -> None:
        together.wait(PATIENCE)

    together = threading.Barrier(2)
    queue.enqueue_many(SPEC, [Work(n=n) for n in range(4)])
    assert drain(queue, SPEC, meet).succeeded == 4


def test_arguments_that_make_no_sense_are_refused(queue: SqlQueue) -> None:
    with pytest.raises(InvalidInput, match="rounds is 0"):
        drain(queue, SPEC, lambda job: None, rounds=0)
    with pytest.raises(InvalidInput, match="budget_seconds is 0"):
        drain(queue, SPEC, lambda job: None, budget_seconds=0)
    for nowhere in (None, queue.database):
        with pytest.raises(InvalidInput, match=r"the queue is a .*; give a SqlQueue"):
            drain(nowhere, SPEC, lambda job: None)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"the queue is a .*; give a SqlQueue"):
            enqueued_jobs(nowhere, SPEC)  # type: ignore[arg-type]
    other = handles(replace(SPEC, name="other"))(lambda job: None)
    with pytest.raises(InvalidInput, match="the handler is of queue 'other'"):
        drain(queue, SPEC, other)
