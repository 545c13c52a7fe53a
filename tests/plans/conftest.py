"""A table of 100,000 live jobs, looked at by every plan test, changed by none: each explains in a transaction it undoes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from tests.core.support import Work, rows

JOBS = 100_000


@pytest.fixture(scope="module")
def backlog(url: str) -> Iterator[SqlQueue]:
    """16 buckets and ten priorities of `work`, a quarter of it for later, 2,000 jobs running; a second queue beside it."""
    now = datetime.now(UTC)
    with SqlQueue(url, schema="plans") as queue:
        queue.init()
        for name, count in (("work", JOBS), ("other", 5_000)):
            spec = QueueSpec(name, Work)
            queue.create_queue(spec)
            due = (now + timedelta(days=1) if n % 4 == 0 else now - timedelta(seconds=n % 3_000) for n in range(count))
            queue.enqueue_many(
                spec,
                (NewJob(Work(n=n, note="x" * 100), priority=n // 4 % 10, run_at=at) for n, at in enumerate(due)),
            )
        for bucket in range(16):
            queue.claim("work", buckets=[bucket], limit=125, lease_seconds=3_600, worker="w")
        rows(queue, "VACUUM ANALYZE {s}.job")
        yield queue
