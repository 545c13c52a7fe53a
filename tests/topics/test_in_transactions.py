"""Publishing inside the caller's own transaction, awaited or not: rolled back means never published."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, SchemaMissing
from dagster_sqlqueue.topics import Message, PublishedMany, Topics
from tests.support import Work, caller
from tests.topics.support import ORDERS, count


@pytest.fixture
def topics(queue: SqlQueue) -> Topics:
    """With two subscriptions to the topic `orders`."""
    topics = Topics(queue)
    topics.subscribe("orders", "worker", "work")
    topics.subscribe("orders", "mailer", "mail")
    return topics


def one(topics: Topics, connection: Any) -> None:
    assert len(topics.publish(ORDERS, Work(n=1), connection=connection).jobs) == 2


def again(topics: Topics, connection: Any) -> None:
    done = topics.publish(ORDERS, Work(n=1), connection=connection, id=uuid7())
    assert [job.inserted for job in done.jobs] == [True, True]


def many(topics: Topics, connection: Any) -> None:
    done = topics.publish_many(ORDERS, (Work(n=n) for n in range(600)), connection=connection)
    assert done == PublishedMany(600, 0, 1_200, 0)


VERBS = [(one, 2), (again, 2), (many, 1_200)]


@pytest.mark.parametrize(("verb", "number"), VERBS)
def test_it_stands_or_falls_with_the_callers_transaction(
    topics: Topics, queue: SqlQueue, theirs: Any, verb: Callable[..., None], number: int
) -> None:
    verb(topics, theirs)
    assert count(queue) == 0
    theirs.rollback()
    assert count(queue) == 0
    verb(topics, theirs)
    theirs.commit()
    assert count(queue) == number


def test_what_is_refused_leaves_the_callers_transaction_usable(topics: Topics, queue: SqlQueue, theirs: Any) -> None:
    one(topics, theirs)
    bad: list[Any] = [*[Work(n=n) for n in range(700)], {"n": "x"}]
    with pytest.raises(InvalidPayload, match="row 700"):
        topics.publish_many(ORDERS, bad, connection=theirs)
    with pytest.raises(InvalidPayload):
        topics.publish(ORDERS, {"n": "x"}, connection=theirs)
    one(topics, theirs)
    theirs.commit()
    assert count(queue) == 4


@pytest.mark.parametrize(("verb", "number"), VERBS)
def test_in_autocommit_a_call_is_its_own(
    topics: Topics, queue: SqlQueue, url: str, verb: Callable[..., None], number: int
) -> None:
    with caller(url, autocommit=True) as connection:
        verb(topics, connection)
        assert count(queue) == number
        with connection.transaction(force_rollback=True):
            verb(topics, connection)
        assert count(queue) == number


def test_wrong_connections_are_named(topics: Topics, queue: SqlQueue, url: str) -> None:
    wrong: Any
    for wrong in ("postgresql://x", 7):
        with pytest.raises(InvalidInput, match=rf"connection is a {type(wrong).__name__}; give a psycopg\.Connection"):
            topics.publish("orders", {}, connection=wrong)
        with pytest.raises(InvalidInput, match=r"give a psycopg\.Connection"):
            topics.publish_many("orders", [{}], connection=wrong)
    with caller(url, autocommit=True) as connection, connection.pipeline():
        for verb, _ in VERBS:
            with pytest.raises(InvalidInput, match="pipeline mode"):
                verb(topics, connection)
    assert count(queue) == 0


def test_in_a_snapshot_that_is_older_than_a_subscription(topics: Topics, queue: SqlQueue, url: str) -> None:
    """A subscription that the publisher's transaction cannot see gets nothing of it, and what it sees is whole."""
    with caller(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        topics.subscribe("orders", "late", "audit")
        topics.unsubscribe("orders", "mailer")
        assert len(topics.publish("orders", {}, connection=connection).jobs) == 2
        connection.commit()
    assert {job.subscription for job in topics.publish("orders", {}).jobs} == {"late", "worker"}


def awaited(url: str, work: "Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]", **settings: Any) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(url, **settings) as connection:
            await work(connection)

    asyncio.run(run())


async def _stream() -> AsyncIterator[Any]:
    for n in range(600):
        yield {"n": n if n != 77 else "x"}


def test_awaited_it_stands_or_falls_with_the_transaction(
    topics: Topics, queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    message = Message(Work(n=1), id=uuid7())

    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        assert len((await topics.apublish(ORDERS, Work(n=1), connection=connection)).jobs) == 2
        done = await topics.apublish_many(ORDERS, _stream(), connection=connection, on_bad_row="skip")
        assert (done.inserted, [bad.row for bad in done.rejected]) == (1_198, [77])
        assert count(queue) == 0
        await connection.rollback()
        assert count(queue) == 0
        first = await topics.apublish_many(ORDERS, [message], connection=connection)
        assert first.inserted == 2
        await connection.commit()
        assert Consumer(queue, spec, lambda job: None).drain().succeeded == 1
        second = await topics.apublish(ORDERS, Work(n=1), id=message.id, connection=connection)
        assert [job.inserted for job in second.jobs] == [False, False]
        with pytest.raises(InvalidPayload, match="row 0: "):
            await topics.apublish(ORDERS, {"n": "x"}, connection=connection)
        with pytest.raises(InvalidPayload, match="row 77: "):
            await topics.apublish_many(ORDERS, _stream(), connection=connection)
        await connection.commit()
        assert count(queue) == 1

    awaited(url, work)


def test_awaited_in_autocommit_a_call_is_its_own(topics: Topics, queue: SqlQueue, url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        await topics.apublish(ORDERS, Work(n=1), connection=connection)
        await topics.apublish(ORDERS, Work(n=1), connection=connection, id=uuid7())
        await topics.apublish_many(ORDERS, [Work(n=1)], connection=connection)
        assert count(queue) == 6
        async with connection.pipeline():
            await topics.apublish(ORDERS, Work(n=1), connection=connection)
        assert count(queue) == 8

    awaited(url, work, autocommit=True)


def test_awaited_the_wrong_kind_of_connection_is_named(topics: Topics, url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        theirs: Any = connection
        for call in (
            lambda: topics.publish("orders", {}, connection=theirs),
            lambda: topics.publish_many("orders", [], connection=theirs),
        ):
            with pytest.raises(InvalidInput, match="await apublish or apublish_many"):
                call()
        blocking: Any = sa.create_engine(topics.database.url)
        with pytest.raises(InvalidInput, match=r"connection is a Engine; give a psycopg\.AsyncConnection"):
            await topics.apublish("orders", {}, connection=blocking)
        with SqlQueue(url, schema="nowhere") as nowhere, pytest.raises(SchemaMissing, match="sqlqueue migrate"):
            await Topics(nowhere).apublish("orders", {}, connection=connection)

    awaited(url, work)
