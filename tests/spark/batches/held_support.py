"""What the tests of transactional batches share: sealing and publishing one, and which of its jobs have ended."""

from typing import Any

from dagster_sqlqueue import Mode, SqlQueue
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from tests.support import states


def seal(queue: SqlQueue, key: str = "k", **settings: Any) -> Batch:
    return batches.seal(queue, "work", key, owner="w", mode=Mode.TRANSACTIONAL, **settings)


def publish(queue: SqlQueue, batch: Batch) -> None:
    with batches.publication(queue, batch, output={"at": "here"}):
        pass


def ended(queue: SqlQueue) -> list[int]:
    """The numbers of the jobs that succeeded."""
    return sorted(number for number, state in states(queue).items() if state == "succeeded")
