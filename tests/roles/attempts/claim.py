"""The verbs that claim jobs and end them, as attempts of somebody with one role."""

import contextlib
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from dagster_sqlqueue import Consumer, Done, Mode, QueueSpec, RateLimit, SqlQueue
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Retry
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.queue import batch_admin
from dagster_sqlqueue.queue.claim_ahead import may_claim_ahead
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.spark import batches
from tests.gate.patience import PATIENCE
from tests.roles.desk import B, C, Desk, O, Secret, verb
from tests.support import until


def _claim(queue: SqlQueue, desk: Desk, count: int = 3) -> Sequence[ClaimedJob]:
    jobs = queue.claim(desk.name, limit=count, worker="w", buckets=[0, 1], lease_seconds=300)
    assert len(jobs) == count
    return jobs


@verb(C)
def claim(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    _claim(queue, desk)


@verb(C)
def claim_fanout(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(strategy="fanout")
    desk.filled()
    _claim(queue, desk)


@verb(C)
def claim_fifo(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(strategy="fifo")
    desk.filled()
    _claim(queue, desk)


@verb(C)
def claim_by_token(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(strategy="token")
    desk.filled()
    _claim(queue, desk)


@verb(C)
def claim_of_an_ordered_queue(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(ordered=True)
    desk.filled(3, ordering_key="k")
    (job,) = _claim(queue, desk, 1)
    queue.complete([job])
    _claim(queue, desk, 1)


@verb(C)
def claim_under_limits(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(max_running=2, rate=RateLimit(100, 60))
    desk.filled()
    _claim(queue, desk, 2)


@verb(C)
def claim_within(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    with queue.database.transaction() as transaction:
        assert queue.leases.claim_within(transaction, ClaimRequest(desk.name, limit=3, worker="w"))


@verb(C)
def finish_and_claim(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    desk.filled()
    ended, found = queue.leases.finish_and_claim(
        Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs), ClaimRequest(desk.name, limit=3, worker="w")
    )
    assert len(ended) == len(found) == 3


@verb(C)
def claim_ahead(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    desk.filled()
    endings = Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)
    settings = queue.settings(desk.name)
    assert may_claim_ahead(settings)
    request = ClaimRequest(desk.name, 3, "w", buckets=[0, 1], joining=True)
    with contextlib.closing(Channel(queue.database)) as channel:
        sent = queue.leases.send_claim_ahead(channel, endings, request, settings)
        assert sent.receive() == 3
        assert len(queue.leases.without_spent(sent.claimed())) == 3
        assert sent.ended() is None, "not all were ended"


@verb(C, O)
def complete(queue: SqlQueue, desk: Desk) -> Any:
    queue.complete(desk.claimed())


@verb(C, O)
def finish(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    assert queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"a": 1})])


@verb(C, O)
def fail_for_good(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(max_attempts=1)
    (job,) = desk.claimed(1)
    assert not queue.fail(job, "no")


@verb(C)
def fail(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    assert queue.fail(job, "no")


@verb(C)
def requeue(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    assert queue.requeue([(job, Retry("later"))])


@verb(C)
def release(queue: SqlQueue, desk: Desk) -> Any:
    assert len(queue.release(desk.claimed())) == 3


@verb(C)
def hold(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    assert queue.hold([(job, "odd")])


@verb(C, O)
def heartbeat(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.heartbeat(desk.claimed(), lease_seconds=300).held


@verb(C)
def a_write_that_comes_too_late_is_counted(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    desk.owner.complete([job])
    assert not queue.finish([Ending(job, ArchiveState.SUCCEEDED)])


@verb(C, O, B)
def ended_by_us(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    desk.owner.complete(jobs)
    assert len(queue.leases.ended_by_us(jobs)) == 3


@verb(C, O, B)
def asked_to_end(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    desk.owner.cancel(desk.name, Selection(ids=[jobs[0].id]))
    desk.owner.requeue([(job, Retry("later")) for job in jobs])
    assert queue.leases.asked_to_end(jobs) == {jobs[0].id}


@verb(C, O)
def lock_due(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    with queue.database.transaction() as transaction:
        jobs = queue.leases.lock_due(transaction, ClaimRequest(desk.name, limit=3))
        assert queue.leases.finish_locked(
            transaction, Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs), worker="w"
        )


@verb(C, O)
def finish_and_lock(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(2)
    with queue.database.transaction() as transaction:
        jobs = queue.leases.lock_due(transaction, ClaimRequest(desk.name, limit=1))
        endings = Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)
        assert queue.leases.finish_and_lock(transaction, endings, ClaimRequest(desk.name, limit=1, worker="w"))


@verb(C, O)
def finish_and_go_on(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    with queue.database.transaction() as transaction:
        (job,) = queue.leases.lock_due(transaction, ClaimRequest(desk.name, limit=1))
        queue.leases.finish_and_go_on(transaction, Endings.of([Ending(job, ArchiveState.SUCCEEDED)]), worker="w")


@verb(C, O)
def send_lock(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    with queue.database.transaction() as transaction:
        sent = queue.leases.send_lock(transaction, ClaimRequest(desk.name, limit=3), queue.settings(desk.name))
        assert len(sent.locked()) == 3


@verb(C, O)
def lock_again(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    with queue.database.transaction() as transaction:
        (job,) = queue.leases.lock_due(transaction, ClaimRequest(desk.name, limit=1))
        assert queue.leases.lock_again(transaction, job)


@verb(C)
def leave_suspect(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    with queue.database.transaction() as transaction:
        (job,) = queue.leases.lock_due(transaction, ClaimRequest(desk.name, limit=1))
    queue.leases.leave_suspect(job, worker="w")
    assert queue.claim(desk.name, limit=1, worker="w")[0].alone


@verb(C)
def return_locked(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    with queue.database.transaction() as transaction:
        (job,) = queue.leases.lock_due(transaction, ClaimRequest(desk.name, limit=1))
        assert queue.leases.return_locked(transaction, [(job, Retry("later"))])


@verb(C)
def drain_by_a_consumer(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert Consumer(queue, desk.spec, lambda _: Done({"a": 1})).drain().succeeded == 3


@verb(C)
def drain_by_a_consumer_in_transactions(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert Consumer(queue, desk.spec, lambda _: Done(), mode=Mode.TRANSACTIONAL).drain().succeeded == 3


@verb(C)
def drain_by_a_consumer_of_a_limited_queue(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(max_running=2, rate=RateLimit(100, 60))
    desk.filled()
    assert Consumer(queue, desk.spec, lambda _: Done()).drain().succeeded == 3


@verb(C)
def wait_for_jobs(queue: SqlQueue, desk: Desk) -> Any:
    with Waiter(queue.catalog, desk.name, f"w {uuid4()}") as waiter:
        assert waiter.listening
        desk.filled(1)
        assert waiter.wait(PATIENCE)


@verb(C)
def manage_and_take_what_was_assigned(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(strategy="assign")
    desk.filled()
    with AssignedSource(queue, desk.name, "w") as source:
        source.take(3)
        assert Manager(queue, desk.name).assign() == 3
        queue.complete(source.take(3))


@verb(C)
def grant_jobs_to_a_worker(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(strategy="assign")
    desk.filled()
    leases = queue.leases
    leases.register_demand(desk.name, "w", 3, seconds=300)
    assert leases.assign(desk.name) == 3
    assert len(leases.take_assigned(desk.name, "w", limit=3)) == 3
    leases.withdraw_worker(desk.name, "w")


@verb(C)
def slots_of_a_sensor(queue: SqlQueue, desk: Desk) -> Any:
    slot = slots.acquire(queue, desk.name, 0, [0, 1], seconds=300)
    assert slot
    assert slots.extend(queue, slot, seconds=300, run_id="a run") == (0, 1)
    assert slots.widen(queue, slot, [2])
    assert slots.taken(queue, desk.name) == {0: (0, 1, 2)}
    assert [bucket.starts for bucket in slots.asked(queue, desk.name).values()] == [1, 1]
    slots.served(queue, desk.name, [0, 1])
    assert slots.release(queue, slot)
    unused = slots.acquire(queue, desk.name, 0, [0, 1], seconds=300, instance="Dagster's")
    assert unused
    assert slots.forget(queue, unused)


@verb(C)
def end_the_leases_of_a_dead_worker(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert queue.claim(desk.name, limit=2, worker="dead")
    assert len(queue.leases.end_leases(desk.name, "dead")) == 2


@verb(C)
def seal_and_publish_a_batch(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    batch = batches.seal(queue, desk.name, desk.name, owner="me")
    (job, *_) = desk.filled()
    assert batches.report(queue, batch, [(job, Done())]) == set()
    assert batches.outcomes(queue, batch) == {}
    with batches.publication(queue, batch, output={"at": "here"}):
        pass
    assert batches.outputs(queue, desk.name) == [{"at": "here"}]


@verb(C)
def publish_a_transactional_batch(queue: SqlQueue, desk: Desk) -> Any:
    (job, *_) = desk.filled()
    batch = batches.seal(queue, desk.name, desk.name, owner="me", mode=Mode.TRANSACTIONAL)
    assert batches.report(queue, batch, [(job, Done())]) == {job}
    with batches.publication(queue, batch, output={}):
        pass
    assert batch.mode is Mode.TRANSACTIONAL


@verb(C, O)
def sweep_batches(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    batches.seal(desk.owner, desk.name, desk.name, owner="me", lease_seconds=0.001)
    assert until(lambda: batches.sweep_batches(queue, desk.name, grace_seconds=0).batches) == 1


@verb(C)
def abandon_a_batch(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    batch = batches.seal(queue, desk.name, desk.name, owner="me")
    with batches.kept(queue, [batch]):
        pass
    assert batches.abandon(queue, batch, "not now") == 3


@verb(O)
def give_up_a_batch_and_forget_it(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    batch = batches.seal(desk.owner, desk.name, desk.name, owner="me")
    assert batch_admin.abandon(queue, [batch.id], reason="not now", held=True).returned == 3
    assert batch_admin.forget(queue, [batch.id]).changed == [batch.id]


@verb(C, O, B)
def read_batches(queue: SqlQueue, desk: Desk) -> Any:
    assert batch_admin.batches(queue.database, desk.name) == []
    queue.database.run("batch_stats", {})


@verb(C, O)
def keep_sensitive_names(queue: SqlQueue, desk: Desk) -> Any:
    queue.catalog.keep_sensitive_names(QueueSpec(desk.name, Secret))
    assert desk.owner.catalog.sensitive_names(desk.name) == {"token"}
