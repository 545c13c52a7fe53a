"""A job that has ended is not put on its queue again under its id, in whichever transaction its producer sends it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, LeaseLost
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.topics import Message, Topics
from tests.support import Work, caller, claim, make_due, value
from tests.support.callers import engine_of, sqlalchemy_connection

STRICTER = [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
OWN = uuid7()


def _live(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


def _job(**more: Any) -> NewJob[Work]:
    return NewJob(Work(n=1), id=OWN, **more)


_Put = Callable[[SqlQueue, QueueSpec[Work], Any], Any]

PUTS: dict[str, _Put] = {
    "enqueue": lambda queue, spec, at: queue.enqueue(spec, _job(), connection=at),
    "enqueue, replacing": lambda queue, spec, at: queue.enqueue(
        spec, _job(unique_key="u"), on_conflict="replace", connection=at
    ),
    "enqueue_many": lambda queue, spec, at: queue.enqueue_many(spec, [Work(n=0), _job()], connection=at),
    "enqueue_many, skipping": lambda queue, spec, at: queue.enqueue_many(
        spec, [_job()], on_bad_row="skip", connection=at
    ),
    "enqueue_many, replacing": lambda queue, spec, at: queue.enqueue_many(
        spec, [_job(unique_key="u")], on_conflict="replace", connection=at
    ),
    "followers": lambda queue, spec, at: Followers(queue).enqueue(spec, _job(), connection=at),
    "followers, merging": lambda queue, spec, at: Followers(queue).enqueue_many(
        spec, [_job(unique_key="u")], connection=at
    ),
    "publish": lambda queue, spec, at: Topics(queue).publish("orders", {"n": 1}, id=OWN, connection=at),
    "publish_many": lambda queue, spec, at: Topics(queue).publish_many(
        "orders", [Message({"n": 1}, OWN)], connection=at
    ),
}
"""Whatever puts a job with an id of its producer's on a queue."""


@pytest.mark.parametrize("kind", ["ours", "autocommit", "a transaction", "SQLAlchemy"])
@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_a_job_that_has_ended_is_left_out_and_its_zombies_stay_refused(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, put: _Put, kind: str
) -> None:
    Topics(queue).subscribe("orders", "worker", "work")
    put(queue, spec, None)
    zombies = claim(queue)
    make_due(queue)
    while jobs := claim(queue):
        queue.complete(jobs)
    with contextlib.ExitStack() as stack:
        at: Any = None
        if kind == "SQLAlchemy":
            at = stack.enter_context(sqlalchemy_connection(url))
        elif kind != "ours":
            at = stack.enter_context(caller(url, autocommit=kind == "autocommit"))
        put(queue, spec, at)
        if kind in ("a transaction", "SQLAlchemy"):
            at.commit()
    again = claim(queue)
    assert {job.id for job in again} & {job.id for job in zombies} == set()
    with pytest.raises(LeaseLost):
        queue.complete(zombies)
    assert value(queue, "SELECT count(*) - count(DISTINCT id) FROM {s}.job_archive") == 0


@pytest.mark.parametrize("level", STRICTER, ids=lambda level: level.name)
@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_a_snapshot_that_may_hide_a_jobs_end_takes_no_ids(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, put: _Put, level: psycopg.IsolationLevel
) -> None:
    """The job is sent, worked off and sent again: by a transaction that began before its end."""
    Topics(queue).subscribe("orders", "worker", "work")
    with caller(url) as connection:
        connection.isolation_level = level
        connection.execute("SELECT 1")
        put(queue, spec, None)
        queue.complete(claim(queue))
        with pytest.raises(InvalidInput, match=rf"{OWN}.*{level.name.replace('_', ' ')}.*READ COMMITTED"):
            put(queue, spec, connection)
        connection.execute("SELECT 1")
        connection.commit()
        assert _live(queue) == 0
        # Seen or not: it is refused before anything is looked at.
        with pytest.raises(InvalidInput, match="READ COMMITTED"):
            put(queue, spec, connection)
        connection.rollback()
    assert value(queue, "SELECT count(*) FROM {s}.job_archive WHERE payload ->> 'n' = '1'") == 1


