"""Replacing the payload of a job: of a queued, held or ended one; what is left as it is, and why; also beside consumers."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field

from dagster_sqlqueue import Backoff, Consumer, Job, NewJob, QueueSpec, Reject, Sensitive, SqlQueue, versioned
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, LeaseLost, UnknownQueue, UnknownVersion
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.outcome import Retry
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.selection import Decided
from tests.support import Work, numbers, rows, value
from tests.support.armed import armed, wakes
from tests.support.decisions import (
    LATER,
    NEW,
    ORDERED,
    PLAIN,
    STORED,
    TWO_A_KEY,
    finish_all,
    ids,
    kill,
    put,
    stored_payload,
    take,
    unchanged,
)


def whole(queue: SqlQueue, job: UUID) -> dict[str, Any]:
    """Every column of a live job but its payload."""
    return dict(value(queue, "SELECT to_jsonb(j) - 'payload' FROM {s}.job AS j WHERE id = %s", job))


# Live jobs


@pytest.mark.parametrize("spec", [PLAIN, ORDERED, TWO_A_KEY], ids=["plain", "ordered", "two a key"])
def test_a_queued_job_keeps_all_but_its_payload(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """Also the attempt that it has spent, and the moment after its backoff: nothing was enqueued anew."""
    spec = replace(spec, backoff=Backoff.fixed(3_600))
    (job,) = put(queue, spec, 1, unique_key="u", ordering_key="k", tags=["t"], priority=3, timeout_seconds=9.0)
    queue.requeue([(take(queue)[0], Retry("no"))])
    before = whole(queue, job)
    assert (before["state"], before["attempt"], before["error"]) == ("queued", 1, "no")
    for n, release in ((100, False), (101, True)):
        assert queue.replace_payload(spec, job, Work(n=n), release=release) == Decided([job])
        assert whole(queue, job) == before
        assert stored_payload(queue, job) == {"n": n, "note": ""}
    assert queue.enqueue(spec, NewJob(Work(n=2), unique_key="u")) is None


def test_a_job_for_later_is_for_later_still(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1, run_at=LATER)
    assert queue.replace_payload(PLAIN, job, NEW, release=True).changed == [job]
    assert queue.job(job).available_at == LATER
    assert take(queue) == []


def test_one_that_waits_for_its_turn_waits_on(queue: SqlQueue) -> None:
    first, second = put(queue, ORDERED, 2, ordering_key="k")
    (running,) = take(queue)
    assert take(queue) == []
    before = whole(queue, second)
    assert before["available_at"] == "infinity"
    assert queue.replace_payload(ORDERED, second, NEW, release=True).changed == [second]
    assert whole(queue, second) == before
    queue.complete([running])
    assert numbers(take(queue)) == [77]
    assert running.id == first


def test_a_request_to_cancel_stays(queue: SqlQueue) -> None:
    spec = replace(PLAIN, backoff=Backoff.fixed(3_600))
    (job,) = put(queue, spec, 1)
    (running,) = take(queue)
    queue.cancel("work", ids(job))
    queue.requeue([(running, Retry("no"))])
    assert queue.replace_payload(spec, job, NEW).changed == [job]
    assert take(queue) == []
    assert (queue.job(job).state, stored_payload(queue, job)) == ("cancelled", STORED)


def test_a_held_job_stays_held_or_is_released(queue: SqlQueue) -> None:
    spec = replace(ORDERED, max_attempts=3)
    job, other = put(queue, spec, 2, ordering_key="k")
    (running,) = take(queue)
    queue.cancel("work", ids(job))
    queue.hold([(running, "look")])
    before = whole(queue, job)
    assert before["cancel_requested_at"] is not None
    assert queue.replace_payload(spec, job, NEW).changed == [job]
    assert whole(queue, job) == before
    assert stored_payload(queue, job) == STORED
    assert take(queue) == []
    assert queue.replace_payload(spec, str(job), {"n": 78}, release=True).changed == [job]
    row = queue.job(job)
    assert (row.state, row.attempt, row.error, row.cancel_requested_at) == ("queued", 0, "look", None)
    assert row.available_at is not None
    assert row.available_at <= datetime.now(UTC)
    assert finish_all(queue) == [78, 1]
    assert queue.job(other).state == "succeeded"


def test_a_running_job_is_left_to_its_consumer(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    (running,) = take(queue)
    with unchanged(queue):
        decided = queue.replace_payload(PLAIN, job, NEW, release=True)
    assert decided.changed == []
    assert decided.skipped == {
        job: "it is running: its consumer has the payload that it had; replace it when the job is back in its queue, or has"
        " ended"
    }
    queue.complete([running])


def test_what_runs_is_left_also_by_who_calls_the_function(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    take(queue)
    call = "SELECT {s}.replace_payloads(ARRAY[%s], '{{}}', true)"
    with unchanged(queue):
        assert rows(queue, call, job) == []


def test_the_jobs_of_a_sealed_batch_are_left(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    rows(queue, "UPDATE {s}.job SET state = 'running', available_at = 'infinity', batch_id = %s, lease_no = 1", uuid4())
    with unchanged(queue):
        assert "it is running" in queue.replace_payload(PLAIN, job, NEW).skipped[job]


@pytest.mark.parametrize("state", ["held", "failed"])
def test_one_that_becomes_due_wakes_an_idle_consumer(queue: SqlQueue, url: str, state: str) -> None:
    (job,) = put(queue, PLAIN, 1)
    if state == "held":
        queue.hold_queued("work", ids(job), "look")
    else:
        kill(queue)
    with armed(queue, url, 2) as sessions:
        queue.replace_payload(PLAIN, job, NEW)
        assert wakes(sessions) == ([0, 0] if state == "held" else [1, 0])
    with armed(queue, url, 2) as sessions:
        queue.replace_payload(PLAIN, job, NEW, release=True)
        assert wakes(sessions) == [1, 0]


# Ended jobs


@pytest.mark.parametrize("how", [ArchiveState.FAILED, ArchiveState.CANCELLED])
def test_an_ended_job_is_brought_back_with_it(queue: SqlQueue, how: ArchiveState) -> None:
    more: dict[str, Any] = {"unique_key": "u", "ordering_key": "k", "tags": ["t"], "priority": 3}
    (job,) = put(queue, PLAIN, 1, run_at=datetime(2020, 1, 1, tzinfo=UTC), **more)
    (old,) = take(queue)
    queue.finish([Ending(old, how, error="it broke")])
    before = queue.job(job)
    assert queue.replace_payload(PLAIN, job, NEW) == Decided([job])
    row = queue.job(job)
    assert (row.state, row.attempt, row.lease_no, row.error) == ("queued", 0, 1, "it broke")
    for name in ("id", "bucket", "priority", "max_attempts", "created_at", "unique_key", "ordering_key", "tags"):
        assert getattr(row, name) == getattr(before, name)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 0
    with pytest.raises(LeaseLost):
        queue.complete([old])
    (again,) = take(queue)
    assert (again.id, again.lease_no, again.attempt, json.loads(again.payload)) == (job, 2, 1, STORED)


def test_a_job_that_succeeded_is_left(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    queue.complete(take(queue))
    with unchanged(queue):
        assert queue.replace_payload(PLAIN, job, NEW) == Decided(skipped={job: "it ended as succeeded"})


def test_a_dead_letter_that_a_live_job_is_in_the_way_of_stays_as_it_was(queue: SqlQueue) -> None:
    put(queue, PLAIN, 1, unique_key="u")
    (old,) = kill(queue)
    put(queue, PLAIN, 1, unique_key="u")
    with unchanged(queue):
        assert queue.replace_payload(PLAIN, old.id, NEW).skipped == {
            old.id: "a live job of the queue has the same id, or the unique key 'u'"
        }


def test_a_dead_letter_takes_its_old_place_in_its_key(queue: SqlQueue) -> None:
    put(queue, ORDERED, 3, ordering_key="k")
    (first,) = kill(queue)
    assert queue.replace_payload(ORDERED, first.id, NEW).changed == [first.id]
    assert finish_all(queue) == [77, 1, 2]


def test_ids_of_which_nothing_can_be_decided_say_why(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    other = replace(PLAIN, name="other")
    queue.create_queue(other)
    foreign, nobody = queue.enqueue(other, Work(n=0)), uuid4()
    assert foreign
    with unchanged(queue):
        assert queue.replace_payload(PLAIN, foreign, NEW).skipped == {foreign: "it belongs to queue 'other'"}
        assert queue.replace_payload(PLAIN, nobody, NEW).skipped == {
            nobody: "there is no such job: it was never enqueued, or it ended and was trimmed since"
        }
    (ended,) = queue.claim("other", limit=1, worker="w")
    queue.finish([Ending(ended, ArchiveState.FAILED)])
    with unchanged(queue):
        assert queue.replace_payload(PLAIN, foreign, NEW).skipped == {foreign: "it belongs to queue 'other'"}


# What is stored


class Login(BaseModel):
    """A payload with an alias and something to hide."""

    user: str
    password: Annotated[str, Sensitive(), Field(min_length=4)]
    more: Any = None


LOGINS = QueueSpec("work", Login, bucket_count=4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"n": "many"}, "the payload does not fit Work of queue 'work': n: Input should be a valid integer"),
        ({"note": "x"}, "n: Field required"),
        ({"n": 1, "note": "a\x00"}, "the payload cannot be stored: note holds a NUL character"),
        ({"n": 1, "note": "x" * 1_000_001}, "bytes, the limit is 1,000,000"),
        (Login(user="a", password="four"), "the payload is a Login; queue 'work' takes Work"),
        (NewJob(Work(n=1)), "the payload does not fit Work"),
        (7, "the payload does not fit Work"),
    ],
    ids=["of another type", "incomplete", "with a NUL", "too large", "of another model", "a job", "no object"],
)
def test_what_no_enqueue_takes_is_refused(queue: SqlQueue, content: Any, said: str) -> None:
    """Of jobs in every state, and with nothing changed."""
    queued, held = put(queue, PLAIN, 2)
    queue.hold_queued("work", ids(held), "look")
    (dead,) = (job.id for job in kill(queue))
    assert dead == queued
    with unchanged(queue):
        for job in (held, dead):
            with pytest.raises(InvalidPayload) as refused:
                queue.replace_payload(PLAIN, job, content, release=True)
            assert said in str(refused.value)
            assert not str(refused.value).startswith("row")


def test_arguments_that_are_none(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with pytest.raises(InvalidInput, match="give its declaration"):
        queue.replace_payload("work", uuid4(), NEW)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'seven' is no job id"):
        queue.replace_payload(PLAIN, "seven", NEW)
    with pytest.raises(InvalidInput, match="release is 'no'; give True"):
        queue.replace_payload(PLAIN, uuid4(), NEW, release="no")  # type: ignore[arg-type]
    with pytest.raises(UnknownQueue, match="nowhere"):
        queue.replace_payload(replace(PLAIN, name="nowhere"), uuid4(), NEW)


def test_nothing_sensitive_is_quoted_and_the_value_is_stored(queue: SqlQueue) -> None:
    queue.create_queue(LOGINS)
    job = queue.enqueue(LOGINS, Login(user="ada", password="secret"))
    assert job
    with pytest.raises(InvalidPayload) as refused:
        queue.replace_payload(LOGINS, job, {"user": "ada", "password": "abc"})
    assert "password: is not usable" in str(refused.value)
    assert "abc" not in str(refused.value)
    with pytest.raises(InvalidPayload, match=r"more\.x is nan"):
        queue.replace_payload(LOGINS, job, {"user": "ada", "password": "correct", "more": {"x": float("nan")}})
    queue.replace_payload(LOGINS, job, {"user": "ada", "password": "correct horse"})
    assert stored_payload(queue, job) == {"user": "ada", "password": "correct horse", "more": None}


class Old(BaseModel):
    """What was enqueued last year."""

    to: str


@versioned(2, {1: lambda old: {"to": [old["to"]]}})
class New(BaseModel):
    """What is enqueued now."""

    to: list[str]


def test_the_version_of_the_model_is_stored_and_older_payloads_are_upgraded(queue: SqlQueue) -> None:
    old, new = QueueSpec("work", Old), QueueSpec("work", New)
    queue.create_queue(new)
    job = queue.enqueue(old, Old(to="ann"))
    assert job
    queue.replace_payload(new, job, New(to=["eve"]))
    assert stored_payload(queue, job) == {"$version": 2, "to": ["eve"]}
    queue.replace_payload(new, job, {"$version": 1, "to": "bob"})
    assert stored_payload(queue, job) == {"$version": 2, "to": ["bob"]}
    with pytest.raises(UnknownVersion, match="the payload has version 9"):
        queue.replace_payload(new, job, {"$version": 9, "to": "bob"})


def test_a_payload_that_cannot_be_read_is_replaced_released_and_handled(queue: SqlQueue) -> None:
    """The way back of a job that a consumer has set aside: its error names the verb."""
    (job,) = put(queue, PLAIN, 1)
    rows(queue, "UPDATE {s}.job SET payload = CAST(%s AS jsonb)", f'{{"n": {"9" * 5_000}}}')
    seen: list[int] = []
    assert Consumer(queue, PLAIN, lambda job: seen.append(job.payload.n)).drain().held == 1
    row = queue.job(job)
    assert (row.state, row.attempt) == ("held", 0)
    assert "replace_payload" in str(row.error)
    assert queue.replace_payload(PLAIN, job, NEW, release=True).changed == [job]
    assert Consumer(queue, PLAIN, lambda job: seen.append(job.payload.n)).drain().succeeded == 1
    assert seen == [77]
    assert queue.job(job).state == "succeeded"


def test_a_dead_letter_that_was_rejected_for_its_payload_is_handled(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)

    def handle(job: Job[Work]) -> Reject | None:
        return Reject("no such account") if job.payload.n == 0 else None

    assert Consumer(queue, PLAIN, handle).drain().failed == 1
    assert queue.replace_payload(PLAIN, job, NEW).changed == [job]
    assert Consumer(queue, PLAIN, handle).drain().succeeded == 1


def test_a_task_of_people_shows_it(queue: SqlQueue) -> None:
    """Released, it is a job for consumers again, as it is by `release_held`."""
    (job,) = put(queue, PLAIN, 1)
    people = HumanWork(queue)
    people.hand_over("work", ids(job), by="boss", reason="look")
    assert queue.replace_payload(PLAIN, job, NEW).changed == [job]
    assert json.loads(str(people.task(job).payload)) == STORED
    (task,) = people.take("ann", "work")
    assert task.id == job
    assert queue.replace_payload(PLAIN, job, NEW, release=True).changed == [job]
    assert numbers(take(queue)) == [77]
