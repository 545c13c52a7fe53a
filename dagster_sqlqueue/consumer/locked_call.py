"""Call the handler of a job in the transaction that locks it, and keep what it does with its connection to its job."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from dagster_sqlqueue.consumer.caller import handle
from dagster_sqlqueue.consumer.leased import Work
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Cancel, Done, Outcome, Reject, Retry

_SWALLOWED = (
    "a statement failed in the job's transaction and the handler went on: let its error pass, or use a savepoint"
)
_ENDED = (
    "the handler ended the transaction that is the job's: what it and those before it in the batch wrote may be committed,"
    " and they run again; leave COMMIT and ROLLBACK to the queue, and blocks of the connection to their own ends"
)
_IN_USE = (
    "the handler left a COPY, a stream or a pipeline of its connection open, or a thread of its still uses it: those before"
    " it in the batch run again; leave such blocks before the handler returns"
)
_CLOSED = (
    "the handler closed the connection that is the job's, as `with job.connection` does: those before it in the batch run"
    " again; use the connection without closing it"
)


class ConnectionLost(psycopg.OperationalError):
    """The connection was lost while a handler worked."""


class TransactionEnded(Exception):
    """The handler of this job ended the transaction that it belongs to."""

    def __init__(self, job: ClaimedJob, reason: str) -> None:
        super().__init__(reason)
        self.job = job


def spent(job: ClaimedJob) -> bool:
    """Return whether a job is met with its last attempt spent."""
    return job.attempt > job.max_attempts


def outcome_in(work: Work[Any], transaction: Transaction, claimed: ClaimedJob, before: Callable[[], None]) -> Outcome:
    """Return the handler's outcome; what it wrote stays only if it succeeded. A handler that writes nothing costs nothing.

    Args:
        work: what is worked off.
        transaction: in which the job is locked.
        claimed: the job.
        before: called before the handler writes.

    Raises:
        TransactionEnded: the transaction is not the one in which the job was locked any more.
        ConnectionLost: see the class.
    """
    if claimed.cancel_requested:
        return Cancel("cancelled while it ran")
    if spent(claimed):
        return Reject(f"the lease ran out on the last of {claimed.max_attempts} attempts: its consumer died or hung")
    connection = transaction.connection
    in_hand = _InTransaction(transaction, before)
    try:
        with in_hand:
            outcome = handle(work.spec, work.caller.handler, claimed, in_hand)
            if connection.closed:
                raise psycopg.OperationalError("closed")
            if savepoint := in_hand.savepoint:
                if _in_use(connection):
                    # To leave the savepoint would be to wait for it, or to be in its way.
                    connection.close()
                    raise TransactionEnded(claimed, _IN_USE)
                failed = connection.info.transaction_status is TransactionStatus.INERROR
                if failed and isinstance(outcome, Done):
                    outcome = Retry(_SWALLOWED)
                if not isinstance(outcome, Done):
                    raise psycopg.Rollback(savepoint)
    except (psycopg.Error, psycopg.Rollback):
        # The handler's own errors are outcomes: the savepoint cannot be left. psycopg passes its Rollback on then.
        if connection.broken:
            # Whatever the handler made of it: its job goes on when the database is back.
            raise ConnectionLost("the connection was lost while a handler worked with it") from None
        reason = _CLOSED if connection.closed else _ENDED
        # What the handler has set in the session is committed, perhaps.
        connection.close()
        raise TransactionEnded(claimed, reason) from None
    return outcome


def _in_use(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether a command of the connection goes on, or it is in a pipeline: the queue's are over by then."""
    info = connection.info
    return info.transaction_status is TransactionStatus.ACTIVE or info.pipeline_status is not PipelineStatus.OFF


class _InTransaction:
    """The `InHand` of one job in the transaction in which it is locked, left when its handler has returned.

    Args:
        transaction: a savepoint is set in it when the handler first asks for its connection.
        before: called before that.
    """

    __slots__ = ("_before", "_block", "_transaction", "savepoint")

    def __init__(self, transaction: Transaction, before: Callable[[], None]) -> None:
        self._transaction = transaction
        self._before = before
        self._block: AbstractContextManager[psycopg.Transaction] | None = None
        self.savepoint: psycopg.Transaction | None = None

    def __enter__(self) -> None:
        """Nothing was written yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._block is None else self._block.__exit__(kind, error, trace)

    def cancellation(self, job: ClaimedJob) -> threading.Event:
        """Return an event that stays unset: a request while the job runs is not seen before the transaction ends."""
        return threading.Event()

    def connection(self) -> "psycopg.Connection[Any]":
        """Return the connection, planned as the server is set, and within the job's savepoint."""
        if self._block is None:
            self._before()
            block = self._transaction.lend().transaction()
            self.savepoint = block.__enter__()
            self._block = block
        return self._transaction.connection

    def report(self, job: ClaimedJob, payload: Any, percent: float, message: str | None) -> None:
        """Nothing: the transaction shows nothing before it ends."""
