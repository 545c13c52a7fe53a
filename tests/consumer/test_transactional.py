"""Transactional mode: a job, its effect and its end are one transaction."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import (
    Backoff,
    Cancel,
    Done,
    Hold,
    Job,
    NewJob,
    QueueSpec,
    RateLimit,
    Reject,
    Retry,
    Snooze,
    SqlQueue,
)
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.support import Work, claim, make_due, rows, states, until, value
from tests.support.drained import Clock
from tests.support.transactional import locked


def test_every_outcome_in_one_transaction(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(8)])
    outcomes: dict[int, Any] = {
        0: Done({"sum": 1}),
        1: Reject("never"),
        2: Hold("look at it"),
        3: Cancel("not wanted"),
        4: Retry("later", after=3600),
        5: Snooze(3600),
        6: Snooze(datetime.now(UTC) + timedelta(hours=2)),
        7: None,
    }
    summary = locked(queue, spec, lambda job: outcomes[job.payload.n]).drain()
    expected = ["succeeded", "failed", "held", "cancelled", "queued", "queued", "queued", "succeeded"]
    assert states(queue) == dict(enumerate(expected))
    counts = (summary.succeeded, summary.failed, summary.held, summary.cancelled, summary.retried, summary.snoozed)
    assert counts == (2, 1, 1, 1, 1, 2)
    assert value(queue, "SELECT result ->> 'sum' FROM {s}.job_archive WHERE payload ->> 'n' = '0'") == "1"
    attempts = dict(rows(queue, "SELECT (payload ->> 'n')::integer, attempt FROM {s}.job"))
    assert attempts == {2: 0, 4: 1, 5: 0, 6: 0}
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE lease_no <> 1") == 0


def test_an_effect_and_the_end_of_its_job_are_one(queue: SqlQueue, effect: str) -> None:
    spec = QueueSpec("work", Work, backoff=Backoff(60))
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])

    def handler(job: Job[Work]) -> Any:
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")
        if job.payload.n % 5 == 1:
            job.connection.execute("SELECT 1 / 0")
        if job.payload.n % 5 == 2:
            return Reject("no")
        return Done() if job.payload.n % 5 else Retry("again", after=0 if job.attempt == 1 else 60)

    summary = locked(queue, spec, handler).drain()
    ended = {n for n, state in states(queue).items() if state == "succeeded"}
    assert ended == {n for n in range(20) if n % 5 in (3, 4)}
    assert {row[0] for row in rows(queue, "SELECT n FROM {s}.effect")} == ended
    assert summary.failed == 4


def test_a_handler_may_take_its_time_in_a_transaction(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    own = value(queue, "SHOW idle_in_transaction_session_timeout")

    def handler(job: Job[Work]) -> Any:
        return Done(job.connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()[0])

    locked(queue, spec, handler).drain()
    assert value(queue, "SELECT result #>> '{{}}' FROM {s}.job_archive") == own


def test_what_a_handler_runs_is_planned_as_the_server_is_set(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    shown = "SHOW enable_seqscan"

    def handler(job: Job[Work]) -> Any:
        if job.payload.n % 3 == 0:
            return None
        (found,) = job.connection.execute(shown).fetchone()
        return Reject(found) if job.payload.n % 3 == 1 else Done(found)

    locked(queue, spec, handler, batch_size=3).drain()
    found = "SELECT COALESCE(error, result #>> '{{}}'), count(*) FROM {s}.job_archive GROUP BY 1 ORDER BY 1"
    assert rows(queue, found) == [("on", 6), (None, 4)]
    assert value(queue, shown) == "off"


def test_a_crash_leaves_the_jobs_as_they_were(queue: SqlQueue, spec: QueueSpec[Work], effect: str) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])

    def dies(job: Job[Work]) -> None:
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")
        if job.payload.n == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locked(queue, spec, dies).drain()
    assert rows(queue, "SELECT DISTINCT state, attempt, lease_no FROM {s}.job") == [("queued", 0, 0)]
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE available_at <= now()") == 10
    assert rows(queue, "SELECT * FROM {s}.effect") == []


@pytest.mark.parametrize("strategy", ["fanout", "fifo", "round_robin"])
def test_a_batch_is_committed_before_the_next_one_writes(queue: SqlQueue, strategy: str) -> None:
    spec = QueueSpec("work", Work, strategy=strategy)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])
    ended: list[int] = []
    free: list[int] = []

    def handler(job: Job[Work]) -> None:
        job.connection.execute("SELECT 1")
        ended.append(value(queue, "SELECT count(*) FROM {s}.job_archive"))
        if len(ended) in (1, 11, 21):
            free.append(len(rows(queue, "SELECT id FROM {s}.job FOR UPDATE SKIP LOCKED")))

    summary = locked(queue, spec, handler, batch_size=10).drain()
    assert ended == [0] * 10 + [10] * 10 + [20] * 10
    # Where one statement picks jobs, the next batch may be locked while one is worked on.
    assert free in ([20, 10, 0], () if strategy == "fifo" else [20, 0, 0])
    assert (summary.claimed, summary.batches, summary.succeeded) == (30, 3, 30)


def test_a_crash_in_a_later_batch_leaves_the_earlier_ones_ended(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])
    seen = 0

    def dies(job: Job[Work]) -> None:
        nonlocal seen
        seen += 1
        if seen == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locked(queue, spec, dies, batch_size=10).drain()
    assert Counter(states(queue).values()) == {"succeeded": 10, "queued": 20}
    assert rows(queue, "SELECT DISTINCT attempt, lease_no FROM {s}.job") == [(0, 0)]
    until(lambda: len(rows(queue, "SELECT id FROM {s}.job FOR UPDATE SKIP LOCKED")) == 20, "the end of the transaction")


def test_a_connection_that_is_cut_in_a_later_batch_costs_that_batch_only(
    queue: SqlQueue, spec: QueueSpec[Work], effect: str
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])
    seen = 0

    def handler(job: Job[Work]) -> None:
        nonlocal seen
        seen += 1
        if seen == 15:
            rows(queue, "SELECT pg_terminate_backend(%s)", job.connection.info.backend_pid)
        job.connection.execute(f"INSERT INTO {effect} VALUES ({job.payload.n})")

    consumer = locked(queue, spec, handler, batch_size=10)
    # What it had locked is free once the server has ended the transaction, which may be after all the rest is done.
    until(lambda: consumer.drain().succeeded == 30, "the end of all jobs")
    assert (consumer.summary.claimed, consumer.summary.batches) == (30, 3)
    assert seen == 35
    assert rows(queue, "SELECT count(*), count(DISTINCT n) FROM {s}.effect") == [(30, 30)]
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive") == [(1,)]


def test_a_connection_that_is_cut_after_longer_than_a_lease_ends_no_drain(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    """A database that went away is waited for from then on, however long the handler had taken."""
    queue.enqueue(spec, Work(n=1))
    lease_seconds = 2.0
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.attempt)
        if len(seen) == 1:
            time.sleep(1.5 * lease_seconds)
            rows(queue, "SELECT pg_terminate_backend(%s, 60000)", job.connection.info.backend_pid)

    assert locked(queue, spec, handler, lease_seconds=lease_seconds).drain().succeeded == 1
    assert seen == [1, 1]


def test_a_drain_whose_time_is_up_takes_no_further_batch(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in ("consumer", "transactional"):
        monkeypatch.setattr(f"dagster_sqlqueue.consumer.{module}.time", clock)
    queue.enqueue_many(spec, [Work(n=n) for n in range(30)])

    def handler(job: Job[Work]) -> None:
        clock.ahead = 3_600

    summary = locked(queue, spec, handler, batch_size=10).drain(budget_seconds=3_600)
    assert (summary.claimed, summary.succeeded, summary.released) == (10, 10, 0)


def test_a_job_that_a_transaction_took_from_a_dead_consumer_refuses_that_one(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=1), Work(n=2)])
    stale = claim(queue)
    make_due(queue)
    locked(queue, spec, lambda job: Retry("again", after=60) if job.payload.n == 1 else None).drain()
    assert queue.heartbeat(stale, lease_seconds=60).held == set()
    assert queue.requeue([(stale[0], Snooze(0))]) == set()
    assert value(queue, "SELECT sum(writes) FROM {s}.stale_write") == 3


def test_two_transactions_share_a_queue_and_a_stop_leaves_the_rest(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(400)])
    seen: Counter[int] = Counter()

    def handler(job: Job[Work]) -> None:
        seen[job.payload.n] += 1
        if len(seen) == 300:
            stopping.stop()

    stopping = locked(queue, spec, handler, batch_size=40)
    other = locked(queue, spec, handler, batch_size=40)
    with ThreadPoolExecutor(2) as pool:
        summaries = [future.result() for future in [pool.submit(stopping.drain), pool.submit(other.drain)]]
    # The other one may have found nothing more to do just before these were let go.
    summaries.append(locked(queue, spec, handler, batch_size=40).drain())
    assert set(seen.values()) == {1}
    assert len(seen) == 400
    assert sum(summary.succeeded for summary in summaries) == 400


@pytest.mark.parametrize("strategy", ["fanout", "fifo", "round_robin"])
def test_transactional_mode_with_each_strategy_that_locks(queue: SqlQueue, strategy: str) -> None:
    spec = QueueSpec("work", Work, strategy=strategy)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), priority=n % 3) for n in range(90)])
    assert locked(queue, spec, lambda job: None, batch_size=25).drain().succeeded == 90


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"strategy": "assign"}, "has the strategy 'assign'"),
        ({"strategy": "token"}, "has the strategy 'token'"),
        ({"ordered": True}, "is ordered or limited"),
        ({"max_running": 3}, "is ordered or limited"),
        ({"rate": RateLimit(3)}, "is ordered or limited"),
    ],
)
def test_transactional_mode_says_which_queues_need_leases(queue: SqlQueue, settings: dict[str, Any], why: str) -> None:
    spec = QueueSpec("work", Work, **settings)
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    with pytest.raises(InvalidInput, match=why):
        locked(queue, spec, lambda job: None).drain()
    assert states(queue) == {1: "queued"}


def test_transactional_mode_goes_by_the_settings_of_now(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with SqlQueue(url, schema=queue.database.schema) as other:
        other.create_queue(QueueSpec("work", Work, max_running=1))
        queue.settings("work")
        other.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    with queue.database.transaction() as transaction:
        assert len(queue.leases.lock_due(transaction, ClaimRequest("work", limit=5))) == 1


def test_a_consumer_is_noted_as_long_as_it_works(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    other = replace(spec, name="mail")
    queue.create_queue(other)
    queue.enqueue(spec, Work(n=1))
    queue.enqueue(other, Work(n=2))
    signs = "SELECT queue FROM {s}.transactional_consumer WHERE worker = 'run/1' ORDER BY 1"
    seen: list[Any] = []

    def inner(job: Job[Work]) -> None:
        seen.append(rows(queue, signs))

    def outer(job: Job[Work]) -> None:
        locked(queue, other, inner, worker="run/1").drain()
        seen.append(rows(queue, signs))

    assert locked(queue, spec, outer, worker="run/1").drain().succeeded == 1
    assert seen == [[("mail",), ("work",)], [("work",)]]
    assert rows(queue, signs) == []


def test_a_suspect_that_a_stopped_consumer_had_begun_keeps_its_attempt(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    claim(queue, 2)
    rows(queue, "UPDATE {s}.job SET available_at = now(), alone = false")
    consumer = locked(queue, spec, lambda job: None, on_claim=lambda jobs: consumer.stop())
    consumer.drain()
    assert rows(queue, "SELECT state, attempt FROM {s}.job") == [("queued", 0)]
    summary = locked(queue, spec, lambda job: None).drain()
    assert summary.succeeded == 1
    assert value(queue, "SELECT attempt FROM {s}.job_archive") == 1
