"""Verbs inside of transactions that see the database as it was when they began: refused where jobs of a key take turns."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Retry, Snooze
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.job_admin import Completed
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, caller, rows, states
from tests.support.decisions import ORDERED, PLAIN, finish_all, put, take

LIMITED = replace(PLAIN, max_running_per_key=1)
KEYED = pytest.mark.parametrize("spec", [ORDERED, LIMITED], ids=["ordered", "limited"])
STRICT = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
NEVER = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Head:
    """The first job of a key, as it was claimed, with two others behind it."""

    queue: SqlQueue
    spec: QueueSpec[Work]
    job: ClaimedJob

    @property
    def selection(self) -> Selection:
        return Selection(ids=[self.job.id])

    @property
    def put_off(self) -> NewJob[Work]:
        return NewJob(Work(n=0), unique_key="0", ordering_key="k", run_at=NEVER)

    def executor(self, connection: Any) -> Any:
        """The caller's transaction, as the verbs of a consumer with a lease take it."""
        return self.queue.database.within(connection)


Verb = Callable[[Head, Any], object]
UNDER_LEASE: dict[str, Verb] = {
    "finish": lambda head, c: head.queue.finish([Ending(head.job, ArchiveState.SUCCEEDED)], executor=head.executor(c)),
    "finish with a result": lambda head, c: head.queue.finish(
        [Ending(head.job, ArchiveState.FAILED, {"n": 1})], executor=head.executor(c)
    ),
    "complete": lambda head, c: head.queue.complete([head.job], executor=head.executor(c)),
    "requeue": lambda head, c: head.queue.requeue([(head.job, Retry("no", after=0))], executor=head.executor(c)),
    "hold": lambda head, c: head.queue.hold([(head.job, "look")], executor=head.executor(c)),
}
OF_WAITING: dict[str, Verb] = {
    "hold_queued": lambda head, c: head.queue.hold_queued("work", head.selection, "look", connection=c),
    "replace_payload": lambda head, c: head.queue.replace_payload(head.spec, head.job.id, Work(n=7), connection=c),
    "enqueue": lambda head, c: head.queue.enqueue(head.spec, head.put_off, on_conflict="replace", connection=c),
    "enqueue_many": lambda head, c: head.queue.enqueue_many(
        head.spec, [head.put_off], on_conflict="replace", connection=c
    ),
}
OF_HELD: dict[str, Verb] = {
    "release_held": lambda head, c: head.queue.release_held("work", head.selection, connection=c),
    "replace_payload and release": lambda head, c: head.queue.replace_payload(
        head.spec, head.job.id, Work(n=7), release=True, connection=c
    ),
    "complete_held": lambda head, c: head.queue.complete_held("work", [Completed(head.job.id, "me")], connection=c),
}
VERBS = {**UNDER_LEASE, **OF_WAITING, **OF_HELD}


def prepared(queue: SqlQueue, spec: QueueSpec[Work], verb: str) -> Head:
    """A head in the state that the verb is for; in a keyed queue the others wait for it."""
    put(queue, spec, 0)
    for n in range(3):
        assert queue.enqueue(spec, NewJob(Work(n=n), unique_key=str(n), ordering_key="k"))
    head = Head(queue, spec, take(queue, 1)[0])
    if spec is not PLAIN:
        assert take(queue) == []
    if verb in OF_WAITING:
        queue.requeue([(head.job, Snooze(0))])
    elif verb in OF_HELD:
        queue.hold([(head.job, "look")])
    return head


def everything(queue: SqlQueue) -> list[list[tuple[Any, ...]]]:
    tables = ("job", "job_archive", "job_replaced", "stale_write")
    return [rows(queue, f"SELECT t::text FROM {{s}}.{table} AS t ORDER BY 1") for table in tables]


@pytest.fixture
def theirs(url: str) -> Iterator["psycopg.Connection[Any]"]:
    with caller(url) as connection:
        yield connection


