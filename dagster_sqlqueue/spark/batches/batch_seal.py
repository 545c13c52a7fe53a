"""Seal the due jobs of a queue into one batch."""

import logging
import threading
from collections.abc import Mapping
from typing import Any

import psycopg

from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.job import Mode, mode_of
from dagster_sqlqueue.model.queue import check_lease_seconds
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.stuck_keys import heal_keys
from dagster_sqlqueue.queue.unpublished_batches import Swept, sweep
from dagster_sqlqueue.spark.batches.batch_opener import check_key, check_queue, filter_text, open_batch
from dagster_sqlqueue.spark.batches.lease import Conflict, Held
from dagster_sqlqueue.spark.batches.leased_seal import leased
from dagster_sqlqueue.spark.batches.loss import lost
from dagster_sqlqueue.spark.batches.model import Batch, held_by
from dagster_sqlqueue.spark.batches.wanted import Opened, Wanted

logger = logging.getLogger("dagster_sqlqueue")

BACKOFF = Backoff(30.0, factor=2.0, max_seconds=3_600.0, jitter=0.0)
"""How long to wait after a run that failed or died, by default."""

TRANSACTIONAL_FROM = 10_000
"""From so many jobs on, a transaction consumes them by default: with fewer, it saves less than a second."""

_BEGINNINGS = 5
"""How often a transactional batch is begun before it becomes a leased one."""


def seal(
    queue: SqlQueue,
    name: str,
    key: str,
    *,
    owner: str,
    mode: Mode | None = Mode.LEASED,
    filter: Mapping[str, Any] | None = None,
    lease_seconds: float = 60.0,
    patience_seconds: float | None = None,
    overlap: bool = False,
    backoff: Backoff = BACKOFF,
) -> Batch:
    """Seal every due job of a queue that fits the filter into one batch.

    A leased batch is sealed some buckets at a time, each part in a transaction of its own: those of all together, if their
    jobs are not too many for one statement. A batch that a killed owner left behind under the same key, also in the middle
    of its seal, is taken over once its lease has run out: with the same filter its jobs stay in it, and jobs that have
    become due since are added; reported outcomes of single jobs take effect first.

    A transactional batch is one transaction from here to its publication: the jobs are ended in it, others skip them, and
    if this process dies they are at once as they were. It needs no writes of a lease. For queues that are consumed by
    batches alone: consumers that claim from it skip the locked jobs at each claim, a change of one of the jobs by
    another transaction waits for the publication, no row that is deleted anywhere in the database can be cleaned up
    before it, and ended jobs have the time of their move as their end, long before they are visible. It becomes a
    leased one, with a warning in the log, if other transactions keep changing the jobs, or if some are followed, or
    members of a group.

    Args:
        queue: where the queue is.
        name: the queue.
        key: what the batch is for: asset and partition, say. One open batch a key.
        owner: who seals, for people to read.
        mode: how the jobs are kept from others. None: by a transaction, whose jobs are moved while they are read, if
            they are many, no producer would have to wait for it, and no other consumer seems to work on the queue; else
            by a lease.
        filter: take only jobs whose payload contains this.
        lease_seconds: how long the batch holds without a heartbeat of this process: see `kept`.
        patience_seconds: how long to wait for another owner's batch of the key; None: slightly longer than a lease.
        backoff: how long a scheduler should wait after a run that failed or died. It is kept with the batch, for
            schedulers such as the sensor of a daily asset; sealing itself does not wait.
        overlap: of a transactional batch: return it at once, and move its jobs in a thread while they are read.
            `publication` raises errors of that.

    Raises:
        UnknownQueue: the queue does not exist.
        BatchLost: another owner holds the key's batch, or took this one over, or its transaction was lost.
        QueuePaused: the queue is paused.
        InvalidInput: the queue's keys take turns, or it has limits: a batch takes every due job at once. Or the filter is no
            JSON object, the key none, or the lease no time.
    """
    policy = [backoff.seconds, backoff.factor, backoff.max_seconds]
    text, lease_seconds = filter_text(filter), check_lease_seconds(lease_seconds)
    check_key(key)
    check_queue(queue, name)
    chosen = mode is None
    if mode is None:
        mode = Mode.TRANSACTIONAL if _suits(queue, name) else Mode.LEASED
    wanted = Wanted(name, key, owner, text, mode_of(mode), lease_seconds, policy)
    opened = open_batch(queue, wanted, patience_seconds)
    warn_of_attempts(key, opened)
    if wanted.mode is Mode.TRANSACTIONAL:
        batch = _seal_held(queue, wanted, opened, dict(filter or {}), overlap or chosen, chosen)
        if batch is not None:
            return batch
        to_lease = {"batch_id": opened.id, "token": opened.token, "lease_seconds": lease_seconds}
        if not queue.database.run("batch_to_lease", to_lease):
            raise lost(key)
    return leased(queue, wanted, opened, dict(filter or {}))


