"""Steps of human work inside the caller's own transaction: rolled back means never taken."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DecisionRefused, InvalidInput, UnknownQueue
from dagster_sqlqueue.people import HumanWork, Stage
from dagster_sqlqueue.queue.selection import Selection
from tests.gate.patience import PATIENCE
from tests.people.support import enqueued, everything, handed_over
from tests.support import Work, caller, rows, until, value

Step = Callable[[HumanWork, list[UUID], Any], object]
STEPS: dict[str, Step] = {
    "hand over": lambda p, ids, c: p.hand_over("work", Selection(ids=ids[4:]), by="boss", reason="hard", connection=c),
    "take": lambda p, ids, c: p.take("anna", "work", connection=c),
    "assign": lambda p, ids, c: p.assign(ids[:2], "bert", by="boss", connection=c),
    "unassign": lambda p, ids, c: p.unassign(ids[1], by="boss", connection=c),
    "hold": lambda p, ids, c: p.hold(ids[0], by="boss", connection=c),
    "resume": lambda p, ids, c: p.resume(ids[3], by="boss", connection=c),
    "reschedule": lambda p, ids, c: p.reschedule(ids[0], timedelta(minutes=1), by="boss", connection=c),
    "submit": lambda p, ids, c: p.submit(ids[1], "anna", {"answer": 42}, connection=c),
    "approve": lambda p, ids, c: p.approve(ids[2], by="boss", connection=c),
    "reject": lambda p, ids, c: p.reject(ids[2], by="boss", reason="no", connection=c),
    "give back": lambda p, ids, c: p.give_back(ids[:2], by="boss", connection=c),
}


def prepared(people: HumanWork) -> list[UUID]:
    """A task that is open, one that is assigned, one in review, one on hold; and two jobs in the automatic line."""
    ids = handed_over(people, 4, review=True)
    people.assign(ids[1:3], "anna", by="boss")
    people.submit(ids[2], "anna", {"answer": 41})
    people.hold(ids[3], by="boss")
    return ids + enqueued(people, 2)


@pytest.mark.parametrize("name", list(STEPS))
def test_it_stands_or_falls_with_the_callers_transaction(people: HumanWork, theirs: Any, name: str) -> None:
    ids = prepared(people)
    before = everything(people)
    STEPS[name](people, ids, theirs)
    assert everything(people) == before
    theirs.rollback()
    assert everything(people) == before
    STEPS[name](people, ids, theirs)
    theirs.commit()
    after = everything(people)
    assert after != before
    written = rows(people.queue, "SELECT action FROM {s}.job_event ORDER BY at DESC LIMIT 1")
    assert written == [(name,)]


def test_a_job_is_peoples_from_the_moment_that_it_is_there(
    people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work], theirs: Any
) -> None:
    """Enqueued, handed over, done and approved with the row that it is about, in one transaction."""
    job = queue.enqueue(spec, NewJob(Work(n=1), ordering_key="k"), connection=theirs)
    assert job is not None
    people.hand_over("work", Selection(ids=[job]), by="boss", reason="hard", four_eyes=True, connection=theirs)
    (task,) = people.take("anna", "work", connection=theirs)
    assert task.id == job
    people.submit(job, "anna", {"answer": 42}, connection=theirs)
    with pytest.raises(DecisionRefused, match="it needs four eyes"):
        people.approve(job, by="anna", connection=theirs)
    (done,) = people.approve(job, by="bert", revision=3, connection=theirs)
    assert done.state.stage is Stage.DONE
    with pytest.raises(DecisionRefused, match="it ended as succeeded"):
        people.approve(job, by="bert", connection=theirs)
    assert value(queue, "SELECT count(*) FROM {s}.job_all") == 0
    theirs.commit()
    assert queue.job(job).state == "succeeded"
    assert [event.no for event in people.history(job)] == [1, 2, 3, 4]


def test_what_is_refused_leaves_the_callers_transaction_usable(people: HumanWork, theirs: Any) -> None:
    ids = prepared(people)
    people.assign(ids[0], "bert", by="boss", connection=theirs)
    with pytest.raises(DecisionRefused, match=r"it is open|it is assigned"):
        people.approve(ids[:2], by="boss", connection=theirs)
    with pytest.raises(UnknownQueue):
        people.take("anna", "nosuch", connection=theirs)
    with pytest.raises(InvalidInput, match="name the jobs: give the selection their ids"):
        people.hand_over("work", Selection(all=True), by="boss", reason="hard", connection=theirs)
    people.submit(ids[0], "bert", connection=theirs)
    theirs.commit()
    assert people.task(ids[0]).state.stage is Stage.IN_REVIEW
    assert people.task(ids[1]).state.assignee == "anna"


def test_in_autocommit_a_step_is_its_own(people: HumanWork, url: str) -> None:
    ids = prepared(people)
    with caller(url, autocommit=True) as connection:
        people.approve(ids[2], by="boss", connection=connection)
        assert people.queue.job(ids[2]).state == "succeeded"
        before = everything(people)
        with connection.transaction(force_rollback=True):
            people.submit(ids[1], "anna", connection=connection)
        assert everything(people) == before


def test_who_decides_meanwhile_waits_for_the_callers_end(people: HumanWork, queue: SqlQueue, url: str) -> None:
    ids = prepared(people)
    refused: list[str] = []

    def approve() -> None:
        try:
            HumanWork(queue).approve(ids[2], by="rosa")
        except DecisionRefused as error:
            refused.append(str(error))

    with caller(url) as connection:
        people.reject(ids[2], by="boss", reason="no", connection=connection)
        second = threading.Thread(target=approve)
        second.start()
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        until(lambda: value(queue, query, "%human_task%"), "the second one's wait for the lock")
        connection.commit()
        second.join(PATIENCE)
    assert len(refused) == 1
    assert queue.job(ids[2]).state == "held"
    assert people.task(ids[2]).state.assignee == "anna"


def test_a_consumer_hears_of_a_job_given_back_at_the_commit(
    people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    (job,) = handed_over(people, 1)
    consumer = Consumer(queue, spec, lambda job: None)
    with caller(url) as connection:
        people.give_back(job, by="boss", connection=connection)
        assert consumer.drain().succeeded == 0
        connection.commit()
    assert consumer.drain().succeeded == 1


def test_wrong_connections_are_named(people: HumanWork, url: str) -> None:
    ids = prepared(people)
    before = everything(people)
    wrong: Any = object()
    for step in STEPS.values():
        with pytest.raises(InvalidInput, match=r"connection is a object; give a psycopg.Connection"):
            step(people, ids, wrong)
    with caller(url, autocommit=True) as connection, connection.pipeline():
        with pytest.raises(InvalidInput, match="pipeline mode"):
            people.take("anna", "work", connection=connection)
        with pytest.raises(InvalidInput, match="pipeline mode"):
            people.submit(ids[1], "anna", connection=connection)
    awaited: Any = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)
    with pytest.raises(InvalidInput, match="give one that is not awaited"):
        people.take("anna", "work", connection=awaited)
    assert everything(people) == before


ENDING = ["hand over", "approve", "give back"]
"""What decides about the job as well as about its task."""


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("keyed", [{"ordered": True}, {"max_running_per_key": 1}], ids=["ordered", "limited"])
@pytest.mark.parametrize("name", ENDING)
def test_where_keys_take_turns_a_transaction_has_to_see_what_others_decide(
    people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work], url: str, keyed: dict[str, Any], name: str, level: str
) -> None:
    ids = prepared(people)
    queue.create_queue(replace(spec, **keyed))
    before = everything(people)
    with caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(
            InvalidInput, match=f"queue 'work' has keys that take turns, and this transaction is {level}"
        ):
            STEPS[name](people, ids, connection)
        connection.commit()
        assert everything(people) == before
        STEPS[name](people, ids, connection)
        connection.commit()
    assert everything(people) != before


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("name", list(STEPS))
def test_where_they_do_not_any_transaction_will_do(people: HumanWork, url: str, name: str, level: str) -> None:
    ids = prepared(people)
    before = everything(people)
    with caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        STEPS[name](people, ids, connection)
        connection.commit()
    assert everything(people) != before