@STRICT
@KEYED
@pytest.mark.parametrize("verb", list(VERBS))
def test_what_lets_in_the_next_of_a_key_is_refused_and_nothing_is_changed(
    queue: SqlQueue, theirs: "psycopg.Connection[Any]", spec: QueueSpec[Work], verb: str, level: str
) -> None:
    head = prepared(queue, spec, verb)
    before = everything(queue)
    theirs.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    with pytest.raises(InvalidInput, match=f"queue 'work' has keys that take turns, and this transaction is {level}"):
        VERBS[verb](head, theirs)
    theirs.commit()
    assert everything(queue) == before
    assert VERBS[verb](head, theirs) is not False
    theirs.commit()
    assert everything(queue) != before


@STRICT
@pytest.mark.parametrize("verb", list(VERBS))
def test_without_turns_it_is_done(queue: SqlQueue, theirs: "psycopg.Connection[Any]", verb: str, level: str) -> None:
    head = prepared(queue, PLAIN, verb)
    before = everything(queue)
    theirs.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    VERBS[verb](head, theirs)
    theirs.commit()
    assert everything(queue) != before


@STRICT
@pytest.mark.parametrize("verb", list(UNDER_LEASE))
def test_a_job_that_was_given_its_place_since_its_claim_is_left_as_it_is(
    queue: SqlQueue, theirs: "psycopg.Connection[Any]", verb: str, level: str
) -> None:
    head = prepared(queue, PLAIN, verb)
    queue.create_queue(ORDERED)
    assert take(queue) == []
    before = everything(queue)
    theirs.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    with pytest.raises(InvalidInput, match=f"this transaction is {level}"):
        VERBS[verb](head, theirs)
    theirs.commit()
    assert everything(queue) == before
    queue.complete([head.job])
    assert finish_all(queue) == [1, 2]


@KEYED
@pytest.mark.parametrize("verb", ["complete_held", "finish", "hold_queued"])
@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemys_transactions_are_looked_at_too(
    queue: SqlQueue, url: str, spec: QueueSpec[Work], verb: str, kind: str
) -> None:
    head = prepared(queue, spec, verb)
    before = everything(queue)
    made = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="REPEATABLE READ")
    with made.connect() as connection, Session(bind=connection) as session:
        with pytest.raises(InvalidInput, match="this transaction is REPEATABLE READ"):
            VERBS[verb](head, connection if kind == "connection" else session)
        connection.commit()
    made.dispose()
    assert everything(queue) == before


@STRICT
@KEYED
def test_awaited_connections_are_looked_at_too(queue: SqlQueue, url: str, spec: QueueSpec[Work], level: str) -> None:
    head = prepared(queue, spec, "enqueue")
    before = everything(queue)

    async def replaced() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            for put_again in (
                queue.aenqueue(spec, head.put_off, connection=connection, on_conflict="replace"),
                queue.aenqueue_many(spec, [head.put_off], connection=connection, on_conflict="replace"),
            ):
                await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
                with pytest.raises(InvalidInput, match=f"this transaction is {level}"):
                    await put_again
                await connection.commit()

    asyncio.run(replaced())
    assert everything(queue) == before


@KEYED
def test_what_a_refused_transaction_would_have_left_behind(
    queue: SqlQueue, theirs: "psycopg.Connection[Any]", spec: QueueSpec[Work]
) -> None:
    """Jobs that were set aside behind the head after the transaction began, which it would not have seen."""
    for n in range(3):
        queue.create_queue(spec)
        queue.enqueue(spec, NewJob(Work(n=n), ordering_key="k"))
    (head,) = take(queue, 1)
    theirs.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    theirs.execute("SELECT 1")
    assert take(queue) == []
    with pytest.raises(InvalidInput):
        queue.complete([head], executor=queue.database.within(theirs))
    theirs.commit()
    queue.complete([head])
    assert finish_all(queue) == [1, 2]
    assert set(states(queue).values()) == {"succeeded"}
