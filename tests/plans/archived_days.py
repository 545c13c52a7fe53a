"""Ten days of archived jobs beside as many live ones, of a large queue and of a small one."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE, sized
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows
from tests.support.cleared import own_schema

ROWS = sized(60_000, 100_000)
DAYS = 10
PARTITIONS = DAYS + 3
DAILY = 2_000
"""Archived jobs of the queue of daily jobs, and as many live ones."""

ARCHIVED = """
    INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at,
        started_at, finished_at, ordering_key, region, tags, payload)
    SELECT
        gen_random_uuid(), %s, n %% 16, 0, CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 1, 3, at, at, at, at,
        'key ' || n %% 100, 'local', '{{}}',
        jsonb_build_object(
            'day', to_char(at, 'YYYY-MM-DD'), 'account', 'a' || n %% 50, 'zone', 'UTC', 'note', repeat('x', 80)
        )
    FROM (
        SELECT n, date_trunc('day', statement_timestamp(), 'UTC') - make_interval(secs => n * 86400.0 * %s / %s) AS at
        FROM generate_series(1, %s) AS n
    ) AS made
"""
"""Whole days, whatever the hour: of a day with hardly a row the planner reads them all."""
LIVE = """
    INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, queue_kept, wakes, payload)
    SELECT
        gen_random_uuid(), %s, n %% 16, n %% 10, at, at, 3, n > 1000, n <= 1000,
        jsonb_build_object(
            'day', to_char(at, 'YYYY-MM-DD'), 'account', 'a' || n %% 50, 'zone', 'UTC', 'note', repeat('x', 80)
        )
    FROM (
        SELECT n, statement_timestamp() - make_interval(secs => n) AS at FROM generate_series(1, %s) AS n
    ) AS made
"""


@pytest.fixture(scope="module")
def kept(url: str) -> Iterator[SqlQueue]:
    """The queues `events`, with nearly everything, and `daily`."""
    with own_schema(url, "archive_plans", connect_timeout=round(PATIENCE)) as queue:
        for name in ("events", "daily"):
            queue.create_queue(QueueSpec(name, Work))
        for day in range(-1, DAYS + 1):
            rows(
                queue,
                "SELECT {s}.make_archive_partition(CAST(timezone('UTC', now()) AS date) - CAST(%s AS integer))",
                day,
            )
        for name, count in (("events", ROWS), ("daily", DAILY)):
            rows(queue, ARCHIVED, name, DAYS - 1, count, count)
            rows(queue, LIVE, name, count)
        without_autovacuum(queue)
        rows(queue, "VACUUM ANALYZE {s}.job_archive, {s}.job")
        yield queue


@pytest.fixture
def explained(kept: SqlQueue) -> SqlQueue:
    return kept
