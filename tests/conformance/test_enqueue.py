"""Enqueues of every kind, and what the claims of each strategy make of them."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownQueue
from tests.conformance.conftest import Line, numbers
from tests.support import Work, caller

FUTURE = datetime.now(UTC) + timedelta(days=1)


async def asynchronously(url: str, line: Line, *, many: bool) -> None:
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        if many:
            await line.queue.aenqueue_many(line.spec, [Work(n=1)], connection=connection)
        else:
            await line.queue.aenqueue(line.spec, Work(n=1), connection=connection)


WAYS: dict[str, Callable[[Line], object]] = {
    "a model": lambda line: line.queue.enqueue(line.spec, Work(n=1)),
    "a mapping": lambda line: line.queue.enqueue(line.spec, {"n": 1}),
    "a job": lambda line: line.queue.enqueue(line.spec, NewJob(Work(n=1))),
    "many": lambda line: line.queue.enqueue_many(line.spec, [Work(n=1)]),
    "a generator": lambda line: line.queue.enqueue_many(line.spec, (Work(n=n) for n in [1])),
    "many, with ids": lambda line: line.queue.enqueue_many(line.spec, [NewJob(Work(n=1), id=uuid7())]),
    "one that replaces": lambda line: line.queue.enqueue(
        line.spec, NewJob(Work(n=1), unique_key="u"), on_conflict="replace"
    ),
    "many that replace": lambda line: line.queue.enqueue_many(
        line.spec, [NewJob(Work(n=1), unique_key="u")], on_conflict="replace"
    ),
    "many, of which one is bad": lambda line: line.queue.enqueue_many(
        line.spec, [{"n": "no number"}, {"n": 1}], on_bad_row="skip"
    ),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_put_in_is_taken_out(line: Line, way: str) -> None:
    WAYS[way](line)
    job = line.one()
    assert numbers([job]) == [1]
    line.queue.complete([job])
    assert line.states() == ["succeeded"]


@pytest.mark.parametrize("many", [False, True])
def test_asynchronous_connections(line: Line, any_server: str, many: bool) -> None:
    asyncio.run(asynchronously(any_server, line, many=many))
    assert numbers(line.take()) == [1]


def by_psycopg(url: str, enqueue: Callable[[Any], object], *, commit: bool) -> None:
    with caller(url) as connection:
        enqueue(connection)
        if commit:
            connection.commit()


def engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)


def by_sqlalchemy(url: str, enqueue: Callable[[Any], object], *, commit: bool) -> None:
    with engine(url).connect() as connection:
        enqueue(connection)
        if commit:
            connection.commit()


def by_session(url: str, enqueue: Callable[[Any], object], *, commit: bool) -> None:
    with Session(engine(url)) as session:
        enqueue(session)
        if commit:
            session.commit()


@pytest.mark.parametrize("join", [by_psycopg, by_sqlalchemy, by_session])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_in_the_caller_s_transaction(line: Line, any_server: str, join: Any, commit: bool) -> None:
    def enqueue(connection: Any) -> None:
        line.queue.enqueue(line.spec, Work(n=1), connection=connection)
        line.queue.enqueue_many(line.spec, [Work(n=2), Work(n=3)], connection=connection)
        assert line.take() == []

    join(any_server, enqueue, commit=commit)
    assert sorted(numbers(line.take())) == ([1, 2, 3] if commit else [])


def test_a_bad_row_among_many_is_named_and_nothing_is_enqueued(line: Line) -> None:
    def jobs() -> Iterator[dict[str, Any]]:
        yield from ({"n": n} for n in range(3_000))
        yield {"n": "no number"}

    with pytest.raises(InvalidPayload, match="row 3000"):
        line.queue.enqueue_many(line.spec, jobs())
    assert line.states() == []


def test_bad_rows_are_reported_when_they_are_to_be_skipped(line: Line) -> None:
    done = line.queue.enqueue_many(line.spec, [{"n": 1}, {"n": "x"}, {"n": 3}, {}], on_bad_row="skip")
    assert (done.inserted, [rejected.row for rejected in done.rejected]) == (2, [1, 3])
    assert sorted(numbers(line.take())) == [1, 3]


def test_a_unique_key_is_that_of_one_live_job(line: Line) -> None:
    (first,) = line.put(1, unique_key="u")
    assert line.queue.enqueue(line.spec, NewJob(Work(n=2), unique_key="u")) is None
    done = line.queue.enqueue_many(line.spec, [NewJob(Work(n=3), unique_key="u"), NewJob(Work(n=4), unique_key="v")])
    assert (done.inserted, done.duplicates) == (1, 1)
    jobs = line.take()
    assert sorted(numbers(jobs)) == [1, 4]
    assert line.queue.enqueue(line.spec, NewJob(Work(n=5), unique_key="u")) is None
    line.queue.complete(jobs)
    (second,) = line.put(6, unique_key="u")
    assert second != first
    assert numbers(line.take()) == [6]


def test_replacing_changes_what_waits_and_nothing_else(line: Line) -> None:
    (waiting,) = line.put(1, unique_key="u", run_at=FUTURE)
    job = NewJob(Work(n=2), unique_key="u", priority=5)
    assert line.queue.enqueue(line.spec, job, on_conflict="replace") == waiting
    taken = line.one()
    assert (taken.id, taken.priority, numbers([taken])) == (waiting, 5, [2])
    assert line.queue.enqueue(line.spec, NewJob(Work(n=3), unique_key="u"), on_conflict="replace") is None
    assert line.row(waiting).payload["n"] == 2
    line.queue.hold([(taken, "look")])
    assert line.queue.enqueue(line.spec, NewJob(Work(n=4), unique_key="u"), on_conflict="replace") is None
    assert line.row(waiting).state == "held"


@pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
def test_a_unique_key_that_is_held_until_the_claim(line: Line, on_conflict: Any) -> None:
    jobs = [NewJob(Work(n=n), unique_key="u", unique_until="claim") for n in range(4)]
    put = [line.queue.enqueue(line.spec, job, on_conflict=on_conflict) for job in jobs[:2]]
    assert put[1] == (None if on_conflict == "ignore" else put[0])
    running = line.one()
    put = [line.queue.enqueue(line.spec, job, on_conflict=on_conflict) for job in jobs[2:]]
    assert put[0] not in (None, running.id)
    assert put[1] == (None if on_conflict == "ignore" else put[0])
    line.queue.requeue([(running, Retry("again", after=0))])
    waiting = line.take() + line.take()
    assert sorted(numbers(waiting)) == ([0, 2] if on_conflict == "ignore" else [1, 3])
    line.queue.complete(waiting)
    assert line.states() == ["succeeded"] * 2


def test_a_batch_that_is_sent_again_lands_once(line: Line) -> None:
    jobs = [NewJob(Work(n=n), id=uuid7()) for n in range(6)]
    assert line.queue.enqueue_many(line.spec, jobs[:4]).inserted == 4
    line.queue.complete(line.take(2))
    again = line.queue.enqueue_many(line.spec, jobs)
    assert (again.inserted, again.duplicates) == (2, 4)
    line.queue.complete(line.take())
    assert line.states() == ["succeeded"] * 6


@pytest.mark.parametrize("run_at", [datetime(1, 1, 2, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)], ids=str)
def test_a_moment_in_the_far_past_is_now(line: Line, run_at: datetime) -> None:
    line.put(1, run_at=run_at)
    assert numbers(line.take()) == [1]


def test_a_moment_in_the_far_future_is_not_now(line: Line) -> None:
    line.put(1, run_at=datetime(9999, 12, 30, tzinfo=UTC))
    line.put(2)
    assert numbers(line.take()) == [2]


def test_jobs_of_a_region_go_to_its_buckets(line: Line) -> None:
    line.queue.set_region(line.name, "south", [1, 3])
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), region="south") for n in range(20)])
    line.put(99, region="south")
    assert {job.bucket for job in line.take()} == {1, 3}
    with pytest.raises(InvalidInput, match="region"):
        line.queue.enqueue(line.spec, NewJob(Work(n=1), region="nowhere"))


BAD_JOBS: dict[str, NewJob[Work]] = {
    "a NUL": NewJob(Work(n=1, note="a\x00b")),
    "an unpaired surrogate": NewJob(Work(n=1, note="\ud800")),
    "a payload that is too large": NewJob(Work(n=1, note="x" * 2_000_000)),
    "a field that does not fit": NewJob({"n": "seven"}),
    "a field that is missing": NewJob({}),
    "a time without a zone": NewJob(Work(n=1), run_at=datetime(2030, 1, 1)),
    "a priority of ten": NewJob(Work(n=1), priority=10),
    "a negative priority": NewJob(Work(n=1), priority=-1),
    "no attempt": NewJob(Work(n=1), max_attempts=0),
    "no time": NewJob(Work(n=1), timeout_seconds=0),
    "a key without a character": NewJob(Work(n=1), ordering_key=""),
    "a key that is held for ever": NewJob(Work(n=1), unique_key="u", unique_until="ever"),  # type: ignore[arg-type]
    "no key, held until the claim": NewJob(Work(n=1), unique_until="claim"),
    "a key with a NUL": NewJob(Work(n=1), unique_key="\x00"),
    "an empty tag": NewJob(Work(n=1), tags=[""]),
    "tags that are a text": NewJob(Work(n=1), tags="abc"),
    "an id that is none": NewJob(Work(n=1), id="x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("bad", list(BAD_JOBS))
def test_a_job_that_makes_no_sense_is_refused(line: Line, bad: str) -> None:
    with pytest.raises(InvalidInput):
        line.queue.enqueue(line.spec, BAD_JOBS[bad])
    with pytest.raises(InvalidInput, match="row 1"):
        line.queue.enqueue_many(line.spec, [NewJob(Work(n=0)), BAD_JOBS[bad]])
    assert line.states() == []


def test_a_queue_that_is_not_there_is_an_error(queues: SqlQueue) -> None:
    for enqueue in (queues.enqueue, lambda spec, job: queues.enqueue_many(spec, [job])):
        with pytest.raises(UnknownQueue, match="nowhere"):
            enqueue(QueueSpec("nowhere", Work), Work(n=1))
