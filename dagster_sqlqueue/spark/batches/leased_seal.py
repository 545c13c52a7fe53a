"""Lease jobs to a batch: the seal of leased batches."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.execution import Parameters, Row
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.odd_jobs import despite_odd_jobs
from dagster_sqlqueue.spark.batches.loss import lost
from dagster_sqlqueue.spark.batches.model import Batch
from dagster_sqlqueue.spark.batches.wanted import Opened, Wanted
from dagster_sqlqueue.spark.local_days import NO_EVENTS

logger = logging.getLogger("dagster_sqlqueue")

WAIT_MILLISECONDS = 100
"""How long a seal waits for a job that another transaction has locked, before it leaves locked jobs out."""

_SEALED_TOGETHER = 100_000_000
"""Bytes of jobs that one statement seals, about: a quarter of a million. Bucket by bucket each of the table's pages is
visited once for each bucket.
"""


PACKED_FROM = 10_000
"""From so many due jobs on, a batch has its jobs in packs: with fewer, single ones are reached faster where they are."""


def leased(queue: SqlQueue, wanted: Wanted, opened: Opened, filter: dict[str, Any]) -> Batch:
    """Lease the due jobs that fit the filter to the batch.

    Raises:
        BatchLost: the batch was taken over.
    """
    mine = {"batch_id": opened.id, "token": opened.token, "worker": wanted.owner, **wanted._asdict()}
    rows = _renewed(queue, wanted, opened)
    ((many, _),) = queue.database.run("batch_suits", {"queue": wanted.queue, "least": PACKED_FROM})
    _lease_all(queue, wanted.queue, mine, rows, packed=bool(many))
    _bury_spent(queue, wanted.queue, [row[0] for row in rows])
    return _sealed(queue, [wanted], [opened], [filter])[0]


def leased_days(
    queue: SqlQueue, days: Mapping[str, Wanted], opened: Sequence[Opened], closed: Mapping[str, Any] | None
) -> list[Batch]:
    """Lease the due jobs of some days to the batches of these, in one statement.

    Args:
        queue: where they are.
        days: ISO dates, as the payloads have them in their field `day`, and the batch to seal for each.
        opened: the batches, in the same order.
        closed: take only jobs whose account has no live job of its day on the queue `queue`, whose payloads have their day
            at the path `day_path` and their account at `account_path`; with those of `local_days.parameters`, that day is
            one of a zone's clocks, and has to be over by them. None: all.

    Raises:
        BatchLost: a batch was taken over.
    """
    all_wanted = list(days.values())
    first = all_wanted[0]
    buckets: set[int] = set()
    for wanted, batch in zip(all_wanted, opened, strict=True):
        # Of new ones none has jobs yet.
        if not buckets or batch.token > 1:
            buckets.update(row[0] for row in _renewed(queue, wanted, batch))
    events = {**NO_EVENTS, **(closed or {})}
    asked = {
        **events,
        "ids": [batch.id for batch in opened],
        "tokens": [batch.token for batch in opened],
        "days": list(days),
        "queue": first.queue,
        "buckets": sorted(buckets),
        "worker": first.owner,
        "lease_seconds": first.lease_seconds,
        "events": events["queue"],
    }
    rows = despite_odd_jobs(queue.database, first.queue, partial(queue.database.run, "batch_seal_days", asked))
    if left := sum(row[2] for row in rows):
        logger.warning(
            "%d jobs of %d days of %r are left: events of theirs are on %r, or their day is not over",
            left,
            len(days),
            first.key,
            events["queue"],
        )
    _bury_spent(queue, first.queue, sorted(buckets))
    return _sealed(queue, all_wanted, opened, [{"day": day} for day in days])


def _renewed(queue: SqlQueue, wanted: Wanted, opened: Opened) -> Sequence[Row]:
    """Lease the jobs again that the batch has already. Returns the rows of `batch_buckets`."""
    mine = {"batch_id": opened.id, "token": opened.token, "worker": wanted.owner}
    rows = queue.database.run("batch_buckets", {"queue": wanted.queue, "batch_id": opened.id})
    for bucket, held, _ in rows:
        if held:
            renew = partial(queue.database.run, "batch_renew", {**mine, "bucket": bucket})
            despite_odd_jobs(queue.database, wanted.queue, renew)
    return rows


def _bury_spent(queue: SqlQueue, name: str, buckets: Sequence[int]) -> None:
    """Send the due jobs without an attempt left to the dead letter: no seal takes them.

    After the seal, for of the jobs before it all would be read.
    """
    queue.database.run("bury_spent_jobs", {"queue": name, "buckets": buckets})


def _sealed(
    queue: SqlQueue, all_wanted: Sequence[Wanted], opened: Sequence[Opened], filters: Sequence[dict[str, Any]]
) -> list[Batch]:
    """Close the batches against further jobs."""
    ids = {"ids": [batch.id for batch in opened], "tokens": [batch.token for batch in opened]}
    counts: dict[UUID, int] = dict(queue.database.run("batch_sealed", ids))
    found = []
    for wanted, batch, filter in zip(all_wanted, opened, filters, strict=True):
        if batch.id not in counts:
            raise lost(wanted.key)
        found.append(
            Batch(
                batch.id,
                wanted.key,
                wanted.queue,
                batch.token,
                counts[batch.id],
                Mode.LEASED,
                batch.sealed_at,
                filter=filter,
                attempt=batch.attempt,
            )
        )
    return found


def _lease_all(queue: SqlQueue, name: str, mine: Parameters, rows: Sequence[Row], *, packed: bool) -> None:
    """Lease some buckets at a time; where other transactions have locked jobs, bucket by bucket, and without those.

    Args:
        queue: where they are.
        name: of the queue.
        mine: what the statements are given.
        rows: of `batch_buckets`.
        packed: whether the jobs that can be are moved into packs.
    """
    buckets = [row[0] for row in rows]
    parts = min(len(buckets), 1 + rows[0][2] // _SEALED_TOGETHER) if rows else 0
    for part in range(parts):
        some = buckets[part::parts]

        def together(transaction: Transaction, some: Sequence[int] = some) -> None:
            transaction.connection.execute(f"SET LOCAL lock_timeout = {WAIT_MILLISECONDS}".encode())
            if packed:
                transaction.run("pack_batch", {**mine, "buckets": some})
            transaction.run("batch_seal", {**mine, "buckets": some})

        try:
            despite_odd_jobs(queue.database, name, partial(queue.database.transact, together))
        except psycopg.errors.LockNotAvailable:
            for bucket in some:
                free = partial(queue.database.run, "batch_seal_free", {**mine, "bucket": bucket})
                despite_odd_jobs(queue.database, name, free)
