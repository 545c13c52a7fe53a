"""The batches of a consumer in transactional mode: the next one is locked while the one in hand is worked on.

Two transactions take turns: in one the batch in hand is locked and worked on, while in the other the server ends the batch
before it, commits, and locks the one after it. In the transaction in hand nothing is written before that commit.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from dagster_sqlqueue.consumer.ahead_policy import AheadPolicy
from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.consumer.hooks import ClaimHooks
from dagster_sqlqueue.consumer.leased import Work
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import AccessRefused, QueueError, SchemaMissing
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.lock import SentLock

Batch = TypeVar("Batch")

REFUSED_ENDS = (psycopg.DatabaseError, AccessRefused, SchemaMissing)
"""What the end of a batch raises because of what one of its handlers wrote, among other causes: a trigger may, too."""

VERB = "lock_ahead"
"""The name of the wait for an answer, for hooks."""


class EndsLost(Exception, Generic[Batch]):
    """The ends of a batch that were sent are not known to be committed.

    Attributes:
        batch: the batch.
        error: of the driver.
    """

    def __init__(self, batch: Batch, error: Exception) -> None:
        super().__init__(str(error))
        self.batch = batch
        self.error = error


class _Side(Generic[Batch]):
    """One of the two transactions.

    Attributes:
        transaction: the transaction.
        sent: what was sent in it and not used yet.
        batch: whose ends were sent with that.
    """

    __slots__ = ("batch", "sent", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.sent: SentLock | None = None
        self.batch: Batch | None = None


class LockedAhead(Generic[Batch]):
    """Locks batches ahead for one consumer, one at a time.

    Args:
        work: what is worked off.
        claimer: how the consumer takes jobs.
        hooks: around the wait for an answer.
    """

    def __init__(self, work: Work[Any], claimer: Claimer, hooks: ClaimHooks) -> None:
        self._work = work
        self._claimer = claimer
        self._hooks = hooks
        self._own: Transaction | None = None
        self._here: _Side[Batch] | None = None
        self._there: _Side[Batch] | None = None
        self._ended: Callable[[Batch], None] = lambda batch: None
        self._policy = AheadPolicy(work, claimer)

    @property
    def here(self) -> Transaction:
        """The transaction of the batch in hand."""
        assert self._here is not None
        return self._here.transaction

    @property
    def under_way(self) -> bool:
        """Whether another batch is locked beside the one in hand, or will be."""
        return self._there is not None and self._there.sent is not None

    @contextlib.contextmanager
    def beside(self, transaction: Transaction, ended: Callable[[Batch], None]) -> Iterator[None]:
        """Take turns with this transaction as long as the block runs. After an exception, what was not committed is undone.

        Args:
            transaction: the first to be in hand; the caller ends it.
            ended: called with each batch whose ends were sent and are committed.

        Raises:
            EndsLost: at the end of the block, as `turn`.
        """
        self._here, self._there, self._ended = _Side(transaction), None, ended
        try:
            yield
            self._rest()
        except BaseException:
            self._undo()
            raise
        finally:
            self._here = self._there = None

    def begin(self, jobs: Sequence[ClaimedJob]) -> bool:
        """Lock the next batch beside these jobs, which are to be worked on now, if that is worth it. Returns `under_way`."""
        if self._there is not None and self._there.sent is not None:
            return True
        if not self._worth(jobs):
            return False
        try:
            there = self._there = self._there or _Side(self._begun())
            there.sent = self._claimer.send_lock(there.transaction)
            return True
        except (psycopg.Error, QueueError) as error:
            self._policy.lost("no batch was locked ahead", error)
            if self._there is not None:
                self._there.transaction.connection.close()
            return False

    def settle(self) -> None:
        """Wait until the batch before the one in hand is committed, or known to have failed."""
        if self._there is not None and self._there.sent is not None:
            self._there.sent.receive()

    def finish(self, batch: Batch, jobs: Sequence[ClaimedJob], endings: Endings) -> list[ClaimedJob]:
        """Send the ends of the batch in hand, and go to the one that was locked ahead.

        Args:
            batch: the batch; it has ended once `ended` was called with it.
            jobs: its jobs.
            endings: how they end, without one that goes back.

        Raises:
            EndsLost, psycopg.Error: as `turn`.
        """
        here = self._here
        assert here is not None
        try:
            if self._worth(jobs):
                # Raises what became of the ends, too, if the server is quick.
                here.sent, here.batch = self._claimer.send_lock(here.transaction, endings), batch
            else:
                self._work.leases.finish_and_go_on(here.transaction, endings, worker=self._work.worker)
                self._ended(batch)
        except REFUSED_ENDS as error:
            raise EndsLost(batch, error) from error
        return self.turn()

    def turn(self) -> list[ClaimedJob]:
        """Go to the batch that was locked ahead, once that in hand is committed, or sent to be.

        Raises:
            EndsLost: the batch before it is not committed.
            psycopg.Error: nothing is locked; the connection was lost, or the statement failed as it would have by itself.
        """
        self._here, self._there = self._there, self._here
        here = self._here
        assert here is not None, "nothing was locked ahead"
        sent = here.sent
        assert sent is not None, "nothing was locked ahead"
        with self._hooks.around(VERB):
            sent.receive()
        here.sent = None
        self._count(here, sent)
        jobs = self._claimer.locked(sent)
        if any(job.alone for job in jobs):
            self._let_go()
        return jobs

    def commit(self) -> bool:
        """Commit the batch in hand, unless that may be left to the caller. Returns whether it was."""
        if self.here is self._own:
            self.here.connection.commit()
        elif self.under_way:
            self.here.go_on()
        else:
            return False
        return True

    def close(self) -> None:
        """Close the connection, if there is one; what was not committed is undone."""
        own, self._own = self._own, None
        if own is not None:
            own.connection.close()

    def _worth(self, jobs: Sequence[ClaimedJob]) -> bool:
        if self._there is not None and self._there.transaction.connection.closed:
            return False
        # Nothing is to be beside a job that its consumer may have died of.
        if not self._claimer.filled or any(job.alone for job in jobs):
            return False
        return self._policy.allows()

    def _begun(self) -> Transaction:
        """The transaction of our own."""
        own, database = self._own, self._work.leases.database
        if own is None or own.connection.closed:
            own = self._own = database.begin_apart()
        elif own.connection.info.transaction_status is TransactionStatus.IDLE:
            database.begin_again(own)
        return own

    def _let_go(self) -> None:
        """Let go the batch that was locked beside the one in hand: it is a job that its consumer may have died of."""
        there = self._there
        if there is None or there.sent is None:
            return
        there.sent.receive()
        if there.sent.error is not None:
            # Seen to at the next turn, once this job has ended.
            return
        sent, there.sent = there.sent, None
        self._count(there, sent)
        with contextlib.suppress(psycopg.Error):
            there.transaction.go_on()

    def _count(self, side: _Side[Batch], sent: SentLock) -> None:
        batch, side.batch = side.batch, None
        if batch is None:
            return
        if not sent.committed:
            raise EndsLost(batch, sent.error or RuntimeError("no answer"))
        self._ended(batch)

    def _rest(self) -> None:
        """Let go what was locked and is not to be worked on, once the batch in hand is committed or given to be."""
        there = self._there
        if there is not None and there.sent is not None:
            there.sent.receive()
            sent, there.sent = there.sent, None
            self._count(there, sent)
        own = self._own
        if own is None or own.connection.closed:
            self._own = None
            return
        try:
            # Nothing was written in it since, and after a rollback the driver would prepare everything again.
            own.connection.commit()
        except psycopg.Error:
            self.close()

    def _undo(self) -> None:
        """Undo what was not committed in the transaction of our own, and leave the other one so that it can be undone."""
        try:
            for side in (self._here, self._there):
                if side is not None and side.sent is not None:
                    side.sent.receive()
                    with contextlib.suppress(EndsLost):
                        # Its jobs are on the queue again.
                        self._count(side, side.sent)
        finally:
            # Not committed, not even if nothing but locks should be in it: it may be that of the batch in hand.
            self.close()
