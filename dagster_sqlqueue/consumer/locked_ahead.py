"""The batches of a consumer in transactional mode: the next one is locked while the one in hand is worked on.

Two transactions take turns: the one in which the batch in hand is locked, and is worked on and ended, and another one, in
which the server looks for the next batch meanwhile. A batch is committed before the next one is begun, as without it.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.consumer.leased import Work
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.lock import SentLock

logger = logging.getLogger("dagster_sqlqueue")

VERB = "lock_ahead"
"""The name of the wait for an answer, for hooks."""

_QUICK_SECONDS = 0.25
"""A batch that takes longer has little from it that the next one is there at once, and others could have that."""
_AGAIN_SECONDS = 5.0


class LockedAhead:
    """Locks batches ahead for one consumer, one at a time.

    Args:
        work: what is worked off.
        claimer: how the consumer takes jobs.
        around: entered and left around the wait for an answer.

    Attributes:
        here: the transaction of the batch in hand.
    """

    here: Transaction

    def __init__(
        self, work: Work[Any], claimer: Claimer, *, around: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._work = work
        self._claimer = claimer
        self._around = around
        self._own: Transaction | None = None
        self._given: Transaction | None = None
        self._sent: SentLock | None = None
        self._not_before = 0.0

    @property
    def under_way(self) -> bool:
        """Whether another batch is locked beside the one in hand, or will be."""
        return self._sent is not None

    @contextlib.contextmanager
    def beside(self, transaction: Transaction) -> Iterator[None]:
        """Take turns with this transaction as long as the block runs. In both of them what the block did not commit is for
        the owner of this one to commit, or undone by an exception.
        """
        self.here = self._given = transaction
        try:
            yield
        except BaseException as error:
            self._undo(wait=isinstance(error, Exception))
            raise
        self._rest()

    def begin(self, jobs: Sequence[ClaimedJob]) -> None:
        """Lock the next batch beside these jobs, which are to be worked on now, if that is worth it."""
        if self._sent is not None or not self._worth(jobs):
            return
        try:
            there = self._other()
            self._sent = self._claimer.send_lock(there)
        except (psycopg.Error, QueueError) as error:
            # Without for a while: there may be no connection to be had, and each attempt at one waits for it.
            self._not_before = time.monotonic() + _AGAIN_SECONDS
            logger.info("%s: no batch was locked ahead: %s", self._work.spec.name, error)

    def take(self) -> list[ClaimedJob]:
        """Go to the batch that was locked ahead, once that in hand is committed.

        Raises:
            psycopg.Error: nothing is locked; the connection was lost, or the statement failed as it would have by itself.
        """
        sent, self._sent = self._sent, None
        assert sent is not None, "nothing was locked ahead"
        self.here = sent.transaction
        with self._around():
            return self._claimer.locked(sent)

    def commit(self) -> bool:
        """Commit the batch in hand, unless its transaction is somebody else's to commit. Returns whether it was."""
        if self.here is self._given:
            return False
        self.here.connection.commit()
        return True

    def close(self) -> None:
        """Close the connection, if there is one; what was not committed is undone."""
        own, self._own = self._own, None
        if own is not None:
            own.connection.close()

    def _worth(self, jobs: Sequence[ClaimedJob]) -> bool:
        work = self._work
        # A pooler's session that nothing is done with is one that others wait for.
        if work.leases.database.shared or work.size.seconds > _QUICK_SECONDS or time.monotonic() < self._not_before:
            return False
        # Nothing is to be beside a job that its consumer may have died of.
        if len(jobs) < self._claimer.wanted or any(job.alone for job in jobs):
            return False
        return self._claimer.may_send_ahead(())

    def _other(self) -> Transaction:
        """The transaction that has nothing in hand."""
        assert self._given is not None
        if self.here is not self._given:
            return self._given
        database = self._work.leases.database
        if self._own is not None and self._own.connection.closed:
            self._own = None
        if self._own is None:
            self._own = database.begin_apart()
        elif self._own.connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            database.begin_again(self._own)
        return self._own

    def _undo(self, *, wait: bool) -> None:
        """Undo what was not committed in the transaction of our own, and leave the other one so that it can be undone.

        Args:
            wait: for what is under way. An interrupt may come in the middle of a statement, and does not.
        """
        sent, self._sent = self._sent, None
        # Not committed, not even if nothing but locks should be in it: it may be that of the batch in hand.
        self.close()
        if sent is None or sent.transaction is not self._given:
            return
        if not wait:
            sent.transaction.connection.close()
            return
        with contextlib.suppress(psycopg.Error):
            sent.drop()

    def _rest(self) -> None:
        """Let go what was locked and is not to be worked on, once the batch in hand is committed or given to be."""
        sent, own, self._sent = self._sent, self._own, None
        if sent is not None and sent.transaction is self._given:
            sent.drop()
        if own is None:
            return
        try:
            if sent is not None and sent.transaction is own:
                sent.drop()
            # Nothing was written in it, and after a rollback the driver would prepare everything again.
            own.connection.commit()
        except psycopg.Error:
            self.close()
