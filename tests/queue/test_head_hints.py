"""Where a claim searches: the own region's buckets first, and hints of where each bucket's head is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import ClaimFilter, Consumer, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.bucket_order import BucketOrder
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.head_hints import HeadHints
from tests.gate.patience import sized
from tests.support import Work, numbers, rows
from tests.support.claimed_ahead import fill_evenly


@pytest.mark.parametrize("strategy", ["round_robin", "fanout", "token"])
def test_buckets_of_the_own_region_come_first(queue: SqlQueue, spec: QueueSpec[Work], strategy: str) -> None:
    spec = replace(spec, strategy=strategy)
    queue.create_queue(spec)
    rows(queue, "UPDATE {s}.bucket SET region = 'eu' WHERE bucket IN (1, 3)")
    queue.enqueue_many(spec, [NewJob(Work(n=n), region="eu" if n % 2 else "local") for n in range(400)])
    assert rows(queue, "SELECT DISTINCT bucket FROM {s}.job WHERE region = 'eu' ORDER BY 1") == [(1,), (3,)]
    order: list[int] = []
    Consumer(queue, spec, lambda job: order.append(job.payload.n % 2), region="eu", batch_size=20).drain()
    assert len(order) == 400
    assert 0 not in order[: sum(order)]


def test_a_hint_hides_no_job_for_longer_than_a_sweep(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    hints = HeadHints(sweep_seconds=3600)
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    assert len(queue.claim("work", limit=5, worker="w", hints=hints)) == 5
    late = datetime.now(UTC) - timedelta(hours=1)
    queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=late) for n in range(100, 110)])
    seen = set()
    while jobs := queue.claim("work", limit=5, worker="w", hints=hints):
        seen |= set(numbers(jobs))
    hints.sweep_next()
    while jobs := queue.claim("work", limit=5, worker="w", hints=hints):
        seen |= set(numbers(jobs))
        hints.sweep_next()
    assert len(seen) == 15


def _ended_and_claimed(queue: SqlQueue, **how: Any) -> list[ClaimedJob]:
    queue.enqueue(OTHER, Work(n=-1))
    before = queue.claim("work", worker="w", limit=1)
    return queue.leases.finish_and_claim(_ends(before), ClaimRequest("wide", worker="w", **how))[1]


def _locked(queue: SqlQueue, **how: Any) -> list[ClaimedJob]:
    with queue.database.transaction() as transaction:
        jobs = queue.leases.lock_due(transaction, ClaimRequest("wide", **how))
        queue.leases.finish_locked(transaction, _ends(jobs), worker="w")
    return jobs


def _ended_and_locked(queue: SqlQueue, **how: Any) -> list[ClaimedJob]:
    queue.enqueue(OTHER, Work(n=-1))
    with queue.database.transaction() as transaction:
        before = queue.leases.lock_due(transaction, ClaimRequest("work", limit=1))
        jobs = queue.leases.finish_and_lock(transaction, _ends(before), ClaimRequest("wide", worker="w", **how))
        queue.leases.finish_locked(transaction, _ends(jobs), worker="w")
    return jobs


def _sent_and_locked(queue: SqlQueue, *, buckets: list[int], hints: HeadHints, limit: int) -> list[ClaimedJob]:
    settings = queue.settings("wide")
    with queue.database.transaction() as transaction:
        sent = queue.leases.send_lock(transaction, ClaimRequest("wide", limit, "w", buckets, hints=hints), settings)
        # The lock of the batch after this one is sent before this one is received.
        hints.search(settings, [*buckets[1:], *buckets[:1]])
        jobs = sent.locked()
        queue.leases.finish_locked(transaction, _ends(jobs), worker="w")
    return jobs


def _ends(jobs: list[ClaimedJob]) -> Endings:
    return Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)


BUCKETS = sized(16, 64)
WIDE = QueueSpec("wide", Work, bucket_count=BUCKETS)
OTHER = QueueSpec("work", Work)
TAKING: dict[str, Any] = {
    "claim": lambda queue, **how: queue.claim("wide", worker="w", **how),
    "end and claim": _ended_and_claimed,
    "lock": _locked,
    "end and lock": _ended_and_locked,
    "send and lock": _sent_and_locked,
}
KINDS: dict[str, dict[str, Any]] = {
    **{strategy: {"strategy": strategy} for strategy in ("round_robin", "fifo", "fanout", "assign")},
    "ordered": {"ordered": True},
    "a limit of keys": {"max_running_per_key": 5},
    "limited": {"max_running": 100_000},
}


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        *(
            (how, kind)
            for how in TAKING
            for kind in ("round_robin", "fifo", "fanout")
            if (how, kind) != ("send and lock", "fifo")
        ),
        *(
            (how, kind)
            for how in ("claim", "end and claim")
            for kind in ("assign", "ordered", "a limit of keys", "limited")
        ),
    ],
)
def test_each_bucket_is_swept_behind_a_backlog(queue: SqlQueue, how: str, kind: str) -> None:
    """As a consumer goes round: each claim is filled by the one bucket that it begins at."""
    fill(queue, **KINDS[kind])
    hints, bucket_order = HeadHints(sweep_seconds=3_600), BucketOrder(None, None)
    bucket_order.arrange(queue.settings("wide"))

    def go_round() -> set[int]:
        taken: set[int] = set()
        for _ in range(BUCKETS):
            jobs = TAKING[how](queue, limit=5, buckets=bucket_order.order, hints=hints)
            bucket_order.turn(after=jobs[0].bucket)
            taken |= set(numbers(jobs))
        return taken

    go_round()
    late = add_late(queue)
    hints.sweep_next()
    assert go_round() >= late
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'wide'")


def fill(queue: SqlQueue, **settings: Any) -> None:
    """Put a backlog in each bucket."""
    queue.create_queue(replace(WIDE, **settings))
    queue.enqueue_many(WIDE, [NewJob(Work(n=n), ordering_key=f"{n}") for n in range(BUCKETS * 40)])


def add_late(queue: SqlQueue) -> set[int]:
    """Put two jobs in each bucket that were due an hour ago; returns their numbers."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    late = set(range(10_000, 10_000 + 2 * BUCKETS))
    queue.enqueue_many(WIDE, [NewJob(Work(n=n), run_at=long_ago, ordering_key=f"{n}") for n in late])
    number = "CAST(payload ->> 'n' AS integer)"
    rows(queue, f"UPDATE {{s}}.job SET bucket = {number} %% %s WHERE {number} >= %s", BUCKETS, 10_000)
    return late


