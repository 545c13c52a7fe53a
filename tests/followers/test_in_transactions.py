"""Inside the caller's own transaction, awaited or not: rolled back means never enqueued, and nobody is notified."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownGroup, UnknownQueue
from dagster_sqlqueue.followers import Callback, Followers, Groups, SubmittedMany
from tests.followers.support import ended_jobs
from tests.support import Work, value

ENDED = Callback("ended")


def jobs() -> list[NewJob[Work]]:
    return [NewJob(Work(n=n), unique_key=f"k{n % 4}", id=uuid7()) for n in range(8)]


def test_it_stands_or_falls_with_the_callers_transaction(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, theirs: Any
) -> None:
    groups = Groups(queue)
    for commit in (False, True):
        group = groups.open(connection=theirs)
        first = followers.enqueue(spec, jobs()[0], callbacks=ENDED, group=group, connection=theirs)
        done = followers.enqueue_many(spec, jobs(), callbacks=ENDED, group=group, connection=theirs)
        assert (first.inserted, done) == (True, SubmittedMany(3, 5, 0))
        assert first.job_id
        assert followers.follow(first.job_id, Callback("ended", context="more"), connection=theirs)
        groups.close(group, connection=theirs)
        assert value(queue, "SELECT count(*) FROM {s}.job") == 0
        if commit:
            theirs.commit()
        else:
            theirs.rollback()
    Consumer(queue, spec, lambda job: None).drain()
    assert len(ended_jobs(queue)) == 10
    (found,) = groups.groups()
    assert (found.members, found.succeeded, bool(found.ended_at)) == (4, 4, True)


def test_what_is_refused_leaves_the_callers_transaction_usable(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, theirs: Any
) -> None:
    followers.enqueue(spec, Work(n=1), callbacks=ENDED, connection=theirs)
    with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
        followers.enqueue_many(spec, jobs(), callbacks=Callback("nosuch"), connection=theirs)
    with pytest.raises(UnknownGroup):
        followers.enqueue(spec, Work(n=1), group=uuid7(), connection=theirs)
    with pytest.raises(InvalidInput):
        followers.enqueue(spec, {"n": "x"}, connection=theirs)
    theirs.commit()
    assert value(queue, "SELECT count(*) FROM {s}.job") == 1


def awaited(url: str, work: Callable[[Any], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        connection = await psycopg.AsyncConnection.connect(url, **settings)
        try:
            await work(connection)
        finally:
            await connection.close()

    asyncio.run(run())


def test_awaited(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, url: str) -> None:
    groups = Groups(queue)
    live = queue.enqueue(spec, Work(n=7))
    assert live

    async def work(connection: Any) -> None:
        for commit in (False, True):
            group = await groups.aopen(ENDED, connection=connection)
            await groups.aadd(group, [live], connection=connection)
            assert await followers.afollow(live, ENDED, connection=connection)
            sent = await followers.aenqueue(spec, jobs()[0], callbacks=ENDED, group=group, connection=connection)
            assert sent.inserted
            seen: list[bool] = []
            done = await followers.aenqueue_many(
                spec,
                jobs(),
                callbacks=ENDED,
                group=group,
                connection=connection,
                on_submitted=lambda one: seen.append(one.merged),  # noqa: B023
            )
            assert done == SubmittedMany(3, 5, 0)
            assert seen.count(True) == 5
            with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
                await followers.aenqueue(spec, Work(n=9), callbacks=Callback("nosuch"), connection=connection)
            with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
                await followers.aenqueue(QueueSpec("nosuch", Work), Work(n=9), connection=connection)
            with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
                await groups.aopen(Callback("nosuch"), connection=connection)
            with pytest.raises(UnknownGroup):
                await groups.aclose(uuid7(), connection=connection)
            await groups.aclose(group, connection=connection)
            await (connection.commit() if commit else connection.rollback())

    awaited(url, work)
    Consumer(queue, spec, lambda job: None).drain()
    (found,) = groups.groups()
    assert (found.members, found.succeeded, bool(found.ended_at)) == (5, 5, True)
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE queue = 'ended'") == 9 + 1 + 1


def test_awaited_in_a_pipeline(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, url: str) -> None:
    live = queue.enqueue(spec, Work(n=7))
    assert live

    async def work(connection: Any) -> None:
        async with connection.pipeline():
            assert await followers.afollow(live, ENDED, connection=connection)
            done = await followers.aenqueue_many(spec, jobs(), callbacks=ENDED, connection=connection)
            assert done == SubmittedMany(4, 4, 0)
            again = await followers.aenqueue_many(spec, jobs(), callbacks=ENDED, connection=connection)
            assert again == SubmittedMany(0, 8, 0)
            with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
                await followers.afollow(live, Callback("nosuch"), connection=connection)
            await connection.commit()

    awaited(url, work)
    Consumer(queue, spec, lambda job: None).drain()
    assert len(ended_jobs(queue)) == 1 + 8 + 8


def test_wrong_connections_are_named(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, url: str) -> None:
    wrong: Any = object()
    with pytest.raises(InvalidInput, match="connection is a object"):
        followers.enqueue(spec, Work(n=1), connection=wrong)
    with pytest.raises(InvalidInput, match="connection is a object"):
        asyncio.run(followers.aenqueue(spec, Work(n=1), connection=wrong))

    async def work(connection: Any) -> None:
        with pytest.raises(InvalidInput, match="await aenqueue"):
            followers.enqueue(spec, Work(n=1), connection=connection)
        with pytest.raises(InvalidInput, match="await aopen"):
            Groups(queue).open(connection=connection)

    awaited(url, work)
