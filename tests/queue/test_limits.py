"""Limits: a rate, jobs that run at once, and a share for each key."""

from collections import Counter

from psycopg import sql

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, RateLimit, SqlQueue
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.support import Work, claim, make_due, value


def test_a_drain_waits_for_its_rate_and_keeps_to_it(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, rate=RateLimit(10, 0.5))
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(35)])
    summary = Consumer(queue, spec, lambda job: None).drain()
    assert summary.succeeded == 35
    assert summary.seconds >= 1.5
    breach = (
        "SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN interval '0.4999 s' PRECEDING AND"
        " CURRENT ROW) AS n FROM {s}.job_archive) AS w"
    )
    assert value(queue, breach) <= 10


def test_a_rate_counts_the_moment_of_a_claim_and_not_of_its_commit(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, rate=RateLimit(1, 1_800))
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    with queue.database.transaction() as transaction:
        (late,) = queue.leases.claim_within(transaction, ClaimRequest("work", limit=3, worker="w"))
        # It takes an hour to its commit.
        for table in ("job", "rate_start"):
            name = sql.Identifier(queue.database.schema, table)
            earlier = sql.SQL("UPDATE {} SET started_at = started_at - interval '1 h'")
            transaction.connection.execute(earlier.format(name))
    (now,) = claim(queue, 3)
    assert now.id != late.id
    assert claim(queue, 3) == []
    # Two came into sight within a moment; they were claimed an interval apart.
    apart = "SELECT max(started_at) - min(started_at) >= interval '30 min' FROM {s}.job WHERE started_at IS NOT NULL"
    assert value(queue, apart)


def test_a_limit_counts_leases_until_they_end_by_themselves(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, max_running=3)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    held = claim(queue, 10)
    assert len(held) == 3
    assert claim(queue, 10) == []
    queue.complete(held[:1])
    assert len(claim(queue, 10)) == 1
    make_due(queue)
    taken = 0
    while jobs := claim(queue, 10, worker="another"):
        taken += len(jobs)
    assert taken == 3
    assert queue.heartbeat(held[1:], lease_seconds=300).held == set()


def test_a_lease_that_ran_out_is_not_extended_where_it_counts(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, max_running=1)
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    job = claim(queue)
    make_due(queue)
    assert queue.heartbeat(job, lease_seconds=300).held == set()


def test_keys_take_turns_and_none_has_more_than_its_share(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=1, max_running_per_key=2)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key="hog") for n in range(1_500)])
    queue.enqueue_many(spec, [NewJob(Work(n=10_000 + n), ordering_key=f"small {n % 5}") for n in range(10)])
    first = []
    while jobs := queue.claim("work", limit=50, worker="w"):
        first += jobs
    assert Counter(job.ordering_key for job in first) == {"hog": 2, **{f"small {n}": 2 for n in range(5)}}
    queue.complete(first)
    assert [job.ordering_key for job in queue.claim("work", limit=50, worker="w")] == ["hog", "hog"]
