"""End a batch: publish it with its results, or abandon it."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.payload.serialization import json_text
from dagster_sqlqueue.payload.storable import storable_text
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.unpublished_batches import give_back, let_in
from dagster_sqlqueue.spark.batches.lease import Conflict, Held
from dagster_sqlqueue.spark.batches.loss import lost
from dagster_sqlqueue.spark.batches.model import Batch, held_by
from dagster_sqlqueue.spark.batches.outcomes import check_members, outcome_columns, report, report_all

_ERROR_LIMIT = 10_000


@contextlib.contextmanager
def publication(
    queue: SqlQueue,
    *batches: Batch,
    output: Mapping[str, Any],
    unmoved: bool = False,
    outcomes: Mapping[UUID, Outcome] | None = None,
) -> Iterator[Transaction]:
    """Yield the transaction in which batches are published: what the block writes through `transaction.connection`
    becomes visible together with the end of the jobs, or not at all.

    Args:
        queue: where the batches were sealed.
        batches: any number of leased ones, or one transactional one.
        output: JSON that says where the results are, kept for `outputs`.
        unmoved: whether files will be moved into place afterwards; `unmoved` has the output until `move` has moved
            them.
        outcomes: of single jobs, by id, which take effect with the publication, or not at all. Those that must outlive a
            publication that fails are reported by `report`, of a transactional batch before the block begins.

    Raises:
        BatchLost: a batch was taken over, or its transaction was lost: nothing was written.
        InvalidInput: several batches, and a transactional one among them; or no batch; or a job with an outcome is of none
            of them. Nothing was written.
        DatabaseUnavailable: the connection was lost while it committed, and it is not known whether it did: `outputs` says.
    """
    transactional = [batch for batch in batches if batch.mode is Mode.TRANSACTIONAL]
    if not batches or (transactional and len(batches) > 1):
        raise InvalidInput(
            f"{len(batches)} batches cannot be published together; give one or more leased ones, or one transactional one"
        )
    if transactional:
        if outcomes:
            check_members(batches, outcomes, report(queue, transactional[0], outcomes.items()))
        with _held_publication(queue, transactional[0], output, unmoved) as transaction:
            yield transaction
        return
    with queue.database.transaction() as transaction:
        transaction.lend()
        yield transaction
        transaction.take_back()
        if outcomes:
            # After the block, which may be long: heartbeats wait for the lock on the batch's row.
            report_all(transaction, batches, outcomes)
        for batch in batches:
            publish(queue, batch, transaction, output=output, unmoved=unmoved)


def publish(
    queue: SqlQueue, batch: Batch, transaction: Transaction, *, output: Mapping[str, Any], unmoved: bool = False
) -> None:
    """End the batch's jobs, in the transaction that writes the results: what `publication` does last.

    Args:
        queue: where the batch was sealed.
        batch: as `seal` returned it.
        transaction: from `queue.database.transaction()`, or for a transactional batch its own; an error must leave its
            block, so that it rolls back.
        output: JSON that says where the results are.
        unmoved: as for `publication`.

    Raises:
        BatchLost: the batch was taken over, or some of its jobs were: nothing may be committed.
    """
    held = held_by(batch) if batch.mode is Mode.TRANSACTIONAL else None
    if held is not None and (held.transaction is not transaction or not held.publishing):
        raise InvalidInput(
            f"batch {batch.key!r} is transactional, and its results belong in its own transaction: use publication"
        )
    jobs = batch.job_count if held is not None else None
    parameters = {
        "batch_id": batch.id,
        "token": batch.token,
        "output": json_text("output", dict(output)),
        "job_count": jobs,
        "unmoved": unmoved,
    }
    rows = transaction.run("batch_publish", parameters)
    if not rows:
        raise lost(batch.key)
    sealed, reported = rows[0]
    if held is not None:
        return  # they are ended already, within this transaction
    if reported:
        rest = {"rest": "succeeded", "error": None}
        done, returned, lines = transaction.run("batch_settle", {"batch_id": batch.id, **rest})[0]
        ended = done + returned
    else:
        ended, lines = transaction.run("succeed_batch", {"batch_id": batch.id})[0]
    let_in(transaction, batch.queue, lines)
    if ended != sealed:
        raise lost(batch.key, f"{ended} of its {sealed} jobs could be ended")


def abandon(queue: SqlQueue, batch: Batch, reason: str) -> int:
    """Release the batch's jobs at once, without an attempt spent; reported outcomes of single jobs take effect. It is
    an attempt of the batch, whose backoff begins.

    Returns:
        How many jobs are due again or held; 0 when the batch is not ours any more, and of a transactional one, whose
        jobs are as they were.
    """
    if batch.mode is Mode.TRANSACTIONAL:
        held_by(batch).close()

    def close(transaction: Transaction) -> int:
        # The transaction of a transactional batch is over when the server has noticed: this waits for it.
        error = storable_text(reason)[:_ERROR_LIMIT]
        if not transaction.run("batch_close", {"batch_id": batch.id, "token": batch.token, "error": error}):
            return 0
        return give_back(transaction, batch.id, batch.queue, error=error)[1]

    return queue.database.transact(close)


def outputs(queue: SqlQueue, key: str, limit: int = 1) -> list[dict[str, Any]]:
    """Return the outputs of the key's published batches, the latest first."""
    return [json.loads(output) for _, output in queue.database.run("batch_last", {"key": key, "limit": limit})]


