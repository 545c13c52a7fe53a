"""Where a claim looks: the own region's buckets first, and hints of where each bucket's head is."""

from datetime import UTC, datetime, timedelta

import psycopg

from dagster_sqlqueue import Consumer, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.hints import HeadHints
from tests.core.support import Work, numbers, rows


def test_buckets_of_the_own_region_come_first(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    rows(queue, "UPDATE {s}.bucket SET region = 'eu' WHERE bucket IN (1, 3)")
    queue.enqueue_many(spec, [NewJob(Work(n=n), region="eu" if n % 2 else "local") for n in range(400)])
    assert rows(queue, "SELECT DISTINCT bucket FROM {s}.job WHERE region = 'eu' ORDER BY 1") == [(1,), (3,)]
    order: list[int] = []
    Consumer(queue, spec, lambda job: order.append(job.payload.n % 2), region="eu", batch_size=30).drain()
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


def test_what_the_database_knows_of_the_heads_serves_a_claim_without_order(queue: SqlQueue) -> None:
    spec = QueueSpec("single", Work, bucket_count=1, strategy="fanout")
    queue.create_queue(spec)
    queue.enqueue(spec, NewJob(Work(n=1), run_at=datetime.now(UTC) - timedelta(hours=1)))
    assert queue.note_sweep("single") == 1
    (hint,) = queue.head_hints("single").values()
    assert datetime.fromisoformat(hint) < datetime.now(UTC) - timedelta(minutes=59)
    hints = HeadHints(sweep_seconds=3600)
    hints.array([0])
    hints.know({0: str(datetime.now(UTC))})
    assert queue.claim("single", limit=5, worker="w", hints=hints) == []
    hints.know(queue.head_hints("single"))
    assert len(queue.claim("single", limit=5, worker="w", hints=hints)) == 1


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
