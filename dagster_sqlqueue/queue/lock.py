"""Lock jobs for the length of a transaction: no lease, and a crash leaves them as they were."""

import time
from collections.abc import Sequence

import psycopg

from dagster_sqlqueue.db.execution import Row, Step
from dagster_sqlqueue.db.executors import Sent, Transaction
from dagster_sqlqueue.db.own_session import Together
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.strategies import (
    FREES_KEY,
    LEASE_NO,
    SUSPECT,
    pick,
    pick_step,
    under_lease,
)


class Locks:
    """The verbs that lock jobs in transactional mode.

    Args:
        catalog: the queues of the schema.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def lock_due(self, transaction: Transaction, request: ClaimRequest) -> list[ClaimedJob]:
        """Lock due jobs for the rest of a transaction, in which they are then worked off and ended: no lease is needed,
        and a crash leaves them as they were.

        One whose lease ran out is locked by itself. It may be what its consumer died of, so its attempt is counted before
        it begins: that is committed, with whatever the transaction did so far, and the job is locked in the transaction
        that follows. So is one that holds its unique key until it is claimed: the key is free before it begins.

        Their `lease_no` is the one that they have once the transaction commits. Rolled back, it is given again: outside
        of the transaction it does not distinguish two tries, and is not to be passed on.

        Args:
            transaction: of `Database.transact` or `Database.transaction`; nothing is to be written in it before.
            request: the arguments, as of a claim; its worker is shown with a job that is locked by itself.

        Raises:
            InvalidInput: the queue's strategy, order or limits need leases.
            UnknownQueue: there is no such queue.
        """
        queue, hints = request.queue, request.hints
        settings = self._catalog.last_seen(queue)
        if _needs_leases(settings):
            settings = self._catalog.settings(queue, executor=transaction)
        jobs = self._lock_due(transaction, settings, request)
        if not jobs and (now := self._catalog.settings(queue, executor=transaction)).revision != settings.revision:
            jobs = self._lock_due(transaction, now, request)
        if not jobs and not request.joining:
            hints.saw_all()
        return jobs

    def finish_and_lock(
        self,
        transaction: Transaction,
        endings: Endings,
        request: ClaimRequest,
        *,
        settings: QueueSettings | None = None,
    ) -> list[ClaimedJob]:
        """End jobs that the transaction locked, commit it, and lock the next ones in the transaction that follows: in one
        round trip, where the strategy finds them with one statement.

        Args:
            transaction: of `Database.transact` or `Database.transaction`.
            endings: as for `finish_locked`.
            request: as for `lock_due`; its worker is noted as the one that ended the jobs.
            settings: the queue's, if they are known. If they are not the current ones, nothing is locked.

        Returns:
            What was locked. Nothing was: ask `lock_due` whether there is anything.

        Raises:
            InvalidInput, UnknownQueue: as for `lock_due`.
        """
        settings = settings or self._catalog.last_seen(request.queue)
        if settings.strategy is Strategy.FIFO or _needs_leases(settings):
            self.finish_and_go_on(transaction, endings, worker=request.worker)
            return self.lock_due(transaction, request)
        ending = endings.locked_step(request.worker)
        rows = transaction.run_and_go_on(ending, pick_step(settings, request, request.limit))
        return self._locked(transaction, settings, request, rows)

    def finish_and_go_on(self, transaction: Transaction, endings: Endings, *, worker: str) -> None:
        """End jobs that the transaction locked, and commit it; another one begins, in which nothing is locked.

        Args:
            transaction: of `Database.transact` or `Database.transaction`.
            endings: as for `finish_locked`.
            worker: noted as the one that ended the jobs.
        """
        transaction.run_and_go_on(endings.locked_step(worker))

    def send_lock(
        self,
        transaction: Transaction,
        request: ClaimRequest,
        settings: QueueSettings,
        endings: Endings | None = None,
    ) -> "SentLock":
        """Ask for the lock of due jobs, and take the answer later: `SentLock.locked`.

        Args:
            transaction: as for `lock_due`; nothing is to be done in it until then.
            request: as for `lock_due`, with buckets.
            settings: the queue's, of which `may_claim_ahead` holds. If they are not the current ones, nothing is locked.
            endings: as for `finish_and_lock`: these jobs end before it, and the transaction is committed, and followed by
                the one in which the others are locked. None: nothing was done in it.

        Raises:
            psycopg.Error: the connection was lost; the jobs may have ended.
        """
        ending = None if endings is None else endings.locked_step(request.worker)
        return SentLock(self, transaction, settings, request, ending)

    def lock_again(self, transaction: Transaction, job: ClaimedJob) -> bool:
        """Lock a job again that was locked in a transaction that was rolled back. False: another transaction was quicker.

        Args:
            transaction: of `Database.transact` or `Database.transaction`.
            job: as it was locked.
        """
        if job.alone:
            return bool(transaction.run("lock_alone", {"id": job.id, "lease_no": job.lease_no}))
        rows = transaction.run("pick_ids", {"ids": [job.id], "limit": 1})
        return any(row[LEASE_NO] + 1 == job.lease_no and not row[SUSPECT] for row in rows)

    def leave_suspect(self, job: ClaimedJob, *, worker: str) -> None:
        """Leave a job whose transaction was rolled back as one that its consumer may have died of; no attempt is spent. Not
        one that another transaction has locked since.

        Args:
            job: as it was locked, among others.
            worker: noted as the one that had it.
        """

        def leave(transaction: Transaction) -> None:
            if self.lock_again(transaction, job):
                transaction.run("begin_alone", {"id": job.id, "worker": worker, "alone": False})

        self._catalog.database.transact(leave)

    def _lock_due(self, transaction: Transaction, settings: QueueSettings, request: ClaimRequest) -> list[ClaimedJob]:
        if why := _needs_leases(settings):
            raise InvalidInput(
                f"queue {settings.name!r} {why}, which needs leases: transactional mode cannot work it off"
            )
        return self._locked(transaction, settings, request, pick(transaction, settings, request, request.limit))

    def _locked(
        self,
        transaction: Transaction,
        settings: QueueSettings,
        request: ClaimRequest,
        rows: Sequence[Row],
        asked_at: float | None = None,
    ) -> list[ClaimedJob]:
        """Return the jobs that may be worked off now, of those that were picked, and note how far that came and where they
        began. They were asked for at that moment of `time.monotonic`; None: nothing was asked for since.
        """
        while rows and _by_itself(rows[0]):
            if request.joining and rows[0][SUSPECT]:
                return []
            (job,) = under_lease(rows[:1], None, settings, alone=True)
            request.hints.took(settings.strategy, [job], filled=None)
            if job.attempt > job.max_attempts or job.cancel_requested:
                return [job._replace(alone=False)]
            begin = ("begin_alone", {"id": job.id, "worker": request.worker, "alone": not request.joining})
            if transaction.run_and_go_on(begin, ("lock_alone", {"id": job.id, "lease_no": job.lease_no})):
                return [job]
            rows, asked_at = pick(transaction, settings, request, request.limit), None
        together = rows[: _together(rows)]
        filled = len(rows) >= request.limit or len(together) < len(rows)
        asked = None if asked_at is None else request.buckets
        # As they will be: no other transaction can count an attempt or a lease before this transaction ends.
        jobs = under_lease(together, None, settings)
        request.hints.took(settings.strategy, jobs, filled=filled, asked=asked, asked_at=asked_at)
        return jobs


class SentLock:
    """What `Locks.send_lock` has sent.

    Attributes:
        transaction: where.
        limit: how many jobs it asks for at most.
        committed: whether the jobs that were to end are known to have ended.
        error: what is wrong, once the answer was received; None: nothing.
    """

    def __init__(
        self,
        locks: Locks,
        transaction: Transaction,
        settings: QueueSettings,
        request: ClaimRequest,
        ending: Step | None,
    ) -> None:
        self.transaction = transaction
        self.limit = request.limit
        self.committed = False
        self.error: Exception | None = None
        self._locks = locks
        self._settings = settings
        self._request = request
        self._steps = ending, pick_step(settings, request, request.limit)
        self._asked_at = time.monotonic()
        self._rows: Sequence[Row] = ()
        self._sent: Sent | Together | None = transaction.send(self._steps[1], after=ending)

    def receive(self) -> None:
        """Wait for the answer, if it was not received yet. What is wrong is not raised: see `error`."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        try:
            self._rows = sent.receive()[-1].rows()
        except psycopg.ProgrammingError as error:
            self.error = self.transaction.explained(error, *self._steps)
        except psycopg.Error as error:
            self.error = error
        # The commit comes after the ends.
        self.committed = self._steps[0] is not None and sent.succeeded(1)

    def locked(self) -> list[ClaimedJob]:
        """Wait for the answer. Returns the jobs that may be worked off now, as `Locks.lock_due`; to be called once.

        Raises:
            psycopg.Error: the connection was lost, or a statement failed: nothing is locked, and the connection is closed.
        """
        self.receive()
        if self.error is not None:
            raise self.error
        # Another lock has been sent since: its buckets are in another order.
        return self._locks._locked(self.transaction, self._settings, self._request, self._rows, self._asked_at)


def _by_itself(row: Row) -> bool:
    """Return whether other sessions are to see that a job has begun before its handler does."""
    return bool(row[SUSPECT] or row[FREES_KEY])


def _together(rows: Sequence[Row]) -> int:
    """Return how many of the first rows may be worked off in one transaction."""
    return next((place for place, row in enumerate(rows) if _by_itself(row)), len(rows))


def _needs_leases(settings: QueueSettings) -> str | None:
    """Why a queue cannot be worked off in transactional mode; None when it can."""
    if settings.keyed or settings.limited:
        return "is ordered or limited"
    if settings.strategy in (Strategy.ASSIGN, Strategy.TOKEN):
        return f"has the strategy '{settings.strategy}'"
    return None
