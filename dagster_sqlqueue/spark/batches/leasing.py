"""Leasing jobs to a batch: the seal of leased batches."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import psycopg

from dagster_sqlqueue.db.executors import Parameters, Row, Transaction
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.odd_jobs import despite_odd_jobs
from dagster_sqlqueue.spark.batches.loss import lost
from dagster_sqlqueue.spark.batches.model import Batch
from dagster_sqlqueue.spark.batches.wanted import Opened, Wanted

logger = logging.getLogger("dagster_sqlqueue")

WAIT_MILLISECONDS = 100
"""How long a seal waits for a job that somebody else has locked, before it leaves the jobs that others have."""

_SEALED_TOGETHER = 100_000_000
"""Bytes of jobs that one statement seals, about: a quarter of a million. Bucket by bucket each of the table's pages is
visited once for each bucket.
"""


def leased(
    queue: SqlQueue, wanted: Wanted, opened: Opened, filter: dict[str, Any], closed: Mapping[str, Any] | None
) -> Batch:
    """Lease the jobs to the batch.

    Raises:
        BatchLost: the batch was taken over.
    """
    mine = {"batch_id": opened.id, "token": opened.token, "worker": wanted.owner, **wanted._asdict()}
    rows = queue.database.run("batch_buckets", {"queue": wanted.queue, "batch_id": opened.id})
    for bucket, held, _ in rows:
        queue.database.run("bury_spent", {"queue": wanted.queue, "bucket": bucket})
        if held:
            renew = partial(queue.database.run, "batch_renew", {**mine, "bucket": bucket})
            despite_odd_jobs(queue.database, wanted.queue, renew)
    if closed is None:
        _lease_all(queue, wanted.queue, mine, rows)
    else:
        of_events = {"events": closed["queue"], "day_path": closed["day_path"], "account_path": closed["account_path"]}
        everywhere = {**mine, **of_events, "buckets": [row[0] for row in rows]}
        seal = partial(queue.database.run, "batch_seal_closed", everywhere)
        ((_, left),) = despite_odd_jobs(queue.database, wanted.queue, seal)
        if left:
            logger.warning(
                "%d jobs of batch %r are left: events of theirs are on %r", left, wanted.key, closed["queue"]
            )
    sealed = queue.database.run("batch_sealed", mine)
    if not sealed:
        raise lost(wanted.key)
    return Batch(
        opened.id,
        wanted.key,
        wanted.queue,
        opened.token,
        sealed[0][0],
        Mode.LEASED,
        opened.sealed_at,
        filter=filter,
        attempt=opened.attempt,
    )


def _lease_all(queue: SqlQueue, name: str, mine: Parameters, rows: Sequence[Row]) -> None:
    """Some buckets at a time; where others are at their jobs, bucket by bucket, and without theirs."""
    buckets = [row[0] for row in rows]
    parts = min(len(buckets), 1 + rows[0][2] // _SEALED_TOGETHER) if rows else 0
    for part in range(parts):
        some = buckets[part::parts]

        def together(transaction: Transaction, some: Sequence[int] = some) -> None:
            transaction.connection.execute(f"SET LOCAL lock_timeout = {WAIT_MILLISECONDS}".encode())
            transaction.run("batch_seal", {**mine, "buckets": some})

        try:
            despite_odd_jobs(queue.database, name, partial(queue.database.transact, together))
        except psycopg.errors.LockNotAvailable:
            for bucket in some:
                free = partial(queue.database.run, "batch_seal_free", {**mine, "bucket": bucket})
                despite_odd_jobs(queue.database, name, free)