@pytest.mark.parametrize("strategy", ["round_robin", "fanout", "assign"])
def test_each_bucket_has_its_turn_behind_a_filter(queue: SqlQueue, strategy: str) -> None:
    fill(queue, strategy=strategy)
    late, filter = add_late(queue), ClaimFilter(payload={})
    jobs = [job for _ in range(BUCKETS) for job in queue.claim("wide", limit=5, worker="w", filter=filter)]
    assert set(numbers(jobs)) >= late
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'wide'")


@pytest.mark.parametrize("strategy", ["fanout", "assign"])
def test_who_remembers_nothing_takes_any_jobs(queue: SqlQueue, strategy: str) -> None:
    """Else all that begin at once would compete for the oldest."""
    spec = QueueSpec("wide", Work, bucket_count=1, strategy=strategy)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(1_000)])
    # The strategy `assign` chooses among as many as are claimed.
    limit = 1 if strategy == "fanout" else 300
    firsts = [numbers(queue.claim("wide", limit=limit, worker="w"))[0] for _ in range(3)]
    assert firsts != [0, limit, 2 * limit]
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'wide'")


def test_what_the_database_knows_of_the_heads_serves_a_claim_without_order(queue: SqlQueue) -> None:
    spec = QueueSpec("single", Work, bucket_count=1, strategy="fanout")
    queue.create_queue(spec)
    queue.enqueue(spec, NewJob(Work(n=1), run_at=datetime.now(UTC) - timedelta(hours=1)))
    assert queue.leases.note_sweep("single") == 1
    (hint,) = queue.leases.head_hints("single").values()
    assert datetime.fromisoformat(hint) < datetime.now(UTC) - timedelta(minutes=59)
    hints = HeadHints(sweep_seconds=3600)
    hints.array([0])
    hints.saw_all()
    hints.know({0: str(datetime.now(UTC))})
    assert queue.claim("single", limit=5, worker="w", hints=hints) == []
    hints.know(queue.leases.head_hints("single"))
    assert len(queue.claim("single", limit=5, worker="w", hints=hints)) == 1


def test_a_queue_whose_only_job_is_due_before_the_hints_is_not_empty(queue: SqlQueue) -> None:
    spec = QueueSpec("late", Work, bucket_count=2)
    queue.create_queue(spec)
    for n in range(3):
        queue.enqueue(spec, NewJob(Work(n=n), run_at=datetime.now(UTC) - timedelta(hours=1)))
    # As a consumer leaves it that found nothing due, but for longer than five seconds.
    rows(
        queue, "UPDATE {s}.bucket SET head_hint = now(), swept_at = now() + interval '10 minutes' WHERE queue = 'late'"
    )
    assert queue.depth("late").ready == 3
    assert queue.depth("late", cap=2).ready == 2
    assert rows(queue, "SELECT ready FROM {s}.depth('late')") == [(3,)]
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'late'")


def test_a_claim_without_order_that_was_sent_ahead_says_which_bucket_it_swept(queue: SqlQueue) -> None:
    spec = QueueSpec("free", Work, bucket_count=4, strategy="fanout")
    queue.create_queue(spec)
    fill_evenly(queue, spec, 80)
    channel = Channel(queue.database)
    known = dict.fromkeys(range(4), "2000-01-01 00:00:00+00")
    hints = HeadHints(sweep_seconds=3600)
    hints.know(known)
    request = ClaimRequest("free", 2, "w", [2, 0, 3, 1], hints=hints, joining=True)
    sent = queue.leases.send_claim_ahead(channel, None, request, queue.settings("free"))
    assert sent.receive() == 2
    jobs = sent.claimed()
    assert {job.bucket for job in jobs} == {2}
    # Another claim is sent before this one is noted.
    hints.search(queue.settings("free"), [1, 3, 0, 2])
    sent.noted(jobs, jobs)
    # What it took says nothing of what is older.
    assert hints.array(range(4)) == [None, None, "{" + ",".join([known[2]] * 10) + "}", None]
    channel.close()


def test_a_consumer_finds_what_was_committed_behind_its_hint(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with psycopg.connect(url) as producer:
        queue.enqueue_many(spec, [Work(n=n) for n in range(50)], connection=producer)
        queue.enqueue_many(spec, [Work(n=n) for n in range(100, 200)])
        committed = False

        def handler(job: Job[Work]) -> None:
            nonlocal committed
            if not committed:
                producer.commit()
                committed = True

        assert Consumer(queue, spec, handler, batch_size=10).drain().succeeded == 150
