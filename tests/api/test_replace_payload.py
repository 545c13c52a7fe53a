"""The SQL function replace_payload: of jobs in every state, as the verb of Python, and what it refuses."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import Backoff, NewJob, Selection, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.api.conftest import SPEC, Caller
from tests.support import Work, claim, numbers, rows, value
from tests.support.armed import armed, wakes

CALL = "SELECT job_id, outcome, because FROM {v1}.replace_payload"


def replaced(sqlc: Caller, job: UUID, n: int = 77, more: str = "") -> tuple[Any, ...]:
    (row,) = sqlc.rows(f"{CALL}('work', %s, jsonb_build_object('n', %s::int){more})", job, n)
    return row


def whole(line: SqlQueue, job: UUID) -> dict[str, Any]:
    """Every column of a live job but its payload."""
    return dict(value(line, "SELECT to_jsonb(j) - 'payload' FROM {s}.job AS j WHERE id = %s", job))


def everything(line: SqlQueue) -> object:
    return value(line, "SELECT jsonb_agg(to_jsonb(j) ORDER BY j.id, j.finished_at) FROM {s}.job_all AS j")


def kill(line: SqlQueue, how: ArchiveState = ArchiveState.FAILED) -> None:
    line.finish([Ending(one, how, error="no") for one in claim(line)])


@pytest.mark.parametrize("ordered", [False, True])
def test_a_queued_job_keeps_all_but_its_payload(line: SqlQueue, sqlc: Caller, ordered: bool) -> None:
    line.create_queue(replace(SPEC, ordered=ordered, backoff=Backoff.fixed(3_600)))
    job = sqlc.enqueue(1, "ordering_key => 'k', unique_key => 'u', tags => '{{t}}', priority => 3")
    ((_, lease, _),) = sqlc.claim()
    assert sqlc.value("SELECT {v1}.fail(%s, %s, 'no')", job, lease) == "queued"
    before = whole(line, job)
    for n, more in ((7, ""), (8, ", release => true")):
        assert replaced(sqlc, job, n, more) == (job, "changed", None)
        assert whole(line, job) == before
        assert json.loads(line.job(job).payload) == {"n": n}


def test_a_held_job_stays_held_or_is_released(line: SqlQueue, sqlc: Caller) -> None:
    job = sqlc.enqueue(1)
    line.hold_queued("work", Selection(ids=[job]), "look")
    before = whole(line, job)
    assert replaced(sqlc, job) == (job, "changed", None)
    assert whole(line, job) == before
    assert sqlc.claim() == []
    assert replaced(sqlc, job, 78, ", release => true") == (job, "changed", None)
    assert [n for _, _, n in sqlc.claim()] == [78]


@pytest.mark.parametrize("how", [ArchiveState.FAILED, ArchiveState.CANCELLED])
def test_an_ended_job_is_redriven_with_it(line: SqlQueue, sqlc: Caller, how: ArchiveState) -> None:
    line.create_queue(replace(SPEC, ordered=True))
    job = sqlc.enqueue(0, "ordering_key => 'k'")
    sqlc.enqueue(1, "ordering_key => 'k'")
    kill(line, how)
    assert replaced(sqlc, job) == (job, "changed", None)
    assert value(line, "SELECT count(*) FROM {s}.job_archive") == 0
    # In its old place, before the other of its key.
    (again,) = claim(line)
    assert (numbers([again]), again.lease_no, again.attempt) == ([77], 2, 1)


def test_what_is_left_and_why(line: SqlQueue, sqlc: Caller, any_server: str) -> None:
    line.create_queue(replace(SPEC, name="other"))
    foreign = line.enqueue(replace(SPEC, name="other"), NewJob(Work(n=1)))
    assert foreign
    nobody = uuid4()
    job = sqlc.enqueue(1)
    ((_, lease, _),) = sqlc.claim()
    before = everything(line)
    for id, because in {
        job: "it is running: its consumer has the payload that it had",
        foreign: "it belongs to queue 'other'",
        nobody: "there is no such job",
    }.items():
        found = replaced(sqlc, id, more=", release => true")
        assert found[:2] == (id, "skipped")
        assert found[2].startswith(because)
    assert everything(line) == before
    assert sqlc.value("SELECT {v1}.complete(%s, %s)", job, lease) == "succeeded"
    assert replaced(sqlc, job) == (job, "skipped", "it ended as succeeded")
    locked = sqlc.enqueue(2)
    with psycopg.connect(any_server) as other, other.transaction():
        Caller(other, sqlc.schema).rows("SELECT id FROM {s}.job WHERE id = %s FOR UPDATE", locked)
        assert "another transaction has it locked" in replaced(sqlc, locked)[2]


def test_a_dead_letter_that_a_live_job_is_in_the_way_of_stays_as_it_was(line: SqlQueue, sqlc: Caller) -> None:
    job = sqlc.enqueue(1, "unique_key => 'u'")
    kill(line)
    sqlc.enqueue(2, "unique_key => 'u'")
    before = everything(line)
    assert replaced(sqlc, job) == (job, "skipped", "a live job of the queue has the same id or unique key")
    assert everything(line) == before


def test_the_latest_end_of_a_job_counts(line: SqlQueue, sqlc: Caller) -> None:
    job = sqlc.enqueue(1)
    kill(line)
    before = value(line, "SELECT to_jsonb(a) FROM {s}.job_archive AS a")
    sqlc.rows("SELECT * FROM {v1}.retry('work', ARRAY[%s])", job)
    line.complete(claim(line))
    rows(
        line,
        "INSERT INTO {s}.job_archive SELECT (jsonb_populate_record(NULL::{s}.job_archive, %s::jsonb)).*",
        json.dumps(before),
    )
    assert replaced(sqlc, job) == (job, "skipped", "it ended as succeeded")


def test_one_that_becomes_due_wakes_an_idle_consumer(line: SqlQueue, sqlc: Caller, any_server: str) -> None:
    job = sqlc.enqueue(1)
    line.hold_queued("work", Selection(ids=[job]), "look")
    with armed(line, any_server, 2) as sessions:
        replaced(sqlc, job)
        assert wakes(sessions) == [0, 0]
        replaced(sqlc, job, more=", release => true")
        assert wakes(sessions) == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'work', NULL, '{{}}'", "id is NULL; give the id of a job"),
        ("'work', %s, NULL", "the payload is NULL"),
        ("'work', %s, '7'", "the payload is a JSON number; give an object, or an array"),
        (
            "'work', %s, jsonb_build_object('x', repeat('x', 1000000))",
            "the payload has 1000009 bytes, the limit is 1,000,000",
        ),
        ("'work', %s, jsonb_build_object('x', CAST('1' || repeat('0', 4300) AS numeric))", "more than 4,300 digits"),
        ("'work', %s, '{{}}', NULL", "release is NULL; give true to release the job if it is held, or false"),
    ],
    ids=["id", "no payload", "a number", "too large", "digits", "release"],
)
def test_a_replacement_that_is_not_usable(line: SqlQueue, sqlc: Caller, arguments: str, said: str) -> None:
    """Of jobs in every state, and with nothing changed."""
    dead = sqlc.enqueue(0)
    kill(line)
    held = sqlc.enqueue(1)
    line.hold_queued("work", Selection(ids=[held]), "look")
    before = everything(line)
    for job in (dead, held):
        assert said in sqlc.refused("SQ003", f"{CALL}({arguments})", *[job] * arguments.count("%s"))
    assert everything(line) == before


def test_a_queue_that_is_not_there(sqlc: Caller) -> None:
    assert "there is no queue 'nope'" in sqlc.refused("SQ002", f"{CALL}('nope', %s, '{{{{}}}}')", uuid4())


def test_where_keys_take_turns_it_needs_to_see_others(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, ordered=True))
    job = sqlc.enqueue(1, "ordering_key => 'k'")
    sqlc.connection.autocommit = False
    sqlc.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert "this transaction is REPEATABLE READ" in sqlc.refused("SQ004", f"{CALL}('work', %s, '{{{{}}}}')", job)
    sqlc.connection.rollback()
