"""Batches worked off inside transactions: claim, work and end are one whole, and a crash leaves the jobs queued."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.executors import Transaction
from dagster_sqlqueue.handling import handle
from dagster_sqlqueue.model import ClaimedJob
from dagster_sqlqueue.outcomes import Cancel, Done, Outcome, Reject
from dagster_sqlqueue.settling import Settlement, settle
from dagster_sqlqueue.working import Work


def work_locked(
    work: Work[Any],
    lock: Callable[[Transaction], list[ClaimedJob]],
    finish_and_lock: Callable[[Transaction, Sequence[Ending]], list[ClaimedJob] | None],
) -> int:
    """Lock a batch, work it off and end it, in one transaction. What was done is counted when it is committed.

    Args:
        work: what is worked off.
        lock: locks a batch.
        finish_and_lock: ends a batch, commits, and locks the next one in the transaction that follows; None, and nothing
            done: this batch is to be the last one.

    Returns:
        The number of jobs taken.
    """
    taken = 0
    jobs: list[ClaimedJob] = []
    settled: list[tuple[ClaimedJob, Outcome]] = []
    writes = Settlement()

    def work_off(transaction: Transaction) -> None:
        nonlocal settled, writes
        settled = []
        for claimed in jobs:
            if work.stopping.is_set():
                break
            settled.append((claimed, _outcome_in(work, transaction, claimed)))
        transaction.take_back()
        writes = settle(settled, work.queue.stops_key)

    def committed() -> None:
        nonlocal taken
        taken += len(jobs)
        work.summary.claimed += len(jobs)
        work.summary.batches += bool(jobs)
        work.summary.released += len(jobs) - len(settled)
        work.count_ended(writes.endings, {ending.job.id for ending in writes.endings})
        work.count_back(writes.back, {job.id for job, _ in writes.back})
        work.summary.held += len(writes.aside)

    def in_transactions(transaction: Transaction) -> None:
        nonlocal jobs
        jobs = lock(transaction)
        work_off(transaction)
        while writes.endings and not writes.back and not writes.aside:
            following = finish_and_lock(transaction, writes.endings)
            if following is None:
                break
            committed()
            jobs = following
            work_off(transaction)
        if writes.endings:
            work.queue.finish_locked(transaction, writes.endings, worker=work.worker)
        if writes.back or writes.aside:
            work.queue.return_locked(transaction, writes.back, writes.aside, backoff=work.custom_backoff)

    for attempt in work.patiently():
        with attempt:
            work.queue.database.transact(in_transactions, idling=True)
    committed()
    return taken


def _outcome_in(work: Work[Any], transaction: Transaction, claimed: ClaimedJob) -> Outcome:
    """The handler's outcome; what it wrote stays only if it succeeded. A handler that writes nothing costs nothing."""
    if claimed.cancel_requested:
        return Cancel("cancelled while it ran")
    if claimed.attempt > claimed.max_attempts:
        return Reject(f"the lease ran out on the last of {claimed.max_attempts} attempts: its consumer died or hung")
    savepoint: list[psycopg.Transaction] = []

    def connect() -> "psycopg.Connection[Any]":
        if not savepoint:
            savepoint.append(undo.enter_context(transaction.lend().transaction()))
        return transaction.connection

    with contextlib.ExitStack() as undo:
        outcome = handle(work.spec, work.caller.handler, claimed, connect=connect)
        if transaction.connection.closed:
            # Whatever the handler made of it: its job goes on when the database is back, and no attempt is spent.
            raise psycopg.OperationalError("the connection was lost while a handler worked with it")
        if savepoint and not isinstance(outcome, Done):
            raise psycopg.Rollback(savepoint[0])
    return outcome
