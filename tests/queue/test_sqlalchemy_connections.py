"""Enqueues on connections of SQLAlchemy's that its asyncio drives, or that stream their results."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from tests.support import Work, value
from tests.support.callers import engine_of

Enqueue = Callable[[SqlQueue, QueueSpec[Work], Any], object]

WAYS: dict[str, tuple[int, Enqueue]] = {
    "plain": (1, lambda queue, spec, theirs: queue.enqueue(spec, Work(n=1), connection=theirs)),
    "own id": (1, lambda queue, spec, theirs: queue.enqueue(spec, NewJob(Work(n=1), id=uuid4()), connection=theirs)),
    "region": (
        1,
        lambda queue, spec, theirs: queue.enqueue(spec, NewJob(Work(n=1), region="local"), connection=theirs),
    ),
    "replace": (
        1,
        lambda queue, spec, theirs: queue.enqueue(
            spec, NewJob(Work(n=1), unique_key="u"), on_conflict="replace", connection=theirs
        ),
    ),
    "many": (
        300,
        lambda queue, spec, theirs: queue.enqueue_many(spec, [Work(n=n) for n in range(300)], connection=theirs),
    ),
}


def count(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


def refused(queue: SqlQueue, spec: QueueSpec[Work], theirs: Any) -> None:
    with pytest.raises(InvalidPayload):
        queue.enqueue_many(spec, [*(Work(n=n) for n in range(1_100)), {"n": "x"}], connection=theirs)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "AUTOCOMMIT"])
@pytest.mark.parametrize("way", WAYS)
def test_an_asynchronous_session_enqueues_through_run_sync(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, way: str, isolation: str
) -> None:
    jobs, enqueue = WAYS[way]
    committed = isolation == "AUTOCOMMIT"

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda inner: refused(queue, spec, inner))
            assert count(queue) == 0
            await session.run_sync(lambda inner: enqueue(queue, spec, inner))
            assert count(queue) == (jobs if committed else 0)
            await session.commit()
            assert count(queue) == jobs
        async with engine.connect() as connection:
            await connection.run_sync(lambda inner: refused(queue, spec, inner))
            await connection.rollback()
        assert count(queue) == jobs

    _run(url, work, isolation_level=isolation)


def test_the_messages_name_run_sync(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(engine: AsyncEngine) -> None:
        theirs: list[Any] = [AsyncSession(engine), AsyncConnection(engine)]
        for one in theirs:
            with pytest.raises(InvalidInput, match=rf"{type(one).__name__}; .* await it\.run_sync\(lambda"):
                queue.enqueue(spec, Work(n=1), connection=one)
            with pytest.raises(InvalidInput, match=rf"{type(one).__name__}; .* await it\.run_sync\(lambda"):
                await queue.aenqueue(spec, Work(n=1), connection=one)

    _run(url, work)


@pytest.mark.parametrize(
    "options", [{"stream_results": True}, {"yield_per": 10}], ids=lambda options: next(iter(options))
)
@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_streams_results_enqueues(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, way: str, options: dict[str, Any]
) -> None:
    jobs, enqueue = WAYS[way]
    with engine_of(url, execution_options=options) as engine, engine.connect() as connection:
        refused(queue, spec, connection)
        enqueue(queue, spec, connection)
        connection.execute(sa.text("SELECT 1")).all()
        assert count(queue) == 0
        connection.commit()
    assert count(queue) == jobs


def _run(url: str, work: Callable[[AsyncEngine], Any], **settings: Any) -> None:
    async def run() -> None:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool, **settings)
        try:
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(run())
