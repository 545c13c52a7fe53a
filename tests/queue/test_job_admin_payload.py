"""Replacing the payload of a job: of a queued, held or ended one; what is left as it is, and why; also beside consumers."""

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from dagster_sqlqueue.queue import Ending, payload_replacement
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.selection import Decided, Selection
from tests.gate.patience import PATIENCE
from tests.support import Work, asked, caller, numbers, rows, take_time, until, value
from tests.support.armed import armed, wakes
from tests.support.decisions import ALL, LATER, ORDERED, PLAIN, TWO_A_KEY, finish_all, ids, kill, put, take

NEW = Work(n=77, note="new")
STORED = {"n": 77, "note": "new"}
LOCATING = "SELECT j.id, j.queue, j.state, NULL FROM"
"""Part of the statement that asks for the states of jobs which others have locked."""


def whole(queue: SqlQueue, job: UUID) -> dict[str, Any]:
    """Every column of a live job but its payload."""
    return dict(value(queue, "SELECT to_jsonb(j) - 'payload' FROM {s}.job AS j WHERE id = %s", job))


def payload(queue: SqlQueue, job: UUID) -> Any:
    return json.loads(queue.job(job).payload)


@contextmanager
def unchanged(queue: SqlQueue) -> Iterator[None]:
    """Nothing is written by the block."""
    every = "SELECT j::text FROM {s}.job_all AS j ORDER BY 1"
    before = rows(queue, every)
    assert before
    yield
    assert rows(queue, every) == before


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
        assert payload(queue, job) == {"n": n, "note": ""}
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
    assert (queue.job(job).state, payload(queue, job)) == ("cancelled", STORED)


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
    assert payload(queue, job) == STORED
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
    call = "SELECT {s}.replace_payload(ARRAY[%s], '{{}}', true)"
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


