"""The port of consumers and managers: everything that is done under a lease, or to get one."""

from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim import Claims
from dagster_sqlqueue.queue.claim_ahead import ClaimsAhead
from dagster_sqlqueue.queue.complete import FencedWrites
from dagster_sqlqueue.queue.grants import Grants
from dagster_sqlqueue.queue.heads import Heads
from dagster_sqlqueue.queue.lock import Locks


class Leases:
    """What consumers, managers and reply queues use of a `SqlQueue`: `queue.leases`.

    A table of verbs: each is that of `Claims`, `Locks`, `Grants`, `Heads` or `FencedWrites`, which are put together here
    and do not know this class. A call goes straight there.

    Args:
        catalog: the queues of the schema.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.database = catalog.database
        writes = FencedWrites(catalog)
        claims = Claims(catalog, writes)
        ahead = ClaimsAhead(writes)
        locks = Locks(catalog)
        grants = Grants(claims)
        heads = Heads(catalog)

        # To get a lease, or the lock of a job for a transaction.
        self.claim = claims.claim
        self.claim_within = claims.claim_within
        self.finish_and_claim = claims.finish_and_claim
        self.send_claim_ahead = ahead.send
        self.without_spent = claims.without_spent
        self.lock_due = locks.lock_due
        self.finish_and_lock = locks.finish_and_lock
        self.finish_and_go_on = locks.finish_and_go_on
        self.send_lock = locks.send_lock
        self.lock_again = locks.lock_again
        self.leave_suspect = locks.leave_suspect

        # Of managers, and of the workers that they grant jobs to.
        self.assign = grants.assign
        self.register_demand = grants.register_demand
        self.take_assigned = grants.take_assigned
        self.withdraw_worker = grants.withdraw_worker

        # Where the first jobs are.
        self.peek_heads = heads.peek
        self.note_sweep = heads.note_sweep
        self.head_hints = heads.hints

        # What is written under a lease.
        self.finish = writes.finish
        self.complete = writes.complete
        self.fail = writes.fail
        self.requeue = writes.requeue
        self.delays = writes.delays
        self.release = writes.release
        self.hold = writes.hold
        self.heartbeat = writes.heartbeat
        self.note_progress = writes.note_progress
        self.ended_by_us = writes.ended_by_us
        self.asked_to_end = writes.asked_to_end
        self.end_leases = writes.end_leases

        # What is written for jobs that a transaction has locked.
        self.finish_locked = writes.finish_locked
        self.return_locked = writes.return_locked

        self.stops_key = writes.stops_key
