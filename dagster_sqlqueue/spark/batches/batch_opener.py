"""Open batches: a new one for a key, or one that its owner left behind."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from uuid_utils.compat import uuid7

from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import BatchLost, InvalidInput, QueuePaused
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.payload.storable import key_problem
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.unpublished_batches import give_back
from dagster_sqlqueue.spark.batches.wanted import Opened, Wanted


def open_batch(queue: SqlQueue, wanted: Wanted, patience_seconds: float | None) -> Opened:
    """Open the batch of a key, or take it over.

    Args:
        queue: where it is.
        wanted: what to seal.
        patience_seconds: how long to wait for another owner's; None: slightly longer than a lease.

    Raises:
        BatchLost: another owner still has it.
    """
    patience = wanted.lease_seconds * 1.25 if patience_seconds is None else patience_seconds
    until = time.monotonic() + patience
    waiting = threading.Event()
    while True:
        opened = queue.database.transact(lambda transaction: _take(transaction, wanted))
        if opened is not None:
            return opened
        other = queue.database.run("batch_owner", {"key": wanted.key})
        left = until - time.monotonic()
        if other and left <= 0:
            owner, seconds, held = other[0]
            how = "in its transaction" if held else f"for {seconds:.0f} more seconds"
            raise BatchLost(
                f"batch {wanted.key!r} is held by {owner!r} {how}; let it finish or stop it, then try again"
            )
        waiting.wait(min(1.0, max(other[0][1], 0.05), max(left, 0.05)) if other else 0.05)


def _take(transaction: Transaction, wanted: Wanted) -> Opened | None:
    """Open the key's batch, or take it over; None: another owner has it."""
    settings = wanted.opening(wanted.mode)
    found = transaction.run("batch_find", settings)
    if not found:
        rows = _open_free(transaction, [wanted])
        return Opened(*rows[0]) if rows else None
    batch_id, over, same = found[0]
    if not over:
        return None
    give_back(transaction, batch_id, wanted.queue, keep=same and wanted.mode is Mode.LEASED)
    return Opened(*transaction.run("batch_reopen", {"id": batch_id, **settings})[0])


def open_together(queue: SqlQueue, all_wanted: Sequence[Wanted]) -> list[Opened]:
    """Open the batches of several keys in one statement: none, if one of them is open already.

    Args:
        queue: where they are.
        all_wanted: what to seal, of one queue and in one way.
    """

    def work(transaction: Transaction) -> list[Opened]:
        rows = _open_free(transaction, all_wanted)
        if len(rows) < len(all_wanted):
            raise _NotAll
        return [Opened(*row) for row in rows]

    try:
        return queue.database.transact(work)
    except _NotAll:
        return []


class _NotAll(Exception):
    """One of several batches is open already: the transaction is rolled back."""


def _open_free(transaction: Transaction, all_wanted: Sequence[Wanted]) -> Sequence[Row]:
    first = all_wanted[0]
    these = {
        "ids": [uuid7() for _ in all_wanted],
        "keys": [one.key for one in all_wanted],
        "filters": [one.filter for one in all_wanted],
    }
    return transaction.run("batch_open", {**first.opening(first.mode), **these})


def check_queue(queue: SqlQueue, name: str) -> None:
    """Check that a queue can be sealed.

    Raises:
        UnknownQueue, QueuePaused, InvalidInput: it cannot.
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


def check_key(key: str) -> None:
    """Check what a batch is for.

    Raises:
        InvalidInput: it is no key.
    """
    if problem := key_problem(key):
        advice = "" if ";" in problem else "; give asset and partition, say"
        raise InvalidInput(f"the key of what is consumed, {key!r:.100}, {problem}{advice}")


def filter_text(filter: Mapping[str, Any] | None) -> str:
    """Return a filter as JSON.

    Raises:
        InvalidInput: it is no JSON object.
    """
    try:
        if not isinstance(filter, Mapping | None):
            raise TypeError(f"it is a {type(filter).__name__}")
        return json.dumps(dict(filter or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"filter is {filter!r}; give what a payload is to contain, as JSON: {error}") from None
