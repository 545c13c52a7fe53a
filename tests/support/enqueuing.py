"""What the tests of enqueuing share: a job by its unique key, a list of what is live, a moment far away."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from tests.support import Work, rows

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def live(queue: SqlQueue, columns: str) -> list[tuple[Any, ...]]:
    return rows(queue, f"SELECT {columns} FROM {{s}}.job ORDER BY order_no, id")


def put(queue: SqlQueue, spec: QueueSpec[Work], n: int, key: str | None = "u", **more: Any) -> UUID | None:
    return queue.enqueue(spec, NewJob(Work(n=n), unique_key=key, **more), on_conflict="replace")
