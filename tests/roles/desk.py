"""Every verb that people call, as an attempt of somebody with one role, and who of the four may do it."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import sqlalchemy as sa
from psycopg import AsyncConnection

from dagster_sqlqueue import (
    Backoff,
    Consumer,
    Done,
    Mode,
    NewJob,
    QueueSpec,
    RateLimit,
    Sensitive,
    SqlQueue,
    batches,
    slots,
)
from dagster_sqlqueue.columns import stable_id
from dagster_sqlqueue.deciding import Completed
from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.manager import AssignedSource, Manager
from dagster_sqlqueue.model import ArchiveState, ClaimedJob
from dagster_sqlqueue.outcomes import Retry
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.permissions import Role
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.selection import Selection
from dagster_sqlqueue.topics import Topics
from dagster_sqlqueue.waiting import Waiter
from tests.core.support import Work, rows


class Secret(Work):
    """A payload with something to hide."""

    token: Annotated[str, Sensitive()] = ""


@dataclass
class Desk:
    """A queue of one attempt's own, and what its owner lays on it.

    Attributes:
        owner: who may everything.
        url: as whom the attempt is made.
        spec: the attempt's queue.
    """

    owner: SqlQueue
    url: str
    spec: QueueSpec[Work] = field(default_factory=lambda: QueueSpec(f"q_{uuid4().hex[:12]}", Work, bucket_count=2))

    def __post_init__(self) -> None:
        self.owner.create_queue(self.spec)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.spec.name

    @property
    def all(self) -> Selection:
        """Every job of the queue."""
        return Selection(all=True)

    def change(self, **settings: Any) -> None:
        """Have the queue work in another way."""
        self.spec = QueueSpec(self.name, Work, bucket_count=2, backoff=Backoff(0, jitter=0), **settings)
        self.owner.create_queue(self.spec)

    def filled(self, count: int = 3, **more: Any) -> list[UUID]:
        """Jobs that wait."""
        made = [self.owner.enqueue(self.spec, NewJob(Work(n=n), **more)) for n in range(count)]
        return [id for id in made if id is not None]

    def claimed(self, count: int = 3) -> list[ClaimedJob]:
        """Jobs under a lease of `w`."""
        self.filled(count)
        return self.owner.claim(self.name, limit=count, worker="w", lease_seconds=600)

    def held(self) -> UUID:
        """A job that was set aside."""
        (id,) = self.filled(1)
        self.owner.hold_queued(self.name, self.all, "wait")
        return id

    def dead(self) -> UUID:
        """A job that failed for good."""
        (job,) = self.claimed(1)
        self.owner.finish([Ending(job, ArchiveState.FAILED, error="no")])
        return job.id

    def task(self, *, taken: bool = False, done: bool = False) -> UUID:
        """A job for people; four eyes."""
        (id,) = self.filled(1)
        people = HumanWork(self.owner)
        people.hand_over(self.name, Selection(ids=[id]), by="boss", reason="look", review=True)
        if taken or done:
            people.assign(id, "ann", by="boss")
        if done:
            people.submit(id, "ann", {"fine": True})
        return id

    def topic(self) -> str:
        """A topic whose messages become jobs of the queue."""
        name = f"t.{self.name}"
        Topics(self.owner).subscribe(name, "all", self.name)
        return name

    def schedule(self, *, due: bool = False) -> str:
        """A schedule of the queue."""
        Schedules(self.owner).put(self.spec, "often", Work(n=0), every=timedelta(hours=1))
        if due:
            rows(
                self.owner,
                "UPDATE {s}.schedule SET anchor = anchor - interval '3 hours', next_tick = next_tick - interval '3 hours'"
                " WHERE queue = %s",
                self.name,
            )
        return "often"


Attempt: TypeAlias = Callable[[SqlQueue, Desk], Any]

P, C, O, B = Role.PRODUCER, Role.CONSUMER, Role.OPERATOR, Role.OBSERVER  # noqa: E741
EVERYBODY = frozenset(Role)
TABLE: dict[str, tuple[frozenset[Role], Attempt]] = {}
"""By the attempt's name: who may, and the attempt."""


def verb(*may: Role) -> Callable[[Attempt], Attempt]:
    """Note who may do what follows."""

    def note(attempt: Attempt) -> Attempt:
        TABLE[attempt.__name__] = (frozenset(may), attempt)
        return attempt

    return note


