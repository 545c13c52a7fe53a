"""The second batch that is claimed ahead: when there is one, and when the first is enough."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import Consumer, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.batch_size import MOST_MEASURED
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, rows, until
from tests.support.claimed_ahead import SendingClaims, consumer_of, fill_evenly, gone_before, running
from tests.support.locked_ahead import LONG, SIZE
from tests.support.raw_rows import in_schema

BUCKETS = range(4)
ALL = 7
"""The claims of eight batches of which one is claimed ahead: the third to the eighth, and one that finds nothing."""

pytestmark = pytest.mark.usefixtures("quick")


def drains_with(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    at_a_time: int,
    act: Callable[[Job[Work], int], object] | None = None,
    *,
    filled: Sequence[int] = BUCKETS,
    **settings: Any,
) -> None:
    """Drain eight batches of jobs in the filled buckets, of which so many are under lease at a time and never more.

    At each job something is done; its number counts from 1.
    """
    fill_evenly(queue, spec, 8 * SIZE, filled)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(running(queue))
        # Once: each job whose handler fails is tried again.
        if len(seen) == 3 * SIZE + 1:
            until(lambda: running(queue) == at_a_time * SIZE, "batches under lease")
            seen[-1] = running(queue)
        if act is not None:
            act(job, len(seen))

    summary = consumer_of(queue, spec, handler, **settings).drain()
    assert (summary.claimed, summary.succeeded, summary.stale) == (8 * SIZE, 8 * SIZE, 0)
    assert max(seen) == at_a_time * SIZE


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second batch is claimed ahead however little the consumer waits for the server, and however slow its handler is."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._MUCH", 0.0)
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._SECOND_SECONDS", math.inf)


def test_a_second_batch_is_claimed_ahead(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    drains_with(queue, spec, 3)


def test_of_the_largest_batches_that_a_consumer_chooses_a_second_is_claimed_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, each batch is four times as large as the one before, up to the largest.
    monkeypatch.setattr("dagster_sqlqueue.consumer.batch_size._BATCH_SECONDS", PATIENCE)
    jobs = 10 * MOST_MEASURED
    fill_evenly(queue, spec, jobs, BUCKETS)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        seen.append(running(queue) if len(seen) % 100 == 0 else 0)
        if len(seen) == 5 * MOST_MEASURED:
            until(lambda: running(queue) == 3 * MOST_MEASURED, "batches under lease")
            seen[-1] = running(queue)

    summary = Consumer(queue, spec, handler, lease_seconds=LONG).drain()
    assert (summary.claimed, summary.succeeded, summary.stale) == (jobs, jobs, 0)
    assert max(seen) == 3 * MOST_MEASURED


def test_a_consumer_that_does_not_wait_for_the_server_claims_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._MUCH", math.inf)
    drains_with(queue, spec, 2)


def test_the_jobs_of_each_bucket_are_worked_off_in_order(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    """Also where the second of two claims overtakes the first, which waits for the end of a job that someone has locked."""
    # A claim takes all jobs of one bucket, and some of the next one.
    wide = replace(spec, name="wide", bucket_count=10)
    queue.create_queue(wide)
    seen: list[UUID] = []
    with caller(url) as other:

        def act(job: Job[Work], number: int) -> None:
            seen.append(job.id)
            if number == 2 * SIZE:
                other.execute(in_schema(queue, "SELECT FROM {s}.job WHERE id = %s FOR UPDATE"), [job.id])
            if number == 3 * SIZE:
                try:
                    until(lambda: running(queue) == 3 * SIZE, "the second claim")
                finally:
                    other.rollback()

        drains_with(queue, wide, 3, act, filled=range(10))
    in_bucket = dict(rows(queue, "SELECT id, bucket FROM {s}.job_archive"))
    assert set(in_bucket.values()) == set(range(10))
    for bucket in range(10):
        mine = [id for id in seen if in_bucket[id] == bucket]
        assert mine == sorted(mine)


@pytest.mark.parametrize(("settings", "filled"), [({"buckets": [2]}, [2]), ({"region": "eu"}, BUCKETS)])
def test_where_buckets_cannot_be_divided_one_batch_is_claimed_ahead(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sending_claims: SendingClaims,
    settings: dict[str, Any],
    filled: Sequence[int],
) -> None:
    """A consumer has one bucket, or a region, whose buckets come first."""
    rows(queue, "UPDATE {s}.bucket SET region = 'eu' WHERE bucket IN (1, 3)")
    drains_with(queue, spec, 2, filled=filled, **settings)
    assert sending_claims.sent == ALL


def test_a_consumer_whose_buckets_come_first_from_now_on_goes_on_with_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    """They are given its region in its third batch, and a verb of its process reads that."""
    after: list[int] = []

    def give_region(job: Job[Work], number: int) -> None:
        if number == 2 * SIZE + 1:
            rows(queue, "UPDATE {s}.bucket SET region = 'eu' WHERE bucket IN (1, 3)")
            queue.settings("work")
        if number == 4 * SIZE + 1:
            until(lambda: running(queue) == 2 * SIZE, "batches under lease")
        if number > 4 * SIZE:
            after.append(running(queue))

    drains_with(queue, spec, 3, give_region, region="eu")
    assert max(after) == 2 * SIZE


def test_where_one_bucket_has_all_jobs_one_claim_gets_them(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two claims finds its buckets empty: the other goes on alone, from all of them."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._AGAIN_SECONDS", PATIENCE)
    fill_evenly(queue, spec, 20 * SIZE, [2])
    most: list[int] = []
    summary = consumer_of(queue, spec, lambda job: most.append(running(queue))).drain()
    assert (summary.claimed, summary.succeeded, summary.stale) == (20 * SIZE, 20 * SIZE, 0)
    assert max(most) == 2 * SIZE
    # Ahead: the third to the twentieth batch, one that found nothing, and once a second one, of the empty buckets.
    assert sending_claims.sent == 18 + 1 + 1


@pytest.mark.parametrize("bound", ["_SECOND_SECONDS", "_SECOND_JOBS"])
def test_of_larger_or_slower_batches_one_is_claimed_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"dagster_sqlqueue.consumer.ahead_policy.{bound}", 0)
    drains_with(queue, spec, 2)


def test_a_consumer_that_becomes_slower_goes_on_with_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its fourth batch; the fifth and sixth are under lease already, and are worked off."""
    after: list[int] = []

    def slow_down(job: Job[Work], number: int) -> None:
        if number == 3 * SIZE + 1:
            monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._SECOND_SECONDS", 0.0)
        if number == 5 * SIZE + 1:
            until(lambda: running(queue) == 2 * SIZE, "batches under lease")
        if number > 5 * SIZE:
            after.append(running(queue))

    drains_with(queue, spec, 3, slow_down)
    assert max(after) == 2 * SIZE


def test_a_consumer_that_gets_no_second_connection_goes_on_with_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._AGAIN_SECONDS", PATIENCE)
    sending_claims.lost_at, sending_claims.lose = 3, gone_before
    drains_with(queue, spec, 2)
    assert sending_claims.sent == ALL + 1
