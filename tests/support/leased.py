"""Batches of the queue `work` under a lease, and what may be reported about jobs of any batch."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dagster_sqlqueue import Cancel, Done, Hold, Reject, Retry, Snooze, SqlQueue
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from tests.support import rows


def seal(queue: SqlQueue, key: str = "k", *, owner: str = "w", **settings: Any) -> Batch:
    return batches.seal(queue, "work", key, owner=owner, **settings)


def publish(queue: SqlQueue, batch: Batch, output: str = "here") -> None:
    with queue.database.transaction() as transaction:
        batches.publish(queue, batch, transaction, output={"at": output})


def ids_of(queue: SqlQueue) -> dict[int, UUID]:
    """The live jobs, by the number in their payloads."""
    return {n: id for id, n in rows(queue, "SELECT id, (payload ->> 'n')::integer FROM {s}.job")}


def outcomes_of(ids: dict[int, UUID]) -> list[tuple[UUID, Outcome]]:
    """Something to report about eight of them, of every kind."""
    return [
        (ids[0], Reject("bad row")),
        (ids[1], Retry("again", after=1_000)),
        (ids[2], Snooze(1_000)),
        (ids[3], Hold("look")),
        (ids[4], Cancel("not wanted")),
        (ids[5], Done({"n": 5})),
        (ids[6], Snooze(datetime(2100, 1, 1, tzinfo=UTC))),
        (ids[7], Retry("by backoff")),
    ]
