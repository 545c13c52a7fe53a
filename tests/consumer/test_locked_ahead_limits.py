"""When no batch is locked while another one is worked on in transactional mode, and when one that was is let go."""

from dataclasses import replace

import pytest

from dagster_sqlqueue import Job, QueueSpec, SqlQueue, Strategy
from tests.support import Work, until
from tests.support.drained import Clock
from tests.support.locked_ahead import SIZE, Sending, consumer_of, fill, free
from tests.support.pooler import pooler

pytestmark = pytest.mark.usefixtures("quick")


def test_nothing_is_locked_ahead_where_a_lock_takes_more_than_a_statement(
    queue: SqlQueue, spec: QueueSpec[Work], sending: Sending
) -> None:
    other = replace(spec, strategy=Strategy.FIFO)
    queue.create_queue(other)
    fill(queue, other, 4 * SIZE)
    assert consumer_of(queue, other, lambda job: None).drain().succeeded == 4 * SIZE
    assert sending.sent == 0


def test_nothing_is_locked_ahead_of_a_slow_handler_or_of_little(
    queue: SqlQueue, spec: QueueSpec[Work], sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(queue, spec, 2 * SIZE - 1)
    assert consumer_of(queue, spec, lambda job: None).drain().succeeded == 2 * SIZE - 1
    fill(queue, spec, 5)
    assert consumer_of(queue, spec, lambda job: None, batch_size=1).drain().succeeded == 5
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy.QUICK_SECONDS", 0.0)
    fill(queue, spec, 4 * SIZE)
    assert consumer_of(queue, spec, lambda job: None).drain().succeeded == 4 * SIZE
    assert sending.sent == 0


def test_a_session_of_a_pooler_is_not_kept_for_it(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    fill(queue, spec, 4 * SIZE)
    with pooler(url) as theirs, SqlQueue(theirs, schema=queue.database.schema) as pooled:
        watched = Sending(pooled.leases)
        pooled.leases = watched  # type: ignore[assignment]
        assert consumer_of(pooled, spec, lambda job: None).drain().succeeded == 4 * SIZE
        assert watched.sent == 0


def test_settings_that_are_new_since_hold_for_the_batch_locked_ahead(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    fill(queue, spec, 6 * SIZE)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        if len(seen) == 2 * SIZE:
            queue.pause("work")

    summary = consumer_of(queue, spec, handler).drain()
    # The one that was locked when the queue was paused is worked off, and no other one.
    assert summary.succeeded in (2 * SIZE, 3 * SIZE)
    assert len(seen) == summary.succeeded
    assert free(queue) == 6 * SIZE - summary.succeeded


def test_a_drain_whose_time_is_up_lets_the_next_batch_go(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in ("consumer", "transactional"):
        monkeypatch.setattr(f"dagster_sqlqueue.consumer.{module}.time", clock)
    fill(queue, spec, 6 * SIZE)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(job.payload.n)
        if len(seen) == 2 * SIZE + 1:
            until(lambda: free(queue) == 2 * SIZE, "the lock of the next batch")
            clock.ahead = 3_600

    summary = consumer_of(queue, spec, handler).drain(budget_seconds=3_600)
    assert (summary.claimed, summary.succeeded, summary.released) == (30, 30, 0)
    assert free(queue) == 3 * SIZE
