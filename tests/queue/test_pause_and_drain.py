"""Pausing, resuming and draining a queue."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import Strategy
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.gate.patience import PATIENCE
from tests.queue.admin_support import PLAIN, side, take
from tests.support import Work, make_due, rows, take_time, until, value


def test_a_paused_queue_hands_out_nothing_and_takes_everything(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    with SqlQueue(url, schema=queue.database.schema) as consumer:
        (running, *_) = consumer.claim("work", limit=1, worker="w")
        first = queue.pause("work")
        assert first.paused_at is not None
        assert queue.pause("work") == first
        assert queue.enqueue(spec, Work(n=4))
        assert consumer.claim("work", limit=10, worker="w") == []
        assert consumer.heartbeat([running], lease_seconds=300).held == {running.id}
        consumer.complete([running])
        assert queue.resume("work").paused_at is None
        assert len(consumer.claim("work", limit=10, worker="w")) == 4


def pass_pause(queue: SqlQueue) -> None:
    """Let the moment come until which the queue was paused."""
    rows(queue, "UPDATE {s}.queue SET paused_until = statement_timestamp()")


@pytest.mark.parametrize("limits", [{}, {"max_running": 5}, {"ordered": True}], ids=["plain", "limited", "ordered"])
def test_no_strategy_claims_from_a_paused_queue(queue: SqlQueue, limits: dict[str, Any]) -> None:
    for strategy in set(Strategy) - ({Strategy.TOKEN} if limits else set()):
        spec = replace(PLAIN, strategy=strategy, **limits)
        queue.create_queue(spec)
        queue.enqueue(spec, Work(n=1))
        queue.pause("work")
        assert take(queue) == []
        queue.resume("work")
        (job,) = take(queue)
        queue.complete([job])
        queue.enqueue(spec, Work(n=2))
        queue.pause("work", until=3600)
        assert take(queue) == []
        pass_pause(queue)
        (job,) = take(queue)
        queue.complete([job])


def test_a_pause_that_ends_by_itself(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    then = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    paused = queue.pause("work", until=then.astimezone(timezone(timedelta(hours=9))))
    assert paused.paused_until == then
    assert queue.pause("work", until=then) == paused, "nothing changed"
    assert (queue.pause("work", until=timedelta(days=2)).paused_until or then) > then
    later = queue.pause("work", until=7200.0)
    assert later.paused_at == paused.paused_at
    assert later.paused_until is not None
    assert later.paused_until < then
    assert queue.drain("work")
    assert queue.settings("work") == later, "a drain leaves a paused queue as it is"
    pass_pause(queue)
    now = queue.settings("work")
    assert (now.paused_at, now.paused_until, queue.stats("work").paused_at) == (None, None, None)
    assert queue.resume("work").revision == now.revision, "there is nothing to resume"
    again = queue.pause("work")
    assert again.paused_at is not None
    assert paused.paused_at is not None
    assert again.paused_at > paused.paused_at
    assert again.paused_until is None
    assert queue.pause("work", until=60).paused_until is not None
    assert queue.pause("work").paused_until is None
    assert queue.resume("work").paused_at is None


@pytest.mark.parametrize(
    "until",
    [
        0,
        -1,
        True,
        "tomorrow",
        float("nan"),
        float("inf"),
        timedelta(0),
        timedelta.max,
        datetime(2001, 1, 1),
        datetime(2001, 1, 1, tzinfo=UTC),
    ],
)
def test_a_moment_until_which_no_queue_can_be_paused(queue: SqlQueue, until: Any) -> None:
    before = queue.settings("work")
    with pytest.raises(InvalidInput, match="until is"):
        queue.pause("work", until=until)
    assert queue.settings("work") == before


def test_a_consumer_goes_on_when_the_pause_is_over(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    done = threading.Event()
    queue.pause("work", until=3600)
    consumer = Consumer(queue, spec, lambda job: done.set())
    queue.enqueue(spec, Work(n=1))
    with side(lambda: consumer.drain(linger_seconds=2 * PATIENCE)):
        until(lambda: value(queue, "SELECT count(*) FROM {s}.waiter"))
        pass_pause(queue)
        assert done.wait(PATIENCE)
        consumer.stop()


def test_drain_waits_for_what_runs(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(8)])
    jobs = take(queue, 5)
    assert not queue.drain("work", timeout_seconds=0)
    assert take(queue) == []
    drained = threading.Event()
    with side(lambda: queue.drain("work") and drained.set()):
        queue.complete(jobs[:3])
        assert not drained.wait(0.3)
        queue.release(jobs[3:])
        until(drained.is_set)
    assert queue.settings("work").paused_at is not None
    assert queue.depth("work").ready == 5


def test_drain_does_not_wait_for_leases_that_ran_out_or_jobs_for_later(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    take(queue)
    make_due(queue)
    queue.enqueue(spec, Work(n=3))
    rows(queue, "UPDATE {s}.job SET available_at = now() + interval '1 day' WHERE state = 'queued'")
    assert queue.drain("work")


def test_drain_waits_for_work_in_a_transaction(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    with queue.database.transaction() as transaction:
        take_time(transaction)
        assert queue.leases.lock_due(transaction, ClaimRequest("work", limit=1))
        assert not queue.drain("work", timeout_seconds=0.1)
    assert queue.drain("work", timeout_seconds=PATIENCE)


def test_drain_ends_when_somebody_resumes_the_queue(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = take(queue)
    with side(queue.drain, "work") as drained:
        until(lambda: queue.settings("work").paused_at)
        queue.resume("work")
        queue.complete([job])
        assert drained.result(PATIENCE) is False


def test_a_timeout_that_is_none(queue: SqlQueue) -> None:
    timeouts: list[Any] = [-1, float("nan"), float("inf"), "1", True]
    for seconds in timeouts:
        with pytest.raises(InvalidInput, match="timeout_seconds is"):
            queue.drain("work", timeout_seconds=seconds)
    assert queue.settings("work").paused_at is None
