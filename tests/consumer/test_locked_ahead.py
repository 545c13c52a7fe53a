"""The batch that is locked while another one is worked on in transactional mode: each is committed before the next one."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, tuple_row

from dagster_sqlqueue import Backoff, Job, QueueSpec, Reject, Retry, SqlQueue, Strategy
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.queue.lock import SentLock
from tests.support import Work, make_due, rows, states, until, value
from tests.support.locked_ahead import SIZE, Sending, consumer_of, fill, free

PREPARED = "SELECT name, statement FROM pg_prepared_statements WHERE name LIKE 'queue_ahead_%' ORDER BY name"
ARCHIVED = "SELECT count(*) FROM {s}.job_archive"

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def effect(queue: SqlQueue) -> Iterator[str]:
    """A table beside those of the queue, which checks at the commit whether its rows are unique."""
    rows(queue, "CREATE TABLE {s}.effect (n integer, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
    yield f"{queue.database.schema}.effect"
    rows(queue, "DROP TABLE {s}.effect")


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN, Strategy.FANOUT])
def test_while_a_batch_is_worked_on_the_next_one_is_locked(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str, strategy: Strategy
) -> None:
    spec = replace(spec, strategy=strategy)
    queue.create_queue(spec)
    fill(queue, spec, 6 * SIZE + 5)
    ended: list[int] = []

    def handler(job: Job[Work]) -> None:
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")
        ended.append(value(queue, ARCHIVED))
        if len(ended) in (2 * SIZE, 3 * SIZE):
            left = 6 * SIZE + 5 - ended[-1] - 2 * SIZE
            until(lambda: free(queue) == left, "the lock of the next batch")

    summary = consumer_of(queue, spec, handler).drain()
    # Each batch was committed before the next one wrote.
    assert ended == [n // SIZE * SIZE for n in range(6 * SIZE + 5)]
    assert (summary.claimed, summary.batches, summary.succeeded, summary.released) == (65, 7, 65, 0)
    assert rows(queue, "SELECT DISTINCT state, lease_no, attempt FROM {s}.job_archive") == [("succeeded", 1, 1)]
    assert value(queue, "SELECT count(*) FROM {s}.effect") == 65


def test_a_stop_lets_both_batches_go(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    fill(queue, spec, 6 * SIZE)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        if len(seen) == 3 * SIZE + 3:
            until(lambda: free(queue) == SIZE, "the lock of the next batch")
            consumer.stop()

    consumer = consumer_of(queue, spec, handler)
    summary = consumer.drain()
    assert (summary.succeeded, summary.claimed, summary.released) == (33, 40, 7)
    assert rows(queue, "SELECT DISTINCT state, attempt, lease_no FROM {s}.job") == [("queued", 0, 0)]
    assert free(queue) == 27


@pytest.mark.parametrize("at", [3 * SIZE + 3, 4 * SIZE + 3])
def test_an_interrupt_lets_both_batches_go(queue: SqlQueue, spec: QueueSpec[Work], effect: str, at: int) -> None:
    """In either of the two transactions."""
    fill(queue, spec, 6 * SIZE)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")
        if len(seen) == at:
            raise KeyboardInterrupt

    consumer = consumer_of(queue, spec, handler)
    with pytest.raises(KeyboardInterrupt):
        consumer.drain()
    done = at // SIZE * SIZE
    assert consumer.summary.succeeded == done
    assert rows(queue, "SELECT state, attempt, count(*) FROM {s}.job GROUP BY 1, 2") == [("queued", 0, 60 - done)]
    until(lambda: free(queue) == 60 - done, "the end of both transactions")
    assert value(queue, "SELECT count(*) FROM {s}.effect") == done


def test_batches_of_which_some_go_back_are_followed_by_the_one_locked_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], sending: Sending
) -> None:
    fill(queue, spec, 6 * SIZE)
    outcomes = {0: Retry("later", 3_600), 1: Reject("never")}
    seen: list[int] = []

    def handler(job: Job[Work]) -> Retry | Reject | None:
        seen.append(job.payload.n % 5)
        return outcomes.get(seen[-1])

    summary = consumer_of(queue, spec, handler).drain()
    assert (summary.claimed, summary.retried, summary.failed, summary.succeeded) == (60, 12, 12, 36)
    assert summary.batches == 6
    # All after the second one; one that finds nothing; and one with the ends of the last batch, if none of it goes back.
    assert sending.sent == 4 + 1 + (0 not in seen[-SIZE:])
    assert Counter(states(queue).values()) == {"queued": 12, "failed": 12, "succeeded": 36}


@pytest.mark.parametrize("at", [3 * SIZE + 3, 4 * SIZE + 3])
def test_a_connection_that_is_cut_while_a_handler_works_costs_its_batch_only(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str, at: int
) -> None:
    fill(queue, spec, 6 * SIZE)
    seen = 0

    def handler(job: Job[Work]) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            rows(queue, "SELECT pg_terminate_backend(%s)", job.connection.info.backend_pid)
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")

    consumer = consumer_of(queue, spec, handler)
    # What it had locked is free once the server has ended the transactions, which may be after all the rest is done.
    until(lambda: consumer.drain().succeeded == 60, "the end of all jobs")
    assert (consumer.summary.claimed, seen) == (60, 60 + at % SIZE)
    assert rows(queue, "SELECT count(*), count(DISTINCT n) FROM {s}.effect") == [(60, 60)]
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive") == [(1,)]


def not_sent(transaction: Transaction, send: Callable[[], SentLock]) -> SentLock:
    raise psycopg.OperationalError("the connection was lost before anything was sent")


def answer_lost(transaction: Transaction, send: Callable[[], SentLock]) -> SentLock:
    sent = send()
    transaction.connection.pgconn.finish()
    return sent


def failed(transaction: Transaction, send: Callable[[], SentLock]) -> SentLock:
    transaction.connection.execute(
        "DO $$ BEGIN RAISE serialization_failure; EXCEPTION WHEN division_by_zero THEN END $$"
    )
    raise AssertionError


@pytest.mark.parametrize("act", [not_sent, answer_lost, failed])
@pytest.mark.parametrize("at", [2, 3])
def test_a_lock_that_gets_lost_loses_nothing_and_ends_nothing_twice(
    queue: SqlQueue, spec: QueueSpec[Work], sending: Sending, effect: str, act: Any, at: int
) -> None:
    """In either of the two transactions."""
    fill(queue, spec, 8 * SIZE)
    sending.act_at, sending.act = at, act

    def handler(job: Job[Work]) -> None:
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")

    consumer = consumer_of(queue, spec, handler)
    until(lambda: consumer.drain() and not queue.depth("work").live, "the end of all jobs")
    # Of a batch whose ends were sent it is not known then whether they were committed: it is not counted.
    assert consumer.summary.claimed == (7 if act is answer_lost else 8) * SIZE
    assert rows(queue, "SELECT DISTINCT state, attempt, lease_no FROM {s}.job_archive") == [("succeeded", 1, 1)]
    assert rows(queue, "SELECT count(*), count(DISTINCT n) FROM {s}.effect") == [(80, 80)]


@pytest.mark.parametrize("at", [2, 3])
def test_an_error_between_work_and_end_undoes_the_work_in_either_transaction(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    fill(queue, spec, 6 * SIZE)
    send = queue.leases.send_lock
    calls = 0

    def failing(transaction: Transaction, request: Any, settings: Any, endings: Any = None) -> SentLock:
        nonlocal calls
        calls += bool(endings)
        if calls == at:
            raise RuntimeError("between the two")
        return send(transaction, request, settings, endings)

    monkeypatch.setattr(queue.leases, "send_lock", failing)

    def handler(job: Job[Work]) -> None:
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")

    consumer = consumer_of(queue, spec, handler)
    with pytest.raises(RuntimeError, match="between the two"):
        consumer.drain()
    # The first batch has nothing beside it, and ends with the lock of the second one.
    done = at * SIZE
    assert (consumer.summary.succeeded, value(queue, ARCHIVED)) == (done, done)
    until(lambda: free(queue) == 6 * SIZE - done, "the end of both transactions")
    assert value(queue, "SELECT count(*) FROM {s}.effect") == done


def test_no_connection_for_it_is_no_reason_to_stop(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Transaction:
        raise psycopg.OperationalError("too many clients already")

    fill(queue, spec, 4 * SIZE)
    monkeypatch.setattr(queue.database, "begin_apart", none)
    assert consumer_of(queue, spec, lambda job: None).drain().succeeded == 4 * SIZE


@pytest.mark.parametrize("spoilt", [3 * SIZE + 4, 4 * SIZE + 4])
def test_what_fails_at_the_commit_fails_by_itself_in_either_transaction(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str, spoilt: int
) -> None:
    patient = replace(spec, backoff=Backoff(60))
    queue.create_queue(patient)
    fill(queue, patient, 6 * SIZE)
    begun: list[int] = []

    def handler(job: Job[Work]) -> None:
        begun.append(job.payload.n)
        again = job.payload.n == begun[spoilt] if len(begun) > spoilt else False
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})" + f", ({job.payload.n})" * again)

    summary = consumer_of(queue, patient, handler).drain()
    assert (summary.succeeded, summary.retried) == (59, 1)
    assert states(queue)[begun[spoilt]] == "queued"
    assert rows(queue, "SELECT count(*), count(DISTINCT n) FROM {s}.effect") == [(59, 59)]
    # Its batch was worked off again, one by one.
    assert len(begun) == 60 + SIZE


def test_a_job_whose_lease_ran_out_has_nothing_beside_it(
    queue: SqlQueue, spec: QueueSpec[Work], sending: Sending
) -> None:
    fill(queue, spec, 5 * SIZE)
    dead = {job.id for job in queue.claim("work", limit=3, worker="dead")}
    make_due(queue)
    beside: list[int] = []

    def handler(job: Job[Work]) -> None:
        if job.id in dead:
            beside.append(value(queue, "SELECT count(*) FROM {s}.job") - free(queue))

    summary = consumer_of(queue, spec, handler).drain()
    assert (summary.succeeded, beside) == (5 * SIZE, [1, 1, 1])
    assert sending.sent > 0


@pytest.mark.parametrize(
    "how", ["savepoint", "error", "DEALLOCATE ALL", "DISCARD PLANS", "DEALLOCATE", "rows as mappings"]
)
def test_what_a_handler_does_with_the_connection_costs_no_batch(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str, how: str
) -> None:
    """After a rollback the driver deallocates all prepared statements of a session."""
    jobs = 8 * SIZE
    fill(queue, spec, jobs, backoff=Backoff(3600))
    handled: list[int] = []
    sessions: set[int] = set()
    prepared: list[list[tuple[str, str]]] = []

    def handler(job: Job[Work]) -> None:
        connection = job.connection
        assert (connection.row_factory, connection.cursor_factory) == (tuple_row, psycopg.Cursor)
        handled.append(job.payload.n)
        sessions.add(connection.info.backend_pid)
        prepared.append(connection.execute(PREPARED).fetchall())
        connection.execute(f"INSERT INTO {effect} VALUES (%s)", [job.payload.n], prepare=True)
        if job.payload.n % 7 or not prepared[-1]:
            return
        if how == "savepoint":
            with connection.transaction(force_rollback=True):
                connection.execute(f"DELETE FROM {effect}")
        elif how == "error":
            connection.execute("SELECT 1 / 0")
        elif how == "rows as mappings":
            connection.row_factory = dict_row
            connection.cursor_factory = psycopg.ClientCursor
        elif how == "DEALLOCATE":
            connection.execute(f"DEALLOCATE {prepared[-1][0][0]}")
        else:
            connection.execute(how)

    summary = consumer_of(queue, spec, handler).drain()
    failed = (
        len([n for n, found in zip(handled, prepared, strict=True) if n % 7 == 0 and found]) if how == "error" else 0
    )
    assert sorted(handled) == list(range(jobs))
    assert (summary.claimed, summary.succeeded, summary.retried) == (jobs, jobs - failed, failed)
    assert value(queue, "SELECT count(*) FROM {s}.effect") == jobs - failed
    assert len(sessions) == 2
    assert any(prepared)
    # Not for each batch: once, and once more where no hint gives a parameter its type, as when all buckets are swept.
    assert max(Counter(text for _, text in found).most_common(1)[0][1] for found in prepared if found) <= 2