def test_a_dead_letter_comes_back_before_or_after_a_decision_about_its_key(queue: SqlQueue) -> None:
    put(queue, ORDERED, 2, ordering_key="k")
    (first,) = kill(queue)
    with ThreadPoolExecutor(1) as pool:
        with queue.database.transaction() as claim:
            take_time(claim)
            claim.run("key_wait", {"queue": "work", "keys": ["k"]})
            future = pool.submit(queue.replace_payload, ORDERED, first.id, NEW)
            until(lambda: value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
            assert queue.job(first.id).state == "failed"
        assert future.result(PATIENCE).changed == [first.id]
    assert finish_all(queue) == [77, 1]


def test_one_that_others_bring_back_meanwhile_is_replaced_where_it_is_then(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(queue, PLAIN, 1)
    (job,) = kill(queue)
    bring_back = payload_replacement.Redriving.bring_back
    ended = iter([True, False])

    def late(*arguments: Any, **more: Any) -> None:
        if next(ended):
            queue.redrive("work", ALL)
        bring_back(*arguments, **more)

    monkeypatch.setattr(payload_replacement.Redriving, "bring_back", late)
    assert queue.replace_payload(PLAIN, job.id, NEW) == Decided([job.id])
    assert payload(queue, job.id) == STORED
    assert queue.job(job.id).state == "queued"


def test_one_that_never_stays_where_it_is_looked_for_is_left(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    put(queue, PLAIN, 1)
    (job,) = kill(queue)
    monkeypatch.setattr(payload_replacement.Redriving, "bring_back", lambda *_, **__: None)
    with unchanged(queue):
        assert "try again" in queue.replace_payload(PLAIN, job.id, NEW).skipped[job.id]


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
    assert payload(queue, job) == {"user": "ada", "password": "correct horse", "more": None}


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
    assert payload(queue, job) == {"$version": 2, "to": ["eve"]}
    queue.replace_payload(new, job, {"$version": 1, "to": "bob"})
    assert payload(queue, job) == {"$version": 2, "to": ["bob"]}
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


# Beside others


@pytest.mark.parametrize("state", ["queued", "held", "failed"])
def test_it_joins_the_callers_transaction(queue: SqlQueue, url: str, state: str) -> None:
    (job,) = put(queue, PLAIN, 1)
    if state == "held":
        queue.hold_queued("work", ids(job), "look")
    elif state == "failed":
        kill(queue)
    with caller(url) as connection:
        with unchanged(queue):
            assert queue.replace_payload(PLAIN, job, NEW, release=True, connection=connection).changed == [job]
            connection.rollback()
        assert queue.replace_payload(PLAIN, job, NEW, release=True, connection=connection).changed == [job]
        connection.commit()
    assert payload(queue, job) == STORED
    assert numbers(take(queue)) == [77]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_strict_transaction_brings_no_job_back_into_a_line(queue: SqlQueue, url: str, level: str) -> None:
    put(queue, ORDERED, 2, ordering_key="k")
    (job,) = kill(queue)
    with unchanged(queue), caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(InvalidInput, match="has keys that take turns"):
            queue.replace_payload(ORDERED, job.id, NEW, connection=connection)


def test_one_that_a_transaction_works_on_is_waited_for_a_little_and_left(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.queue.decision._PATIENCE_SECONDS", 0.2)
    (job,) = put(queue, PLAIN, 1)
    with unchanged(queue), queue.database.transaction() as claim:
        claim.run("lock_live", {"queue": "work", "ids": [job]})
        assert "somebody else is at it" in queue.replace_payload(PLAIN, job, NEW).skipped[job]


def test_a_transaction_that_ends_it_meanwhile_is_waited_for(queue: SqlQueue) -> None:
    """It is a dead letter then, and comes back with the new payload."""
    (job,) = put(queue, PLAIN, 1)
    with ThreadPoolExecutor(1) as pool:
        with queue.database.transaction() as claim:
            take_time(claim)
            claim.run("lock_live", {"queue": "work", "ids": [job]})
            future = pool.submit(queue.replace_payload, PLAIN, job, NEW)
            until(lambda: asked(queue, LOCATING))
            claim.run("cancel_waiting", {"ids": [job], "reason": "no"})
        assert future.result(PATIENCE).changed == [job]
    assert (queue.job(job).state, payload(queue, job)) == ("queued", STORED)


@dataclass
class Attempts:
    """What consumers were handed out, and who replaced what, while all were at the same jobs."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    handed: dict[UUID, dict[int, tuple[Work, str]]] = field(default_factory=lambda: defaultdict(dict))
    stored: dict[UUID, set[int]] = field(default_factory=lambda: defaultdict(set))
    skipped: set[int] = field(default_factory=set)

    @property
    def enough(self) -> bool:
        with self.lock:
            return sum(map(len, self.handed.values())) >= 400 and sum(map(len, self.stored.values())) >= 150


def work_off(queue: SqlQueue, worker: str, attempts: Attempts) -> None:
    """Claim some jobs, and have them fail, be held or be retried."""
    for job in queue.claim("work", limit=2, worker=worker):
        content = Work.model_validate_json(job.payload)
        outcome = ("failed", "held", "retried")[(content.n + job.lease_no) % 3]
        with attempts.lock:
            attempts.handed[job.id][job.lease_no] = content, outcome
        if outcome == "failed":
            queue.finish([Ending(job, ArchiveState.FAILED, error="no")])
        elif outcome == "held":
            queue.hold([(job, "look")])
        else:
            queue.requeue([(job, Retry("again", after=0))])


def test_no_attempt_has_a_payload_that_was_not_there_and_none_an_earlier_one(queue: SqlQueue) -> None:
    """Consumers, and two who replace the payloads of half of the jobs each, by ever higher numbers. Of the first half dead
    letters come back by that alone, as do all that are held: no attempt after it has the payload from before. Of the second
    half they are redriven as well.
    """
    spec = replace(PLAIN, max_attempts=1_000_000)
    halves = [put(queue, spec, 4), put(queue, spec, 4, tags=["redriven"])]
    attempts, stop = Attempts(), threading.Event()
    count = itertools.count(1)

    def replace_all(own: SqlQueue, jobs: list[UUID]) -> None:
        for job in jobs:
            number = next(count)
            decided = own.replace_payload(spec, job, Work(n=number, note=str(number)), release=True)
            with attempts.lock:
                if decided.changed:
                    attempts.stored[job].add(number)
                else:
                    attempts.skipped.add(number)

    def again(step: Callable[..., object], *arguments: Any) -> None:
        with SqlQueue(queue.database.beside()) as own:
            while not stop.is_set():
                step(own, *arguments)

    for half in halves:
        replace_all(queue, half)
    steps: list[tuple[Any, ...]] = [(work_off, f"w{n}", attempts) for n in range(3)]
    steps += [(replace_all, half) for half in halves]
    steps += [(lambda own: own.redrive("work", Selection(tags=["redriven"])),)]
    with ThreadPoolExecutor(len(steps)) as pool:
        running = [pool.submit(again, *step) for step in steps]
        try:
            until(lambda: attempts.enough or any(future.done() for future in running))
        finally:
            stop.set()
        for future in running:
            future.result(PATIENCE)
    assert attempts.skipped, "no claim was in the way"
    for job in itertools.chain(*halves):
        found = [attempts.handed[job][lease_no] for lease_no in sorted(attempts.handed[job])]
        assert all(content.note == str(content.n) for content, _ in found)
        assert {content.n for content, _ in found} <= attempts.stored[job]
        for (content, outcome), (later, _) in itertools.pairwise(found):
            again_as_it_was = outcome == "retried" or (outcome == "failed" and job in halves[1])
            assert content.n <= later.n if again_as_it_was else content.n < later.n, outcome
        assert payload(queue, job)["n"] == max(attempts.stored[job])


def test_of_a_claim_and_a_replacement_one_is_first(queue: SqlQueue) -> None:
    """A claim that is not committed keeps the payload from being replaced: what it hands out is what is stored."""
    (job,) = put(queue, PLAIN, 1)
    with ThreadPoolExecutor(1) as pool:
        with queue.database.transaction() as claim:
            take_time(claim)
            claimed = queue.leases.claim_within(claim, ClaimRequest("work", limit=1, worker="w"))
            assert [one.id for one in claimed] == [job]
            future = pool.submit(queue.replace_payload, PLAIN, job, NEW)
            until(lambda: asked(queue, LOCATING))
        assert "it is running" in future.result(PATIENCE).skipped[job]
    assert payload(queue, job) == {"n": 0, "note": ""}
