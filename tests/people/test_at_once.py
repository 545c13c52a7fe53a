"""A job that is handed over again, at the moment at which what was left of its earlier task is ended."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.selection import Selection
from tests.people.support import enqueued, handed_over
from tests.support import until, value

DOOR = os.getpid()
"""The advisory lock that the end of tasks waits for once it has its snapshot."""
EVENTS = "AS e WHERE"
PAGE = "WHERE t.queue = %(queue)s AND"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
NIL = UUID(int=0)


@pytest.fixture
def job(people: HumanWork, queue: SqlQueue) -> UUID:
    """One that was released past its task, which is still there."""
    (job,) = handed_over(people, 1)
    queue.release_held("work", Selection(ids=[job]))
    return job


@pytest.fixture
def own(url: str) -> "Iterator[psycopg.Connection[Any]]":
    with psycopg.connect(url) as connection:
        yield connection


def again(people: HumanWork, job: UUID) -> list[UUID]:
    return people.hand_over("work", Selection(ids=[job]), by="boss", reason="too hard", four_eyes=True).changed


def wait_at(monkeypatch: pytest.MonkeyPatch, statement: str, words: str) -> None:
    """Let a statement wait for the door, once it has its snapshot, before what follows these words of it."""
    load = statements.load

    def waiting(name: str, *given: str) -> str:
        text = load(name, *given)
        if name != statement:
            return text
        assert words in text
        return text.replace(words, f"{words} (SELECT pg_advisory_xact_lock_shared({DOOR}) IS NOT NULL) AND")

    monkeypatch.setattr(statements, "load", waiting)


def test_a_task_that_was_opened_anew_is_not_withdrawn(
    people: HumanWork,
    queue: SqlQueue,
    job: UUID,
    own: "psycopg.Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_at(monkeypatch, "tasks_withdraw", PAGE)
    own.execute("SELECT pg_advisory_xact_lock(%s)", (DOOR,))
    with ThreadPoolExecutor(1) as pool:
        adopted = pool.submit(people.adopt, "work", by="clerk")
        until(lambda: value(queue, WAITING) == 1, "the wait for the other transaction")
        assert again(people, job) == [job]
        own.commit()
        assert adopted.result() == []
    assert people.task(job).state.four_eyes


def test_a_job_is_handed_over_while_its_earlier_task_is_withdrawn(
    people: HumanWork, queue: SqlQueue, job: UUID, own: "psycopg.Connection[Any]"
) -> None:
    withdraw = statements.load("tasks_withdraw", queue.database.schema)
    own.execute(withdraw, {"queue": "work", "actor": "clerk", "after_id": NIL, "limit": 10})  # type: ignore[call-overload]
    with ThreadPoolExecutor(1) as pool:
        handed = pool.submit(again, people, job)
        until(lambda: value(queue, WAITING) == 1, "the wait for the other transaction")
        own.commit()
        assert handed.result() == [job]
    assert people.task(job).state.revision == 3
    assert [str(event.action) for event in people.history(job)] == ["hand over", "withdraw", "hand over"]


def test_a_job_is_adopted_and_given_back_while_it_is_adopted(
    people: HumanWork, queue: SqlQueue, own: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = enqueued(people, 1)
    queue.hold_queued("work", Selection(ids=[job]), "odd")
    own.execute("SELECT pg_advisory_xact_lock(%s)", (DOOR,))
    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patched:
            wait_at(patched, "task_open", EVENTS)
            adopted = pool.submit(people.adopt, "work", by="clerk")
            until(lambda: value(queue, WAITING) == 1, "the wait for the other transaction")
        for other in people.adopt("work", by="boss"):
            people.assign(other, "ada", by="boss")
            people.give_back(other, by="ada", reason="easy")
        own.commit()
        assert adopted.result() == [job]
    assert people.task(job).state.revision == 1
    assert [(event.no, str(event.action)) for event in people.history(job)] == [(1, "adopt")]
