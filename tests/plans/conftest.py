"""A table of 200,000 live jobs, looked at by every plan test, changed by none: each explains in a transaction it undoes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from tests.core.support import Work, rows
from tests.plans.explaining import PLAN_MODES, Explainer

JOBS = 100_000
KEY_JOBS = 50_000
"""How many of the keyed queue's jobs have the key `big`; as many share the other keys."""
KEYS = 500
RUNNING = 2_000
LIMITED = 1_000


@pytest.fixture(scope="session")
def backlog(url: str) -> Iterator[SqlQueue]:
    """Four queues in one table.

    - `work`: 100,000 jobs in 16 buckets and ten priorities, a quarter of them for later, 2,000 running.
    - `keyed`: ordered, 100,000 jobs, half of them of one key; nine of ten are parked, the head of each key runs.
    - `limited`: 5,000 jobs, 1,000 of them under leases that count towards its limit.
    - `other`: 5,000 jobs that nobody asks for.
    """
    now = datetime.now(UTC)
    with SqlQueue(url, schema="plans") as queue:
        queue.init()
        for name, count in (("work", JOBS), ("other", 5_000)):
            spec = QueueSpec(name, Work)
            queue.create_queue(spec)
            due = (now + timedelta(days=1) if n % 4 == 0 else now - timedelta(seconds=n % 3_000) for n in range(count))
            queue.enqueue_many(
                spec,
                (
                    NewJob(Work(n=n, note="x" * 100), priority=n // 4 % 10, run_at=at, tags=[f"t{n % 50}"])
                    for n, at in enumerate(due)
                ),
            )
        _keyed(queue, now)
        limited = QueueSpec("limited", Work, max_running=2 * LIMITED)
        queue.create_queue(limited)
        queue.enqueue_many(limited, (NewJob(Work(n=n)) for n in range(5_000)))
        queue.claim("limited", limit=LIMITED, lease_seconds=3_600, worker="w")
        for bucket in range(16):
            queue.claim("work", buckets=[bucket], limit=RUNNING // 16, lease_seconds=3_600, worker="w")
        rows(queue, "VACUUM ANALYZE {s}.job")
        yield queue


def _keyed(queue: SqlQueue, now: datetime) -> None:
    spec = QueueSpec("keyed", Work, ordered=True)
    queue.create_queue(spec)
    jobs = (
        NewJob(Work(n=n), ordering_key="big" if n % 2 else f"key {n // 2 % KEYS}", run_at=now - timedelta(hours=1))
        for n in range(2 * KEY_JOBS)
    )
    queue.enqueue_many(spec, jobs)
    # As claims leave it behind: heads run or are due, and of the rest what they have met is parked.
    rows(
        queue,
        """
        UPDATE {s}.job AS j
        SET available_at = CASE WHEN j.order_no = head.order_no THEN now() + interval '1 hour' ELSE 'infinity' END,
            state = CASE WHEN j.order_no = head.order_no THEN 'running' ELSE 'queued' END,
            lease_no = 1, attempt = 1, claimed_by = 'w'
        FROM (
            SELECT ordering_key, min(order_no) AS order_no FROM {s}.job WHERE queue = 'keyed' GROUP BY ordering_key
        ) AS head
        WHERE j.queue = 'keyed' AND j.ordering_key = head.ordering_key
          AND (j.order_no = head.order_no OR mod(hashtext(j.id::text), 10) <> 0)
        """,
    )


@pytest.fixture(params=PLAN_MODES)
def explain(backlog: SqlQueue, request: pytest.FixtureRequest) -> Iterator[Explainer]:
    with backlog.database.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {request.param}".encode())
        yield Explainer(connection, backlog.database.schema)
