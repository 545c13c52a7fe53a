"""The transaction of a transactional batch: one connection, from the seal to the publication.

What is read is what is ended. The transaction is REPEATABLE READ, and its snapshot is taken by its first statement, which
also locks the batch's row. Readers import that snapshot, and ask by the same condition: jobs of the queue that were due at
a moment that was written down before, have attempts left and fit the filter. Under one snapshot one condition gives one
set, and no column that it names can change within a snapshot. The move deletes by that condition, in a transaction that
sees by that snapshot: PostgreSQL deletes exactly the rows that the snapshot sees and the condition fits, or fails with
40001 if another transaction has changed one of them since. It waits for a locked row, a moment only: the transaction
that has it will change it, as a rule. So there is no third way in which the two sets differ; when it fails before
anything was read, all of it begins again with a new snapshot, and afterwards the batch is lost, its jobs as they were.
"""

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.db.execution import Parameters, Row
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.batches.loss import lost

logger = logging.getLogger("dagster_sqlqueue")

WAIT_MILLISECONDS = 1_000
"""How long the move waits for a job that another transaction has locked."""

_MOVED_TOGETHER = 250_000
"""Jobs that one statement moves, about: bucket by bucket each of the table's pages is visited once for each bucket, a fifth
more work; what a statement moves lies on the server's disk meanwhile.
"""

