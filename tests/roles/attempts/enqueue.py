"""The verbs that enqueue jobs, as attempts of somebody with one role."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy as sa
from psycopg import AsyncConnection

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.model.ids import stable_id
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.queue.validation import values
from dagster_sqlqueue.spark import staged_jobs
from tests.roles.desk import B, Desk, O, P, verb
from tests.support import Work, rows


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
def enqueue_many_with_ids(queue: SqlQueue, desk: Desk) -> Any:
    moment = desk.owner.job(desk.dead()).created_at
    jobs = [NewJob(Work(n=n), id=stable_id(moment, f"{desk.name}/{n}"), unique_key=f"u{n}") for n in range(3)]
    desk.owner.enqueue_many(desk.spec, jobs[:2])
    desk.owner.complete(desk.owner.claim(desk.name, limit=1, worker="w"))
    done = queue.enqueue_many(desk.spec, jobs)
    assert (done.inserted, done.duplicates) == (1, 2)
    assert queue.enqueue_many(desk.spec, jobs, on_conflict="replace").duplicates == 3


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


@verb(P, O)
def stage_and_commit_a_write(queue: SqlQueue, desk: Desk) -> Any:
    write = uuid4()
    part = staged_jobs.stage(queue, write, [(values(desk.spec, NewJob(Work(n=1))), False, ["tag"])])
    assert staged_jobs.commit(queue, desk.name, write, [part], name="once").jobs == 1


@verb(P, O)
def stage_and_drop_a_write(queue: SqlQueue, desk: Desk) -> Any:
    write = uuid4()
    staged_jobs.stage(queue, write, [(values(desk.spec, NewJob(Work(n=1))), False, [])])
    assert staged_jobs.drop(queue, write) == 1


@verb(P, O, B)
def find_a_write(queue: SqlQueue, desk: Desk) -> Any:
    assert staged_jobs.written(queue, desk.name, "none") is None
