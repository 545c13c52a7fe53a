"""A topic, queues that subscribe to it, and a query of the jobs that its messages became."""

from datetime import UTC, datetime
from typing import Any

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.topics import Topics, TopicSpec
from tests.support import Work, rows, value

ORDERS = TopicSpec("orders", Work)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def jobs(queue: SqlQueue, columns: str = "queue", order: str = "queue, id") -> list[tuple[Any, ...]]:
    return rows(queue, f"SELECT {columns} FROM {{s}}.job ORDER BY {order}")


def count(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


def subscribed(topics: Topics, *queues: str, **settings: Any) -> None:
    """Subscribe each queue to the topic `orders`, under its own name with `er` after it."""
    for queue in queues:
        topics.subscribe("orders", f"{queue}er", queue, **settings)
