"""Consuming a queue as a whole: seal its due jobs into a batch, read the batch, publish in one transaction.

Whoever reads (Spark, as a rule) never changes the queue: a plan is run as often as Spark likes. The driver seals the due
jobs under one lease; the results and the end of the jobs become visible in one transaction, guarded by the batch's token.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue.errors import BatchLost, InvalidInput, QueueError, QueuePaused
from dagster_sqlqueue.executors import Transaction
from dagster_sqlqueue.payloads import storable_text
from dagster_sqlqueue.queue import SqlQueue

logger = logging.getLogger("dagster_sqlqueue")


@dataclass(frozen=True, slots=True)
class Batch:
    """A sealed set of leased jobs. `token` is its fence."""

    id: UUID
    key: str
    queue: str
    token: int
    job_count: int


def seal(
    queue: SqlQueue,
    name: str,
    key: str,
    *,
    owner: str,
    filter: Mapping[str, Any] | None = None,
    lease_seconds: float = 60.0,
    patience_seconds: float | None = None,
) -> Batch:
    """Lease every due job of a queue that fits the filter to one batch.

    A batch that a killed owner left behind under the same key is taken over once its lease has run out.

    Args:
        queue: where the queue is.
        name: the queue.
        key: what the batch is for: asset and partition, say. One open batch a key.
        owner: who seals, for people to read.
        filter: take only jobs whose payload contains this.
        lease_seconds: how long the batch holds without `extend`.
        patience_seconds: how long to wait for somebody else's lease on the key; None: a lease and a bit.

    Raises:
        UnknownQueue: the queue does not exist.
        BatchLost: somebody else holds the key's batch, or took this one over.
        QueuePaused: the queue is paused.
        InvalidInput: the queue's keys take turns, or it has limits: a batch takes every due job at once.
    """
    settings = queue.settings(name)
    if settings.paused_at is not None:
        raise QueuePaused(
            f"queue {name!r} is paused since {settings.paused_at:%Y-%m-%d %H:%M:%S} UTC, so nothing can be sealed into a"
            f" batch. Resume it with: sqlqueue resume {name}"
        )
    if settings.keyed or settings.limited:
        raise InvalidInput(
            f"queue {name!r} is ordered or has limits, and a batch takes every due job at once: consume it job by job, or"
            " take order and limits off it"
        )
    batch_id, token = _open(queue, name, key, owner, lease_seconds, patience_seconds)
    parameters = {"batch_id": batch_id, "token": token}
    for bucket in sorted({head.bucket for head in queue.peek_heads(name) if head.due_seconds >= 0}):
        queue.database.run("bury_spent", {"queue": name, "bucket": bucket})
        queue.database.run(
            "batch_seal",
            {**parameters, "queue": name, "bucket": bucket, "filter": json.dumps(filter or {}), "worker": owner},
        )
    rows = queue.database.run("batch_sealed", parameters)
    if not rows:
        raise _lost(key)
    return Batch(batch_id, key, name, token, rows[0][0])


def publish(queue: SqlQueue, batch: Batch, transaction: Transaction, *, output: Mapping[str, Any]) -> None:
    """End the batch's jobs as succeeded, in the transaction that writes the results.

    Args:
        queue: where the batch was sealed.
        batch: as `seal` gave it.
        transaction: from `queue.database.transaction()`; an error must leave its block, so that it rolls back.
        output: JSON that says where the results are.

    Raises:
        BatchLost: the batch was taken over, or some of its jobs were: nothing may be committed.
    """
    rows = transaction.run(
        "batch_publish", {"batch_id": batch.id, "token": batch.token, "output": json.dumps(dict(output))}
    )
    if not rows or rows[0][0] != rows[0][1]:
        raise _lost(batch.key)


def abandon(queue: SqlQueue, batch: Batch, reason: str) -> int:
    """Give the batch's jobs back at once, their attempt spent. Gives their number; 0 when it is not ours any more."""
    rows = queue.database.run(
        "batch_abandon", {"batch_id": batch.id, "token": batch.token, "error": storable_text(reason)[:10_000]}
    )
    return int(rows[0][0]) if rows else 0


def outputs(queue: SqlQueue, key: str, limit: int = 1) -> list[dict[str, Any]]:
    """What the key's published batches said about their results, the latest first."""
    return [json.loads(output) for _, output in queue.database.run("batch_last", {"key": key, "limit": limit})]


@contextlib.contextmanager
def kept(queue: SqlQueue, batches: list[Batch], *, lease_seconds: float = 60.0) -> Iterator[Callable[[], None]]:
    """Extend the batches' leases from a thread while the block runs; an error in the block abandons what is unpublished.

    Yields:
        A check to call before publishing; it raises `BatchLost` when a lease could not be extended.
    """
    stopping = threading.Event()
    lost: list[str] = []

    def extend() -> None:
        while not stopping.wait(lease_seconds / 4):
            for batch in batches:
                try:
                    parameters = {"batch_id": batch.id, "token": batch.token, "lease_seconds": lease_seconds}
                    if not queue.database.run("batch_extend", parameters) and not stopping.is_set():
                        lost.append(batch.key)
                except QueueError as error:
                    logger.warning("a batch's lease could not be extended, it is tried again: %s", error)
                except Exception:
                    logger.exception("a batch's lease could not be extended, it is tried again")

    def check() -> None:
        if lost:
            raise _lost(lost[0])

    thread = threading.Thread(target=extend, name="sqlqueue-batch-heartbeat", daemon=True)
    thread.start()
    try:
        yield check
    except BaseException as error:
        stopping.set()
        for batch in batches:
            with contextlib.suppress(QueueError):
                abandon(queue, batch, f"the batch's run failed: {type(error).__name__}: {error}")
        raise
    finally:
        stopping.set()
        thread.join()


def _open(
    queue: SqlQueue, name: str, key: str, owner: str, lease_seconds: float, patience_seconds: float | None
) -> tuple[UUID, int]:
    patience = lease_seconds * 1.25 if patience_seconds is None else patience_seconds
    until = time.monotonic() + patience
    waiting = threading.Event()
    while True:
        rows = queue.database.run(
            "batch_open",
            {"id": uuid7(), "key": key, "queue": name, "owner": owner, "lease_seconds": lease_seconds},
        )
        if rows:
            return rows[0][0], rows[0][1]
        holder = queue.database.run("batch_holder", {"key": key})
        if holder and time.monotonic() >= until:
            raise BatchLost(
                f"batch {key!r} is held by {holder[0][0]!r} for {holder[0][1]:.0f} more seconds; let it finish or stop it,"
                " then try again"
            )
        waiting.wait(min(1.0, max(holder[0][1], 0.05)) if holder else 0.05)


def _lost(key: str) -> BatchLost:
    return BatchLost(
        f"batch {key!r}, or some of its jobs, passed to somebody else; nothing was published. Run it again: it finds the"
        " present state"
    )
