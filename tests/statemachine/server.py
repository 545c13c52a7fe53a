"""The library under test, and a connection to its tables."""

from datetime import datetime
from typing import Any

import psycopg

from dagster_sqlqueue import SqlQueue


class Server:
    """The library under test, two consumers and an operator, each with what it remembers; and a connection to the tables."""

    def __init__(self, url: str, schema: str) -> None:
        self.consumers = [SqlQueue(url, schema=schema, pool_size=1) for _ in range(2)]
        self.operator = SqlQueue(url, schema=schema, pool_size=1)
        self.operator.migrate()
        self._tables = psycopg.connect(url, autocommit=True, options=f"-c search_path={schema} -c timezone=UTC")

    def close(self) -> None:
        for queue in (*self.consumers, self.operator):
            queue.close()
        self._tables.close()

    def reset(self) -> datetime:
        """Empty the tables; returns the time."""
        tables = (
            "job, job_archive, job_replaced, transactional_consumer, rate_start, stale_write, waiter, worker, assignment,"
            " bucket, queue"
        )
        self._tables.execute(";".join(f"DELETE FROM {table}" for table in tables.split(", ")))
        for queue in (*self.consumers, self.operator):
            queue.catalog._seen.clear()
        self._tables.execute("SELECT setseed(0.5)")
        return self.execute("SELECT statement_timestamp()")[0][0]

    def execute(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._tables.execute(query, parameters or None, prepare=True)
        return cursor.fetchall() if cursor.description else []


LIVE = """
SELECT id, bucket, priority, state, lease_no, attempt, max_attempts, order_no, limited, cancel_requested_at IS NOT NULL,
    unique_key, unique_until_claim, ordering_key, CASE WHEN available_at < 'infinity'
        THEN CAST(LEAST(GREATEST(round(EXTRACT(EPOCH FROM available_at - %s) / 3600), -999), 999) AS integer) END,
    CAST(payload ->> 'n' AS integer)
FROM job ORDER BY bucket, priority DESC, available_at, id
"""
ARCHIVED = """
SELECT id, state, lease_no, attempt, bucket, priority, unique_key, unique_until_claim, ordering_key,
    CAST(payload ->> 'n' AS integer)
FROM job_archive
"""
STALE = "SELECT COALESCE(sum(writes), 0) FROM stale_write"