@pytest.mark.parametrize("level", STRICTER, ids=lambda level: level.name)
def test_ids_of_the_librarys_own_go_in_under_any_snapshot(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, level: psycopg.IsolationLevel
) -> None:
    Topics(queue).subscribe("orders", "worker", "work")
    with caller(url) as connection:
        connection.isolation_level = level
        assert queue.enqueue(spec, NewJob(Work(n=1), unique_key="a"), connection=connection)
        assert queue.enqueue(spec, NewJob(Work(n=1), unique_key="a"), on_conflict="replace", connection=connection)
        assert queue.enqueue_many(spec, [Work(n=n) for n in range(300)], connection=connection).inserted == 300
        done = Followers(queue).enqueue_many(
            spec, [NewJob(Work(n=2), unique_key=key) for key in "ab"], connection=connection
        )
        assert (done.inserted, done.merged) == (1, 1)
        assert Topics(queue).publish("orders", {"n": 1}, connection=connection).jobs[0].inserted
        connection.commit()
    assert _live(queue) == 303


@pytest.mark.parametrize("orm", [False, True])
def test_the_same_through_sqlalchemy(queue: SqlQueue, spec: QueueSpec[Work], url: str, orm: bool) -> None:
    with engine_of(url, isolation_level="SERIALIZABLE") as engine, engine.connect() as connection:
        at = Session(connection) if orm else connection
        for put in PUTS.values():
            with pytest.raises(InvalidInput, match="SERIALIZABLE"):
                put(queue, spec, at)
        at.execute(sa.text("SELECT 1"))
        assert queue.enqueue(spec, Work(n=1), connection=at)
        at.commit()
    assert _live(queue) == 1


def test_the_same_awaited(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    topics, followers = Topics(queue), Followers(queue)

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            for verb in (
                lambda: queue.aenqueue(spec, _job(), connection=connection),
                lambda: queue.aenqueue_many(spec, [_job()], connection=connection),
                lambda: followers.aenqueue(spec, _job(), connection=connection),
                lambda: followers.aenqueue_many(spec, [_job()], connection=connection),
                lambda: topics.apublish("orders", {"n": 1}, id=OWN, connection=connection),
                lambda: topics.apublish_many("orders", [Message({"n": 1}, OWN)], connection=connection),
            ):
                with pytest.raises(InvalidInput, match="REPEATABLE READ"):
                    await verb()
            assert await queue.aenqueue(spec, Work(n=1), connection=connection)
            await connection.commit()

    asyncio.run(run())
    assert _live(queue) == 1


@pytest.mark.parametrize("autocommit", [False, True])
def test_awaited_a_job_that_has_ended_is_left_out(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, autocommit: bool
) -> None:
    topics, followers = Topics(queue), Followers(queue)
    topics.subscribe("orders", "worker", "work")
    queue.enqueue(spec, _job())
    topics.publish("orders", {"n": 1}, id=OWN)
    queue.complete(claim(queue))

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=autocommit) as connection:
            assert await queue.aenqueue(spec, _job(), connection=connection) is None
            assert (await queue.aenqueue_many(spec, [_job()], connection=connection)).duplicates == 1
            assert not (await followers.aenqueue(spec, _job(), connection=connection)).inserted
            published = await topics.apublish("orders", {"n": 1}, id=OWN, connection=connection)
            assert not published.jobs[0].inserted
            many = await topics.apublish_many("orders", [Message({"n": 1}, OWN)], connection=connection)
            assert many.inserted == 0
            if not autocommit:
                await connection.commit()

    asyncio.run(run())
    assert _live(queue) == 0


def test_a_callback_is_not_put_on_again_by_a_snapshot_that_hides_its_end(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    followers, back = Followers(queue), Callback("ended")
    queue.create_queue(QueueSpec("ended", Work))
    job = queue.enqueue(spec, Work(n=1))
    assert job
    queue.complete(claim(queue))
    with caller(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        followers.follow(job, back)
        queue.complete(queue.claim("ended", limit=9, worker="w"))
        with pytest.raises(InvalidInput, match=rf"{job}.*has ended.*READ COMMITTED"):
            followers.follow(job, back, connection=connection)
        connection.commit()
    assert _live(queue) == 0
