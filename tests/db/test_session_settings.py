"""How the server plans the library's statements: by settings of its sessions, and behind a pooler of its transactions."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dagster_sqlqueue import Consumer, Done, Job, Mode, NewJob, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Enqueued
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.head_hints import HeadHints
from dagster_sqlqueue.topics import Topics
from tests.support import Work, caller, claim, rows, states, value
from tests.support.pooler import pooler

OURS = ["force_generic_plan", "off", "off"]
NAMES = ("plan_cache_mode", "enable_seqscan", "jit")


@pytest.fixture
def pooled(queue: SqlQueue, url: str) -> Iterator[SqlQueue]:
    """The same queue, with one connection through a pooler."""
    with pooler(url) as through, SqlQueue(through, schema=queue.database.schema, pool_size=1) as other:
        yield other


@pytest.fixture(params=["direct", "pooled"])
def either(request: pytest.FixtureRequest, queue: SqlQueue) -> SqlQueue:
    found: SqlQueue = queue if request.param == "direct" else request.getfixturevalue("pooled")
    return found


@pytest.fixture
def theirs(url: str) -> list[str]:
    """What is set where nothing is said."""
    with psycopg.connect(url) as connection:
        return shown(connection)


def shown(connection: "psycopg.Connection[Any]") -> list[str]:
    query = f"SELECT {', '.join(f'current_setting({name!r})' for name in NAMES)}"
    (found,) = connection.execute(query.encode()).fetchall()
    return list(found)


def test_a_session_behind_a_pooler_is_not_set(queue: SqlQueue, pooled: SqlQueue, theirs: list[str]) -> None:
    with queue.database.connection() as connection:
        assert shown(connection) == OURS
    with pooled.database.connection() as connection:
        assert shown(connection) == theirs


def test_every_transaction_of_ours_is_planned_alike(either: SqlQueue) -> None:
    with either.database.transaction() as transaction:
        assert shown(transaction.connection) == OURS
    assert either.database.transact(lambda transaction: shown(transaction.connection)) == OURS
    assert either.database.transact(lambda transaction: shown(transaction.connection), idling=True) == OURS


def test_so_is_the_one_that_follows_in_the_same_round_trip(either: SqlQueue, spec: QueueSpec[Work]) -> None:
    either.enqueue_many(spec, [Work(n=n) for n in range(4)])
    either.settings("work")

    def two(transaction: Transaction) -> list[str]:
        hints = HeadHints()
        jobs = either.leases.lock_due(transaction, ClaimRequest("work", limit=2, hints=hints))
        endings = Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)
        assert (
            len(
                either.leases.finish_and_lock(
                    transaction, endings, ClaimRequest("work", limit=2, worker="w", hints=hints)
                )
            )
            == 2
        )
        return shown(transaction.connection)

    assert either.database.transact(two) == OURS
    assert len(states(either)) == 4


@pytest.fixture
def single(queue: SqlQueue, url: str) -> Iterator[SqlQueue]:
    """The same queue, with one connection: what is prepared is all in its session."""
    with SqlQueue(url, schema=queue.database.schema, pool_size=1) as other:
        yield other


def test_and_what_is_committed_by_itself(single: SqlQueue, spec: QueueSpec[Work]) -> None:
    """A plan of its own for each run would be counted."""
    queue = single
    queue.enqueue_many(spec, [Work(n=n) for n in range(100)])
    with queue.database.connection() as connection:
        connection.execute("DISCARD PLANS")
    jobs = [job for _ in range(10) for job in claim(queue, 1)]
    for job in jobs:
        queue.heartbeat([job], lease_seconds=300)
    for job in jobs:
        queue.leases.finish_and_claim(
            Endings.of([Ending(job, ArchiveState.SUCCEEDED)]), ClaimRequest("work", limit=1, worker="w")
        )
    query = (
        "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
        " WHERE strpos(statement, %s) > 0 AND statement ~ 'claimed_by = |succeed_leased|available_at = '"
    )
    ((generic, custom),) = rows(queue, query, queue.database.schema)
    assert generic >= 15
    assert custom == 0


def test_nothing_is_prepared_behind_a_pooler(pooled: SqlQueue, spec: QueueSpec[Work]) -> None:
    pooled.enqueue_many(spec, [Work(n=n) for n in range(20)])
    for job in [job for _ in range(10) for job in claim(pooled, 1)]:
        pooled.leases.finish_and_claim(
            Endings.of([Ending(job, ArchiveState.SUCCEEDED)]), ClaimRequest("work", limit=1, worker="w")
        )
    assert rows(pooled, "SELECT statement FROM pg_prepared_statements") == []


def test_a_null_in_an_array_is_no_word(either: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with caller(url, autocommit=True) as admin:
        admin.execute("ALTER ROLE CURRENT_USER SET array_nulls = off")
        try:
            with SqlQueue(either.database.url, schema=either.database.schema) as other:
                jobs = [NewJob(Work(n=n), max_attempts=3) for n in range(3)]
                assert other.enqueue_many(spec, jobs) == Enqueued(3, 0)
                other.enqueue_many(spec, [Work(n=3), Work(n=4)])
        finally:
            admin.execute("ALTER ROLE CURRENT_USER RESET array_nulls")
    assert rows(either, "SELECT DISTINCT unique_key, ordering_key FROM {s}.job") == [(None, None)]
    assert value(either, "SELECT count(*) FROM {s}.job") == 5


@pytest.mark.parametrize("through", ["psycopg", "SQLAlchemy", "awaited"])
def test_nor_on_a_connection_of_the_caller(queue: SqlQueue, spec: QueueSpec[Work], url: str, through: str) -> None:
    setting = "-c array_nulls=off"
    jobs = [NewJob(Work(n=n), unique_key=str(n), ordering_key="k" if n == 1 else None) for n in range(3)]
    followers, topics = Followers(queue), Topics(queue)
    topics.subscribe("news", "all", "work")

    def send(connection: Any) -> None:
        queue.enqueue_many(spec, jobs[:2], connection=connection)
        assert queue.enqueue_many(spec, jobs, on_conflict="replace", connection=connection) == Enqueued(1, 0, 2)
        followers.enqueue_many(spec, [Work(n=3)], callbacks=Callback("work"), connection=connection)
        topics.publish_many("news", [{"n": 4}], connection=connection)
        connection.commit()

    async def asend() -> None:
        async with await psycopg.AsyncConnection.connect(url, options=setting) as connection:
            await queue.aenqueue_many(spec, jobs[:2], connection=connection)
            await queue.aenqueue_many(spec, jobs, on_conflict="replace", connection=connection)
            await followers.aenqueue_many(spec, [Work(n=3)], callbacks=Callback("work"), connection=connection)
            await topics.apublish_many("news", [{"n": 4}], connection=connection)

    if through == "awaited":
        asyncio.run(asend())
    elif through == "psycopg":
        with caller(url, options=setting) as connection:
            send(connection)
    else:
        engine = sa.create_engine(
            url.replace("postgresql:", "postgresql+psycopg:"), connect_args={"options": setting}, poolclass=sa.NullPool
        )
        with engine.connect() as pooled:
            send(pooled)
    columns = "unique_key, ordering_key, region, timeout_seconds, backoff, tags"
    found = rows(queue, f"SELECT {columns} FROM {{s}}.job ORDER BY unique_key, ordering_key")
    nothing = ("local", None, None, [])
    assert found == [("0", None, *nothing), ("1", "k", *nothing), ("2", None, *nothing), *[(None, None, *nothing)] * 2]
    assert rows(queue, "SELECT ordering_key, context, group_id FROM {s}.follower") == [(None, None, None)]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_consumer_works_behind_a_pooler(pooled: SqlQueue, spec: QueueSpec[Work], mode: Mode) -> None:
    pooled.enqueue_many(spec, [Work(n=n) for n in range(50)])
    tried: set[int] = set()

    def handler(job: Job[Work]) -> Any:
        if job.payload.n % 7 == 0 and job.payload.n not in tried:
            tried.add(job.payload.n)
            return Retry("once more")
        return Done({"n": job.payload.n})

    Consumer(pooled, spec, handler, batch_size=8, mode=mode).drain()
    assert set(states(pooled).values()) == {"succeeded"}


def test_a_lent_connection_is_planned_as_the_server_is_set(
    either: SqlQueue, spec: QueueSpec[Work], theirs: list[str]
) -> None:
    with either.database.transaction() as transaction:
        assert shown(transaction.lend()) == theirs
        transaction.take_back()
        assert shown(transaction.connection) == OURS
    either.enqueue(spec, Work(n=1))
    Consumer(either, spec, lambda job: Done(shown(job.connection)), mode=Mode.TRANSACTIONAL).drain()
    assert rows(either, "SELECT result FROM {s}.job_archive") == [(theirs,)]