# Putting in


@verb(P, O)
def enqueue(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.enqueue(desk.spec, Work(n=1))


@verb(P, O)
def enqueue_the_same_again(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1, unique_key="k")
    assert queue.enqueue(desk.spec, NewJob(Work(n=1), unique_key="k")) is None


@verb(P, O)
def enqueue_of_a_key(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(ordered=True)
    assert queue.enqueue(desk.spec, NewJob(Work(n=1), ordering_key="k"))


@verb(P, O)
def enqueue_replacing(queue: SqlQueue, desk: Desk) -> Any:
    (there,) = desk.filled(1, unique_key="k")
    assert queue.enqueue(desk.spec, NewJob(Work(n=9), unique_key="k"), on_conflict="replace") == there
    assert Work.model_validate_json(desk.owner.job(there).payload) == Work(n=9)


@verb(P, O)
def enqueue_replacing_what_was_in_line(queue: SqlQueue, desk: Desk) -> Any:
    """The replaced job was the first of its key and is put off: the next one, which waited, is let in."""
    desk.change(ordered=True)
    desk.filled(1, unique_key="a", ordering_key="k")
    desk.filled(1, unique_key="b", ordering_key="k")
    rows(
        desk.owner,
        "UPDATE {s}.job SET available_at = 'infinity' WHERE queue = %s AND unique_key = 'b'",
        desk.name,
    )
    later = desk.owner.job(desk.owner.jobs(desk.name, Selection(all=True))[0].id).run_at + timedelta(days=1)
    job = NewJob(Work(n=9), unique_key="a", ordering_key="k", run_at=later)
    assert queue.enqueue_many(desk.spec, [job], on_conflict="replace").replaced == 1


@verb(P, O)
def enqueue_many_by_arrays(queue: SqlQueue, desk: Desk) -> Any:
    jobs = [NewJob(Work(n=n), unique_key=f"k{n}") for n in range(3)]
    assert queue.enqueue_many(desk.spec, jobs).inserted == 3


@verb(P, O)
def enqueue_many_by_copy(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.enqueue_many(desk.spec, [Work(n=n) for n in range(300)]).inserted == 300


@verb(P, O)
def enqueue_many_sent_before(queue: SqlQueue, desk: Desk) -> Any:
    moment = desk.owner.job(desk.dead()).created_at
    jobs = [NewJob(Work(n=n), id=stable_id(moment, f"{desk.name}/{n}")) for n in range(3)]
    desk.owner.enqueue_many(desk.spec, jobs[:2])
    desk.owner.complete(desk.owner.claim(desk.name, limit=1, worker="w"))
    done = queue.enqueue_many(desk.spec, jobs, sent_before=True)
    assert (done.inserted, done.duplicates) == (1, 2)
    again = [NewJob(Work(n=n), id=job.id, unique_key=f"u{n}") for n, job in enumerate(jobs)]
    assert queue.enqueue_many(desk.spec, again, sent_before=True, on_conflict="replace").duplicates == 3


@verb(P, O)
def enqueue_in_a_transaction_of_psycopg(queue: SqlQueue, desk: Desk) -> Any:
    with psycopg.connect(desk.url) as connection:
        queue.enqueue(desk.spec, Work(n=1), connection=connection)
        queue.enqueue_many(desk.spec, [Work(n=n) for n in range(300)], connection=connection)


@verb(P, O)
def enqueue_in_a_transaction_of_sqlalchemy(queue: SqlQueue, desk: Desk) -> Any:
    engine = sa.create_engine(sa.engine.make_url(desk.url).set(drivername="postgresql+psycopg"))
    try:
        with engine.begin() as connection:
            queue.enqueue(desk.spec, Work(n=1), connection=connection)
            queue.enqueue_many(desk.spec, [Work(n=n) for n in range(300)], connection=connection)
    finally:
        engine.dispose()


@verb(P, O)
def aenqueue(queue: SqlQueue, desk: Desk) -> Any:
    async def put() -> None:
        async with await AsyncConnection.connect(desk.url) as connection:
            await queue.aenqueue(desk.spec, Work(n=1), connection=connection)

    asyncio.run(put())


@verb(P, O)
def aenqueue_many(queue: SqlQueue, desk: Desk) -> Any:
    async def put() -> None:
        async with await AsyncConnection.connect(desk.url) as connection:
            await queue.aenqueue_many(desk.spec, [Work(n=n) for n in range(300)], connection=connection)

    asyncio.run(put())


# Taking and ending


def _claim(queue: SqlQueue, desk: Desk, count: int = 3) -> Sequence[ClaimedJob]:
    jobs = queue.claim(desk.name, limit=count, worker="w", buckets=[0, 1], lease_seconds=60)
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
        assert queue.claim_within(transaction, desk.name, limit=3, worker="w")


@verb(C)
def finish_and_claim(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    desk.filled()
    ended, found = queue.finish_and_claim(
        [Ending(job, ArchiveState.SUCCEEDED) for job in jobs], desk.name, limit=3, worker="w"
    )
    assert len(ended) == len(found) == 3


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
    assert queue.heartbeat(desk.claimed(), lease_seconds=60).held


@verb(C)
def a_write_that_comes_too_late_is_counted(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    desk.owner.complete([job])
    assert not queue.finish([Ending(job, ArchiveState.SUCCEEDED)])


@verb(C, O, B)
def ended_by_us(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    desk.owner.complete(jobs)
    assert len(queue.ended_by_us(jobs)) == 3


@verb(C, O)
def lock_due(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    with queue.database.transaction() as transaction:
        jobs = queue.lock_due(transaction, desk.name, limit=3)
        assert queue.finish_locked(transaction, [Ending(job, ArchiveState.SUCCEEDED) for job in jobs], worker="w")


@verb(C, O)
def finish_and_lock(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(2)
    with queue.database.transaction() as transaction:
        jobs = queue.lock_due(transaction, desk.name, limit=1)
        endings = [Ending(job, ArchiveState.SUCCEEDED) for job in jobs]
        assert queue.finish_and_lock(transaction, endings, desk.name, limit=1, worker="w")


@verb(C)
def return_locked(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    with queue.database.transaction() as transaction:
        (job,) = queue.lock_due(transaction, desk.name, limit=1)
        assert queue.return_locked(transaction, [(job, Retry("later"))])


@verb(C)
def drain_by_a_consumer(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert Consumer(queue, desk.spec, lambda _: Done({"a": 1})).drain().succeeded == 3


@verb(C, O)
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
    with Waiter(queue, desk.name, f"w {uuid4()}") as waiter:
        assert waiter.listening
        desk.filled(1)
        assert waiter.wait(30)


@verb(C)
def manage_and_take_what_was_assigned(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(strategy="assign")
    desk.filled()
    with AssignedSource(queue, desk.name, "w") as source:
        source.take(3)
        assert Manager(queue, desk.name).assign() == 3
        queue.complete(source.take(3))


@verb(C)
def slots_of_a_sensor(queue: SqlQueue, desk: Desk) -> Any:
    slot = slots.acquire(queue, desk.name, 0, [0, 1], seconds=60)
    assert slot
    assert slots.extend(queue, slot, seconds=60)
    assert slots.taken(queue, desk.name) == {0: (0, 1)}
    assert slots.release(queue, slot)


@verb(C)
def seal_and_publish_a_batch(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    batch = batches.seal(queue, desk.name, desk.name, owner="me")
    with queue.database.transaction() as transaction:
        batches.publish(queue, batch, transaction, output={"at": "here"})
    assert batches.outputs(queue, desk.name) == [{"at": "here"}]


@verb(C)
def abandon_a_batch(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    batch = batches.seal(queue, desk.name, desk.name, owner="me")
    with batches.kept(queue, [batch]):
        pass
    assert batches.abandon(queue, batch, "not now") == 3


@verb(C, O)
def keep_sensitive_names(queue: SqlQueue, desk: Desk) -> Any:
    queue.keep_sensitive_names(QueueSpec(desk.name, Secret))
    assert desk.owner.sensitive_names(desk.name) == {"token"}


# Looking


@verb(C, O, B)
def look_at_heads_and_depth(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert queue.peek_heads(desk.name)
    assert queue.depth(desk.name).ready == 3


@verb(C, O)
def note_sweep(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.note_sweep(desk.name) == 2


@verb(*EVERYBODY)
def settings_of_queues(queue: SqlQueue, desk: Desk) -> Any:
    assert desk.name in {settings.name for settings in queue.queues()}
    assert queue.settings(desk.name) == queue.last_seen(desk.name)
    queue.check_exists(desk.name)
    queue.check_schema()
    queue.head_hints(desk.name)


@verb(C, O, B)
def peek(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.peek(desk.name)) == 3


@verb(O, B)
def stats(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    desk.filled()
    found = queue.stats(desk.name)
    assert (found.ready, found.dead_letters, found.payload_bytes_max is None) == (3, 1, False)


@verb(O, B)
def dead_letters(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert len(queue.dead_letters(desk.name)) == 1


@verb(C, O, B)
def archived(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert queue.archived(desk.name, since_seconds=600) == {"failed": 1}


@verb(O, B)
def find_a_job(queue: SqlQueue, desk: Desk) -> Any:
    assert json.loads(queue.job(desk.dead()).payload) == {"n": 0, "note": ""}


@verb(C, O, B)
def list_live_jobs(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.jobs(desk.name)) == 3
    assert sum(map(len, queue.live_ids(desk.name, desk.all))) == 3


@verb(O, B)
def list_archived_jobs(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert len(queue.jobs(desk.name, archived=True)) == 1


@verb(C, O, B)
def sensitive_names(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.sensitive_names(desk.name) == frozenset()


# Operating and deciding


@verb(O)
def create_queue(queue: SqlQueue, desk: Desk) -> Any:
    queue.create_queue(QueueSpec(f"{desk.name}_more", Work))


@verb(O)
def change_a_queue(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(2, ordering_key="k")
    queue.create_queue(QueueSpec(desk.name, Secret, ordered=True, max_running=1))


@verb(O)
def pause(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.pause(desk.name).paused_at


@verb(O)
def resume(queue: SqlQueue, desk: Desk) -> Any:
    desk.owner.pause(desk.name)
    assert queue.resume(desk.name).paused_at is None


@verb(O)
def drain(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.drain(desk.name, timeout_seconds=30)


@verb(O)
def rebucket(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.rebucket(desk.name, 4).bucket_count == 4


@verb(O)
def set_region(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.set_region(desk.name, "eu", [1]).regions == ("local", "eu")


@verb(O)
def cancel(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.cancel(desk.name, desk.all).changed) == 3


@verb(O)
def cancel_what_runs(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    queue.cancel(desk.name, Selection(ids=[job.id for job in jobs]))
    assert len(desk.owner.heartbeat(jobs, lease_seconds=60).cancel_requested) == 3


@verb(O)
def hold_queued(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.hold_queued(desk.name, desk.all, "wait").changed) == 3


@verb(O)
def release_held(queue: SqlQueue, desk: Desk) -> Any:
    desk.held()
    assert len(queue.release_held(desk.name, desk.all).changed) == 1


@verb(O)
def complete_held(queue: SqlQueue, desk: Desk) -> Any:
    assert len(queue.complete_held(desk.name, [Completed(desk.held(), "ann", {"a": 1})]).changed) == 1


@verb(O)
def delay(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.delay(desk.name, desk.all, 60.0).changed) == 3


@verb(O)
def reprioritise(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.reprioritise(desk.name, desk.all, 9).changed) == 3


@verb(O)
def redrive(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert len(queue.redrive(desk.name, desk.all).changed) == 1


@verb(O)
def redrive_of_a_key(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(ordered=True, max_attempts=1)
    desk.filled(1, ordering_key="k")
    (job,) = desk.owner.claim(desk.name, limit=1, worker="w")
    desk.owner.fail(job, "no")
    assert len(queue.redrive(desk.name, desk.all).changed) == 1


@verb(O)
def maintain(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.maintain().ran


@verb(O)
def trim(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(retention_days=1)
    queue.trim(desk.name)


@verb(*EVERYBODY)
def ensure_partitions(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.ensure_partitions()


@verb()
def init(queue: SqlQueue, desk: Desk) -> Any:
    queue.init()


@verb()
def install_roles(queue: SqlQueue, desk: Desk) -> Any:
    queue.install_roles()


# Topics


@verb(P, O)
def publish(queue: SqlQueue, desk: Desk) -> Any:
    assert Topics(queue).publish(desk.topic(), {"n": 1}).jobs


@verb(P, O)
def publish_many_sent_before(queue: SqlQueue, desk: Desk) -> Any:
    assert Topics(queue).publish_many(desk.topic(), [{"n": n} for n in range(3)], sent_before=True).messages == 3


@verb(P, O)
def apublish(queue: SqlQueue, desk: Desk) -> Any:
    topic = desk.topic()

    async def put() -> None:
        async with await AsyncConnection.connect(desk.url) as connection:
            await Topics(queue).apublish(topic, {"n": 1}, connection=connection)
            await Topics(queue).apublish_many(topic, [{"n": 1}], connection=connection)

    asyncio.run(put())


@verb(O)
def subscribe(queue: SqlQueue, desk: Desk) -> Any:
    Topics(queue).subscribe(f"t.{desk.name}", "mine", desk.name)


@verb(O)
def unsubscribe(queue: SqlQueue, desk: Desk) -> Any:
    Topics(queue).unsubscribe(desk.topic(), "all")


@verb(P, O, B)
def subscriptions(queue: SqlQueue, desk: Desk) -> Any:
    assert len(Topics(queue).subscriptions(desk.topic())) == 1


# Schedules


@verb(O)
def put_a_schedule(queue: SqlQueue, desk: Desk) -> Any:
    Schedules(queue).put(desk.spec, "nightly", Work(n=1), cron="0 2 * * *")


@verb(O, B)
def look_at_schedules(queue: SqlQueue, desk: Desk) -> Any:
    name = desk.schedule()
    schedules = Schedules(queue)
    assert schedules.schedule(desk.name, name) in schedules.schedules(desk.name)
    assert len(schedules.next_ticks(desk.name, name, 2)) == 2
    schedules.seconds_to_wait()


@verb(O)
def pause_and_resume_a_schedule(queue: SqlQueue, desk: Desk) -> Any:
    name = desk.schedule()
    Schedules(queue).pause(desk.name, name)
    Schedules(queue).resume(desk.name, name)


@verb(O)
def remove_a_schedule(queue: SqlQueue, desk: Desk) -> Any:
    Schedules(queue).remove(desk.name, desk.schedule())


@verb(O)
def tick(queue: SqlQueue, desk: Desk) -> Any:
    desk.schedule(due=True)
    Schedules(queue).tick()
    assert desk.owner.depth(desk.name).live == 1


# People


@verb(O)
def hand_over_to_people(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    assert HumanWork(queue).hand_over(desk.name, desk.all, by="boss", reason="look").changed


@verb(O)
def adopt_what_is_held(queue: SqlQueue, desk: Desk) -> Any:
    id = desk.held()
    assert HumanWork(queue).adopt(desk.name, by="boss") == [id]


@verb(O)
def take_and_submit(queue: SqlQueue, desk: Desk) -> Any:
    desk.task()
    people = HumanWork(queue)
    (task,) = people.take("ann", desk.name)
    people.submit(task.id, "ann", {"a": 1})
    people.approve(task.id, by="boss")


@verb(O)
def reject(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(queue).reject(desk.task(done=True), by="boss", reason="again")


@verb(O)
def give_back(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(queue).give_back(desk.task(taken=True), by="ann")


@verb(O)
def steps_of_people(queue: SqlQueue, desk: Desk) -> Any:
    id = desk.task()
    people = HumanWork(queue)
    people.assign(id, "ann", by="boss")
    people.unassign(id, by="boss")
    people.hold(id, by="boss")
    people.resume(id, by="boss")
    people.delay(id, 60.0, by="boss")


@verb(O, B)
def look_at_tasks(queue: SqlQueue, desk: Desk) -> Any:
    id = desk.task(taken=True)
    people = HumanWork(queue)
    assert people.task(id).id == id
    assert people.tasks(desk.name, "assigned")
    assert people.my_jobs("ann", queue=desk.name)


@verb(C, O, B)
def history_of_a_job(queue: SqlQueue, desk: Desk) -> Any:
    assert len(HumanWork(queue).history(desk.task())) == 1


@verb(O)
def set_a_rule(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(queue).set_rule(desk.name, automatic_percent=50)


@verb(O)
def route(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(desk.owner).set_rule(desk.name, automatic_percent=0)
    desk.filled(1)
    assert HumanWork(queue).route(desk.name, by="rule").changed


@verb(C, O, B)
def ask_whether_a_job_is_automatic(queue: SqlQueue, desk: Desk) -> Any:
    (id,) = desk.filled(1)
    HumanWork(queue).rule(desk.name)
    assert HumanWork(queue).is_automatic(desk.owner.job(id))
