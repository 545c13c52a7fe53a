"""The verbs about how jobs end and how far they are, as attempts of somebody with one role."""

import asyncio
import threading
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Callback, Followers, Groups
from dagster_sqlqueue.results import ReplyQueue, Results
from tests.gate.patience import PATIENCE
from tests.roles.desk import B, C, Desk, O, P, verb
from tests.support import Work, value


def own_callback(desk: Desk) -> Callback:
    """What is put on a queue that the user's role need not know."""
    desk.owner.create_queue(QueueSpec("ended", Work, bucket_count=1))
    return Callback("ended", context={"for": desk.name})


def callbacks(desk: Desk) -> int:
    return int(
        value(
            desk.owner,
            "SELECT count(*) FROM {s}.job WHERE queue = 'ended' AND payload->'context'->>'for' = %s",
            desk.name,
        )
    )


def opened(desk: Desk) -> UUID:
    """A group with one member."""
    group = Groups(desk.owner).open(own_callback(desk))
    Followers(desk.owner).enqueue(desk.spec, Work(n=1), group=group)
    return group


@verb(C)
def note_progress(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.claimed(1)
    queue.leases.note_progress(job, 40, "on its way")
    progress = Results(desk.owner).outcome(job.id).progress
    assert progress
    assert progress.percent == 40


@verb(P, O)
def enqueue_followed(queue: SqlQueue, desk: Desk) -> Any:
    followers = Followers(queue)
    first = followers.enqueue(desk.spec, NewJob(Work(n=1), unique_key="k"), callbacks=own_callback(desk))
    merged = followers.enqueue(desk.spec, NewJob(Work(n=1), unique_key="k"), callbacks=own_callback(desk))
    assert merged.job_id == first.id
    assert followers.enqueue_many(desk.spec, [Work(n=n) for n in range(3)], callbacks=own_callback(desk)).inserted == 3
    jobs = desk.owner.claim(desk.name, limit=4, worker="w", buckets=[0, 1])
    desk.owner.complete(jobs)
    assert callbacks(desk) == 5


@verb(P, O)
def follow(queue: SqlQueue, desk: Desk) -> Any:
    ended = desk.claimed(1)[0]
    desk.owner.complete([ended])
    (waits,) = desk.filled(1)
    assert not Followers(queue).follow(ended.id, own_callback(desk))
    assert Followers(queue).follow(waits, own_callback(desk))
    assert callbacks(desk) == 1


@verb(P, O)
def follow_awaited(queue: SqlQueue, desk: Desk) -> Any:
    callback, (waits,) = own_callback(desk), desk.filled(1)

    async def put() -> None:
        async with await AsyncConnection.connect(desk.url) as connection:
            await Followers(queue).aenqueue(desk.spec, Work(n=1), callbacks=callback, connection=connection)
            await Followers(queue).aenqueue_many(desk.spec, [Work(n=1)], callbacks=callback, connection=connection)
            await Followers(queue).afollow(waits, callback, connection=connection)

    asyncio.run(put())


@verb(O, B)
def who_follows(queue: SqlQueue, desk: Desk) -> Any:
    done = Followers(desk.owner).enqueue(desk.spec, Work(n=1), callbacks=own_callback(desk))
    assert len(Followers(queue).of(done.id)) == 1


@verb(P, O)
def fill_a_group(queue: SqlQueue, desk: Desk) -> Any:
    groups = Groups(queue)
    group = groups.open(own_callback(desk))
    groups.add(group, desk.filled(2))
    Followers(queue).enqueue(desk.spec, Work(n=1), group=group)
    groups.close(group)
    desk.owner.complete(desk.owner.claim(desk.name, limit=3, worker="w", buckets=[0, 1]))
    assert callbacks(desk) == 1


@verb(P, O)
def fill_a_group_awaited(queue: SqlQueue, desk: Desk) -> Any:
    callback, jobs = own_callback(desk), desk.filled(1)

    async def put() -> None:
        async with await AsyncConnection.connect(desk.url) as connection:
            group = await Groups(queue).aopen(callback, connection=connection)
            await Groups(queue).aadd(group, jobs, connection=connection)
            await Groups(queue).aclose(group, connection=connection)

    asyncio.run(put())


@verb(O, B)
def read_groups(queue: SqlQueue, desk: Desk) -> Any:
    group = opened(desk)
    assert Groups(queue).group(group).pending == 1
    assert Groups(queue).groups(10_000)
    assert len(Groups(queue).members(group)) == 1


@verb(O, B)
def outcomes(queue: SqlQueue, desk: Desk) -> Any:
    job = desk.claimed(1)[0]
    desk.owner.complete([job])
    with Results(queue) as results:
        assert results.outcome(job.id).succeeded
        assert results.outcomes([job.id])


@verb(O, B)
def wait(queue: SqlQueue, desk: Desk) -> Any:
    """An observer may not have itself notified, and polls."""
    (job, other) = desk.claimed(2)
    (waits,) = desk.filled(1)
    with Results(queue) as results:

        async def both() -> None:
            waiting = asyncio.ensure_future(results.await_outcomes([job.id, other.id], timeout_seconds=PATIENCE))
            await asyncio.sleep(0)
            desk.owner.complete([job, other])
            assert all(found.succeeded for found in (await waiting).values())
            assert (await results.await_outcome(job.id)).succeeded

        asyncio.run(both())
        assert results.wait(job.id).succeeded
        assert len(results.wait_many([job.id, other.id])) == 2
        # In another way than at the first read.
        (running,) = desk.owner.claim(desk.name, limit=1, worker="w", buckets=[0, 1])
        assert running.id == waits
        end = threading.Timer(0.2, desk.owner.complete, ([running],))
        end.start()
        assert results.wait(waits, timeout_seconds=PATIENCE).succeeded
        end.join()


@verb(O)
def make_a_reply_queue(queue: SqlQueue, desk: Desk) -> Any:
    replies = Results(queue).reply_queue(Work)
    replies.renew()
    assert replies.close()


@verb(C)
def receive_replies(queue: SqlQueue, desk: Desk) -> Any:
    made = Results(desk.owner).reply_queue(Work)
    desk.owner.enqueue(made.spec, Work(n=7))
    replies = ReplyQueue(queue, made.spec, ttl_seconds=3_600)
    assert replies.receive(timeout_seconds=0) == Work(n=7)
    replies.renew()