_BEGIN = b"BEGIN ISOLATION LEVEL REPEATABLE READ"
_BEFORE_THE_MOVE = b"SAVEPOINT sqlqueue_move"
_UNDO_THE_MOVE = b"ROLLBACK TO SAVEPOINT sqlqueue_move"
_CONFLICTS = (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class Conflict(Exception):
    """Another transaction has changed, or locked, one of the jobs."""


class Counted(NamedTuple):
    """What the snapshot of a transactional batch has.

    Attributes:
        jobs: how many.
        followed: of them, those with followers.
        unique: of them, those with a unique key: a producer that enqueues a job of the same key waits for the batch's
            end.
        spent: due jobs that are not among them, because they have no attempt left.
    """

    jobs: int
    followed: int
    unique: int
    spent: int


class Held:
    """A transaction that is kept open. Its statements may come from several threads.

    Args:
        queue: where the queue is.
        key: the batch's, for messages.
        parameters: what the statements about the batch's jobs are given.
    """

    def __init__(self, queue: SqlQueue, key: str, parameters: Parameters) -> None:
        self._key = key
        self._parameters = parameters
        self._database = queue.database
        self._connection = queue.database.apart()
        self._patience: Parameters = {}
        self._snapshot = ""
        self._jobs = 0
        self._mover: threading.Thread | None = None
        self._failure: Exception | None = None
        self._ended = False
        self.transaction = Transaction(self._connection, queue.database)
        self.reported: dict[UUID, Outcome] = {}
        """The outcomes reported for single jobs."""
        self.reporting = threading.Lock()
        self.publishing = False
        """Whether the results are being written: nothing can be reported any more."""

    def __del__(self) -> None:
        """A batch without a reference to it is given up, as it would be if the process had died."""
        with contextlib.suppress(Exception):
            self._connection.close()

    def begin(self, token: int, lease_seconds: float) -> str:
        """Begin, or begin again with a new snapshot. Returns the snapshot, for readers to import.

        Raises:
            BatchLost: the batch was taken over.
        """
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            self._connection.rollback()
        self._connection.execute(_BEGIN)
        rows = self.transaction.run("batch_hold", {**self._parameters, "token": token})
        if not rows:
            raise lost(self._key)
        self._patience = {"lease_milliseconds": str(max(round(lease_seconds * 1_000), 1))}
        self.transaction.run("batch_patience", self._patience)
        self._connection.execute(_BEFORE_THE_MOVE)
        ((self._snapshot,),) = rows
        return self._snapshot

    def lend(self) -> Transaction:
        """Return the transaction, for the statements that write the results. Call `take_back` after them."""
        self.transaction.lend()
        self.transaction.run("batch_patience", self._patience)
        return self.transaction

    def take_back(self) -> None:
        """Undo what those statements have set."""
        self.transaction.take_back()
        self.transaction.run("batch_patience", self._patience)

    def count(self) -> Counted:
        """What the snapshot has."""
        counted = Counted(*self.transaction.run("batch_count", self._parameters)[0])
        self._jobs = counted.jobs
        return counted

    def move(self) -> tuple[int, int]:
        """End the jobs as succeeded, some buckets at a time. Returns their number, and how many of them have followers.

        Raises:
            Conflict: another transaction has changed, or locked, one of them.
        """
        moved = followed = 0
        try:
            self._connection.execute(f"SET LOCAL lock_timeout = {WAIT_MILLISECONDS}".encode())
            buckets = [bucket for bucket, *_ in self.transaction.run("batch_buckets", self._parameters)]
            parts = min(len(buckets), 1 + self._jobs // _MOVED_TOGETHER)
            for part in range(parts):
                rows = self.transaction.run("move_batch", {**self._parameters, "buckets": buckets[part::parts]})
                moved, followed = moved + rows[0][0], followed + rows[0][1]
            self._connection.execute(b"SET LOCAL lock_timeout = 0")
        except _CONFLICTS as error:
            raise Conflict(_first_line(error)) from error
        return moved, followed

    def move_again(self, reported: Parameters) -> int:
        """Undo the move, and whatever was done after it. End the jobs with a reported outcome by that, and the others
        as succeeded. Returns their number.

        Raises:
            Conflict: another transaction has changed one of them meanwhile.
        """
        self._connection.execute(_UNDO_THE_MOVE)
        self.transaction.run("batch_outcome_put", {**self._parameters, **reported})
        try:
            self.transaction.run("batch_lease_reported", self._parameters)
        except _CONFLICTS as error:
            raise Conflict(_first_line(error)) from error
        rest = {"rest": "queued", "error": None}
        ended, back, _ = self.transaction.run("batch_settle", {**self._parameters, **rest})[0]
        return int(ended + back + self.move()[0])

    def move_apart(self, jobs: int) -> None:
        """Move in a thread; `settled` waits for it.

        Args:
            jobs: how many the snapshot has.
        """

        def run() -> None:
            try:
                moved, _ = self.move()
                if moved != jobs:
                    self._failure = lost(self._key, f"{moved} of {jobs} jobs could be moved")
            except Exception as error:
                self._failure = error

        self._mover = threading.Thread(target=run, name="sqlqueue-batch-move", daemon=True)
        self._mover.start()

    def members(self, ids: list[UUID]) -> set[UUID]:
        """Return which of these jobs are the batch's.

        Raises:
            BatchLost: there is no such snapshot any more.
        """
        return {row[0] for row in self._beside("batch_members", {"ids": ids})}

    def cuts(self, step: int) -> list[UUID]:
        """Return the id of every n-th job, beginning with the first.

        Raises:
            BatchLost: there is no such snapshot any more.
        """
        return [row[0] for row in self._beside("batch_cuts", {"step": step})]

    def _beside(self, name: str, more: Parameters) -> Sequence[Row]:
        """Run a statement on another connection, by the same snapshot."""
        with self._database.connection() as connection, connection.transaction():
            connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            try:
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(self._snapshot))
            except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue) as error:
                raise lost(self._key, _first_line(error)) from error
            return Transaction(connection, self._database).run(name, {**self._parameters, **more})

    def settled(self) -> None:
        """Wait until the jobs are moved.

        Raises:
            BatchLost: they could not be, or the connection is lost.
        """
        if self._mover is not None:
            self._mover.join()
        self.check()

    def check(self) -> None:
        """Raise an error if the transaction is known to be lost.

        Raises:
            BatchLost: it is.
        """
        if isinstance(self._failure, BatchLost):
            raise self._failure
        if self._failure is not None or self._ended or self._connection.closed:
            raise lost(self._key, _first_line(self._failure) if self._failure else "its transaction has ended")

    @property
    def busy(self) -> bool:
        """Whether the jobs are being moved."""
        return self._mover is not None and self._mover.is_alive()

    def beat(self) -> None:
        """Send the server a sign of life, and check whether the transaction still exists."""
        if self._ended or self._connection.info.transaction_status != TransactionStatus.INTRANS:
            return
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            # Another thread may have begun to copy in the meantime, which is no loss.
            if self._connection.closed and not self._ended:
                self._failure = self._failure or error

    def commit(self) -> None:
        """Commit, and close the connection."""
        self._ended = True
        try:
            self._connection.commit()
        finally:
            self._connection.close()

    def close(self) -> None:
        """Undo everything: the jobs are as they were, as soon as the server has noticed."""
        self._ended = True
        if self.busy:
            with contextlib.suppress(psycopg.Error):
                self._connection.cancel()
            assert self._mover is not None
            self._mover.join()
        with contextlib.suppress(psycopg.Error):
            if not self._connection.closed:
                self._connection.rollback()
        self._connection.close()

    def gone(self) -> bool:
        """Return whether the connection is lost."""
        return bool(self._connection.closed)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