def unmoved(queue: SqlQueue, *keys: str) -> list[tuple[str, dict[str, Any]]]:
    """Key and output of these keys' published batches whose files are not known to be in their place, the earliest
    first.
    """
    return [(key, json.loads(output)) for key, output in queue.database.run("batch_unmoved", {"keys": list(keys)})]


def move(queue: SqlQueue, owner: str, move: Callable[[], bool]) -> bool:
    """Move the files of a publication into their place, unless they are there; one process at a time does it, on whatever
    machine.

    Args:
        queue: where the batches were sealed.
        owner: what the publication's output has under this name.
        move: moves them; returns False if it cannot.

    Returns:
        Whether they are in their place, and known to be.
    """
    with queue.database.transaction() as transaction:
        if not transaction.run("batch_moving", {"owner": owner}):
            return True
        if not move():
            return False
        transaction.run("batch_moved", {"owner": owner})
    return True


@contextlib.contextmanager
def _held_publication(queue: SqlQueue, batch: Batch, output: Mapping[str, Any], unmoved: bool) -> Iterator[Transaction]:
    held = held_by(batch)
    committing = False
    try:
        held.settled()
        _apply_reports(batch, held)
        yield held.lend()
        held.take_back()
        publish(queue, batch, held.transaction, output=output, unmoved=unmoved)
        committing = True
        held.commit()
    except (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
        if not held.gone():
            held.close()
            raise
        if not committing or not _was_published(queue, batch):
            raise lost(batch.key, str(error).strip().partition("\n")[0]) from error
    except BaseException:
        held.close()
        raise


def _was_published(queue: SqlQueue, batch: Batch) -> bool:
    """Return whether a commit without an answer succeeded: waits for the lock that the transaction has until it is
    over.
    """
    return bool(queue.database.run("batch_published", {"batch_id": batch.id, "token": batch.token}))


def _apply_reports(batch: Batch, held: Held) -> None:
    """Before the results are written: the move is undone and done again, and with it everything after it."""
    with held.reporting:
        held.publishing = True
        if not held.reported:
            return
        try:
            ended = held.move_again(outcome_columns(held.reported.items()))
        except Conflict as conflict:
            raise lost(batch.key, str(conflict)) from conflict
    if ended != batch.job_count:
        raise lost(batch.key, f"{ended} of its {batch.job_count} jobs could be ended")
