"""Seal the daily jobs of several days in one pass."""

from collections.abc import Mapping
from typing import Any

from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.model.queue import check_lease_seconds
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.batches.batch_opener import (
    check_key,
    check_queue,
    filter_text,
    open_batch,
    open_together,
)
from dagster_sqlqueue.spark.batches.batch_seal import BACKOFF, warn_of_attempts
from dagster_sqlqueue.spark.batches.leased_seal import leased_days
from dagster_sqlqueue.spark.batches.model import Batch
from dagster_sqlqueue.spark.batches.wanted import Opened, Wanted


def seal_days(
    queue: SqlQueue,
    name: str,
    days: Mapping[str, str],
    *,
    owner: str,
    held: list[Batch],
    lease_seconds: float = 60.0,
    patience_seconds: float | None = None,
    backoff: Backoff = BACKOFF,
    closed: Mapping[str, Any] | None = None,
) -> list[Batch]:
    """Seal the due jobs of some days into a leased batch for each: the jobs of the queue are read once, not once for
    each day.

    Args:
        queue: where the queue is.
        name: of the queue.
        days: what each batch is for, and the day that its jobs have in their field `day`. Always give them in one order.
        owner: as for `seal`.
        held: an empty list, for `kept`: it has each batch from when it is open, and in the end all as they were sealed.
        lease_seconds: as for `seal`.
        patience_seconds: as for `seal`.
        backoff: as for `seal`.
        closed: take only jobs whose account has no live job of its day on the queue `queue`, whose payloads have their day
            at the path `day_path` and their account at `account_path`; see `leased_days`. None: all.

    Raises:
        UnknownQueue, QueuePaused, InvalidInput, BatchLost: as for `seal`.
    """
    policy = [backoff.seconds, backoff.factor, backoff.max_seconds]
    lease_seconds = check_lease_seconds(lease_seconds)
    for key in days:
        check_key(key)
    check_queue(queue, name)
    wanted = {
        day: Wanted(name, key, owner, filter_text({"day": day}), Mode.LEASED, lease_seconds, policy)
        for key, day in days.items()
    }
    opened: list[Opened] = open_together(queue, list(wanted.values()))
    for one, batch in zip(wanted.values(), opened, strict=False):
        held.append(_open(one, batch))
    if not opened:
        for one in wanted.values():
            opened.append(open_batch(queue, one, patience_seconds))
            held.append(_open(one, opened[-1]))
    for one, batch in zip(wanted.values(), opened, strict=True):
        warn_of_attempts(one.key, batch)
    held[:] = leased_days(queue, wanted, opened, closed)
    return held


def _open(wanted: Wanted, opened: Opened) -> Batch:
    """Return a batch that has no jobs yet."""
    return Batch(opened.id, wanted.key, wanted.queue, opened.token, 0, Mode.LEASED, opened.sealed_at)