def warn_of_attempts(key: str, opened: Opened) -> None:
    """Log a warning if a batch is no first attempt."""
    if opened.attempt > 1:
        logger.warning(
            "batch %r is sealed for the %d. time in a row; the last time: %s", key, opened.attempt, opened.error
        )


def sweep_batches(queue: SqlQueue, name: str | None = None, **settings: float) -> Swept:
    """Abandon the batches whose lease ended long ago, and release their jobs, without an attempt spent. Reported
    outcomes of single jobs take effect. `maintain` does it for all queues.

    Args:
        queue: where the batches are.
        name: of one queue alone; None: of all.
        settings: `grace_seconds`: how long after its lease a batch is left alone; 600 seconds if it is not given.
    """
    with queue.database.connection() as connection:
        swept = sweep(Transaction(connection, queue.database), name, **settings)
    if swept.batches:
        # Of queues that became keyed since: maintenance does it as well, should this process die here.
        heal_keys(queue.database)
    return swept


def _seal_held(
    queue: SqlQueue, wanted: Wanted, opened: Opened, filter: dict[str, Any], overlap: bool, chosen: bool
) -> Batch | None:
    """Return None if other transactions keep changing the jobs, or some have followers; or if no mode was given, and a
    transaction does not suit the jobs.
    """
    parameters = {
        "batch_id": opened.id,
        "queue": wanted.queue,
        "sealed_at": opened.sealed_at,
        "filter": wanted.filter,
        "worker": wanted.owner,
    }
    held = Held(queue, wanted.key, parameters)

    try:
        for beginning in range(_BEGINNINGS):
            snapshot = held.begin(opened.token, wanted.lease_seconds)
            # Jobs that the snapshot sees of a queue that became keyed since the first read have an order_no.
            check_queue(queue, wanted.queue)
            jobs, followed, unique, spent = held.count()
            if chosen and (followed or unique or jobs < TRANSACTIONAL_FROM):
                break
            if spent:
                # They are none of the snapshot's jobs.
                buckets = [bucket for bucket, *_ in queue.database.run("batch_buckets", parameters)]
                queue.database.run("bury_spent_jobs", {"queue": wanted.queue, "buckets": buckets})
            if overlap and not followed:
                held.move_apart(jobs)
            elif not overlap:
                try:
                    jobs, followed = held.move()
                except Conflict as conflict:
                    logger.info("batch %r is begun again, another transaction has its jobs: %s", wanted.key, conflict)
                    threading.Event().wait(0.05 * 2**beginning)
                    continue
            if followed:
                logger.warning("batch %r is leased: %d of its jobs are followed by others", wanted.key, followed)
                break
            return Batch(
                opened.id,
                wanted.key,
                wanted.queue,
                opened.token,
                jobs,
                Mode.TRANSACTIONAL,
                opened.sealed_at,
                snapshot,
                filter,
                opened.attempt,
                held,
            )
        else:
            logger.warning("batch %r is leased: others keep changing its jobs", wanted.key)
    except psycopg.OperationalError as error:
        gone = held.gone()
        held.close()
        if gone:
            raise lost(wanted.key, str(error).strip().partition("\n")[0]) from error
        raise
    except BaseException:
        held.close()
        raise
    held.close()
    return None


def as_leased(queue: SqlQueue, batch: Batch, *, owner: str, lease_seconds: float) -> Batch:
    """Make a transactional batch a leased one, of the jobs that are due now.

    Args:
        queue: where it was sealed.
        batch: of which nothing has been read. It is over.
        owner: who seals, for people to read.
        lease_seconds: how long the batch holds.

    Raises:
        BatchLost: another owner has taken it over.
    """
    held_by(batch).close()
    to_lease = {"batch_id": batch.id, "token": batch.token, "lease_seconds": lease_seconds}
    if not queue.database.run("batch_to_lease", to_lease):
        raise lost(batch.key)
    filter = dict(batch.filter)
    wanted = Wanted(batch.queue, batch.key, owner, filter_text(filter), Mode.LEASED, lease_seconds, [])
    return leased(queue, wanted, Opened(batch.id, batch.token, batch.sealed_at, batch.attempt, None), filter)


def _suits(queue: SqlQueue, name: str) -> bool:
    """Return whether many jobs are due in a queue that no other consumer seems to work on."""
    ((many, alone),) = queue.database.run("batch_suits", {"queue": name, "least": TRANSACTIONAL_FROM})
    return bool(many and alone)
