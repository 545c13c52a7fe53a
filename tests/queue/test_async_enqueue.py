"""Putting in on an asynchronous connection of the caller's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, SchemaMissing, UnknownQueue
from dagster_sqlqueue.queue import Enqueued
from tests.support import Work, value
from tests.support.enqueuing import live


def awaited(url: str, work: "Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]", **settings: Any) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(url, **settings) as connection:
            await work(connection)

    asyncio.run(run())


def count(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


def test_awaited_enqueues_stand_or_fall_with_the_transaction(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        made = await queue.aenqueue(spec, {"n": 1}, connection=connection)
        assert isinstance(made, UUID)
        done = await queue.aenqueue_many(spec, (Work(n=n) for n in range(2_500)), connection=connection)
        assert done == Enqueued(2_500, 0)
        assert count(queue) == 0
        await connection.rollback()
        assert count(queue) == 0

        await queue.aenqueue(spec, NewJob(Work(n=1), unique_key="u"), connection=connection)
        assert await queue.aenqueue(spec, NewJob(Work(n=2), unique_key="u"), connection=connection) is None
        one = await queue.aenqueue(
            spec, NewJob(Work(n=3), unique_key="u"), connection=connection, on_conflict="replace"
        )
        assert isinstance(one, UUID)
        await connection.commit()
        assert live(queue, "CAST(payload->>'n' AS integer)") == [(3,)]

    awaited(url, work)


def test_awaited_enqueues_refuse_what_the_others_refuse(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        with pytest.raises(InvalidPayload, match="row 0: "):
            await queue.aenqueue(spec, {"n": "x"}, connection=connection)
        jobs: list[Any] = [*[Work(n=n) for n in range(2_100)], {"n": "x"}]
        with pytest.raises(InvalidPayload, match="row 2100: "):
            await queue.aenqueue_many(spec, jobs, connection=connection)
        with pytest.raises(InvalidInput, match="set_region"):
            await queue.aenqueue(spec, NewJob(Work(n=1), region="mars"), connection=connection)
        missing = replace(spec, name="missing")
        with pytest.raises(UnknownQueue, match="there are: work"):
            await queue.aenqueue(missing, {"n": 1}, connection=connection)
        with pytest.raises(UnknownQueue, match="there are: work"):
            await queue.aenqueue_many(missing, [], connection=connection)

        async def jobs_of_a_stream() -> AsyncIterator[Any]:
            for n in range(300):
                yield {"n": n if n != 77 else "x"}

        done = await queue.aenqueue_many(
            spec, jobs_of_a_stream(), connection=connection, on_bad_row="skip", on_conflict="replace"
        )
        assert (done.inserted, [bad.row for bad in done.rejected]) == (299, [77])
        await connection.commit()
        assert count(queue) == 299

    awaited(url, work)


def test_awaited_in_autocommit_a_call_is_its_own(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        await queue.aenqueue(spec, Work(n=1), connection=connection)
        await queue.aenqueue_many(spec, [Work(n=1)], connection=connection)
        assert count(queue) == 2
        async with connection.transaction(force_rollback=True):
            await queue.aenqueue_many(spec, [Work(n=n) for n in range(300)], connection=connection)
        async with connection.pipeline():
            await queue.aenqueue_many(spec, [Work(n=n) for n in range(300)], connection=connection)
        assert count(queue) == 302

    awaited(url, work, autocommit=True)


def test_the_wrong_kind_of_connection_is_named(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        theirs: Any = connection
        with pytest.raises(InvalidInput, match="await aenqueue"):
            queue.enqueue(spec, {"n": 1}, connection=theirs)
        with pytest.raises(InvalidInput, match="await aenqueue"):
            queue.enqueue_many(spec, [], connection=theirs)
        blocking: Any = sa.create_engine(url)
        with pytest.raises(InvalidInput, match=r"connection is a Engine; give a psycopg\.AsyncConnection"):
            await queue.aenqueue(spec, {"n": 1}, connection=blocking)
        with SqlQueue(url, schema="nowhere") as nowhere, pytest.raises(SchemaMissing, match="sqlqueue migrate"):
            await nowhere.aenqueue(spec, {"n": 1}, connection=connection)

    awaited(url, work)
