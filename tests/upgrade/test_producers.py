"""Producers on a schema that does not serve their code any more learn which of the two is to be upgraded."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import SchemaTooNew
from dagster_sqlqueue.followers import Followers
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.topics import Topics
from tests.support import Work, caller, rows
from tests.support.callers import sqlalchemy_connection
from tests.upgrade.made_up import become

SPEC = QueueSpec("work", Work)


def joined(open_connection: Any, put: Callable[..., object]) -> Callable[[str], None]:
    def call(url: str) -> None:
        with open_connection(url) as connection:
            put(connection=connection)

    return call


def awaited(put: Callable[..., Any]) -> Callable[[str], None]:
    async def wait(url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await put(connection=connection)

    return lambda url: asyncio.run(wait(url))


def verbs(queue: SqlQueue) -> dict[str, Callable[[str], object]]:
    """What producers call, each with the server's address."""
    topics, followers = Topics(queue), Followers(queue)
    return {
        "one": lambda url: queue.enqueue(SPEC, Work(n=1)),
        "one, with an id": lambda url: queue.enqueue(SPEC, NewJob(Work(n=1), id=uuid7())),
        "many": lambda url: queue.enqueue_many(SPEC, [Work(n=1)] * 300),
        "in a transaction": joined(caller, lambda **where: queue.enqueue(SPEC, Work(n=1), **where)),
        "in SQLAlchemy's": joined(
            sqlalchemy_connection, lambda **where: queue.enqueue_many(SPEC, [Work(n=1)], **where)
        ),
        "awaited": awaited(lambda **where: queue.aenqueue(SPEC, Work(n=1), **where)),
        "many, awaited": awaited(lambda **where: queue.aenqueue_many(SPEC, [Work(n=1)], **where)),
        "followed": lambda url: followers.enqueue(SPEC, Work(n=1)),
        "followed, awaited": awaited(lambda **where: followers.aenqueue(SPEC, Work(n=1), **where)),
        "published": lambda url: topics.publish("topic", {"n": 1}),
        "many, published": lambda url: topics.publish_many("topic", [{"n": 1}]),
        "published, awaited": awaited(lambda **where: topics.apublish("topic", {"n": 1}, **where)),
    }


def test_a_producer_that_a_schema_does_not_serve_any_more_learns_it(
    queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        become(patch, 4)
        queue.migrate()
    Topics(queue).subscribe("topic", "all", "work")
    rows(queue, "ALTER TABLE {s}.job RENAME priority TO urgency")
    for name, call in verbs(queue).items():
        with pytest.raises(SchemaTooNew, match="The package is to be upgraded") as refused:
            call(url)
        assert refused.value.__cause__ is not None, name


def test_an_error_that_has_another_cause_stays_what_it_is(queue: SqlQueue, url: str) -> None:
    Topics(queue).subscribe("topic", "all", "work")
    rows(queue, "ALTER TABLE {s}.job ADD CONSTRAINT cheap CHECK (priority < 0)")
    for name, call in verbs(queue).items():
        with pytest.raises(Exception, match="cheap") as refused:
            call(url)
        assert not isinstance(refused.value, SchemaTooNew), name


def test_nothing_is_looked_up_while_all_goes_well(queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "check", lambda database: pytest.fail("the versions were looked up"))
    for call in verbs(queue).values():
        call(url)


def test_with_the_only_connection_in_use_the_error_stays_what_it_is(url: str, queue: SqlQueue) -> None:
    rows(queue, "ALTER TABLE {s}.job RENAME priority TO urgency")
    with (
        SqlQueue(url, schema=queue.database.schema, pool_size=1, connect_timeout=1) as narrow,
        narrow.database.connection() as connection,
        pytest.raises(psycopg.errors.UndefinedColumn),
    ):
        narrow.enqueue(SPEC, Work(n=1), connection=connection)
