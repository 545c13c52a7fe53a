"""Unique keys that jobs hold only until they are claimed: what is enqueued once one has begun is another job."""

import threading
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import Consumer, Done, Job, Mode, NewJob, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.steps import Statement, Steps, drive
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers import Followers
from dagster_sqlqueue.followers.insert import Submitted, Wishes, submit
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending, Enqueued, insert
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.intake import new_row
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, claim, make_due, numbers, rows, until, value


def put(queue: SqlQueue, spec: QueueSpec[Work], n: int, *, replace: bool = False, **more: Any) -> UUID | None:
    new = NewJob(Work(n=n), unique_key="u", **{"unique_until": "claim", **more})
    return queue.enqueue(spec, new, on_conflict="replace" if replace else "ignore")


def waiting(queue: SqlQueue) -> list[int]:
    return [
        n
        for (n,) in rows(queue, "SELECT CAST(payload->>'n' AS integer) FROM {s}.job WHERE state = 'queued' ORDER BY id")
    ]


@pytest.mark.parametrize("replace", [False, True])
def test_the_key_is_free_once_the_job_is_claimed(queue: SqlQueue, spec: QueueSpec[Work], replace: bool) -> None:
    assert put(queue, spec, 1)
    first = claim(queue)
    assert put(queue, spec, 2, replace=replace)
    assert (put(queue, spec, 3, replace=replace) is None) is not replace
    assert waiting(queue) == [3 if replace else 2]
    queue.complete(first)
    assert numbers(claim(queue)) == [3 if replace else 2]
    assert rows(queue, "SELECT unique_key, unique_until_claim FROM {s}.job_archive") == [("u", True)]


def test_many_in_one_call(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    jobs = [NewJob(Work(n=n), unique_key="u", unique_until="claim") for n in range(3)]
    assert queue.enqueue_many(spec, jobs) == Enqueued(1, 2)
    claim(queue)
    assert queue.enqueue_many(spec, jobs) == Enqueued(1, 2)
    assert queue.enqueue_many(spec, jobs, on_conflict="replace") == Enqueued(0, 0, 3)
    claim(queue)
    assert queue.enqueue_many(spec, jobs, on_conflict="replace") == Enqueued(1, 0, 2)
    assert waiting(queue) == [2]


def test_a_job_that_goes_back_does_not_hold_the_key_again(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    put(queue, spec, 1)
    queue.fail(claim(queue)[0], error="later", after=0)
    put(queue, spec, 2)
    assert waiting(queue) == [1, 2]
    assert put(queue, spec, 3) is None
    assert put(queue, spec, 4, replace=True)
    assert waiting(queue) == [1, 4]
    make_due(queue)
    assert sorted(numbers(claim(queue))) == [1, 4]


def test_one_that_was_set_aside_before_it_was_claimed_holds_the_key(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    first = put(queue, spec, 1)
    assert first is not None
    queue.hold_queued("work", Selection(ids=[first]), reason="look")
    assert put(queue, spec, 2) is None
    assert put(queue, spec, 2, replace=True) is None
    queue.delete("work", Selection(ids=[first]))
    assert put(queue, spec, 3)


def test_one_whose_lease_ran_out_meets_nobody(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    put(queue, spec, 1)
    claim(queue)
    put(queue, spec, 2)
    make_due(queue)
    assert numbers(claim(queue) + claim(queue)) in ([1, 2], [2, 1])


def test_redriven_all_of_a_key_go_back(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    for n in range(3):
        put(queue, spec, n)
        queue.finish([Ending(job, ArchiveState.FAILED) for job in claim(queue)])
    put(queue, spec, 3)
    assert len(queue.redrive("work", Selection(all=True)).changed) == 3
    assert sorted(waiting(queue)) == [0, 1, 2, 3]
    assert value(queue, "SELECT bool_and(unique_until_claim) FROM {s}.job")


def test_the_live_job_decides_how_long(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    put(queue, spec, 1, unique_until="end")
    assert put(queue, spec, 2) is None
    put(queue, spec, 3, replace=True)
    claim(queue)
    assert put(queue, spec, 4) is None
    assert rows(queue, "SELECT unique_until_claim, state FROM {s}.job") == [(False, "running")]


def test_followers_are_merged_into_what_waits_only(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    followers = Followers(queue)
    new = NewJob(Work(n=1), unique_key="u", unique_until="claim")
    first = followers.enqueue(spec, new, on_conflict="merge")
    assert followers.enqueue(spec, new, on_conflict="merge").job_id == first.id
    claim(queue)
    second = followers.enqueue(spec, new, on_conflict="merge")
    assert second.inserted
    assert followers.enqueue(spec, new, on_conflict="merge").job_id == second.id


def test_nobody_is_merged_into_a_job_that_is_claimed_meanwhile(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    put(queue, spec, 1)
    new = NewJob(Work(n=2), unique_key="u", unique_until="claim")
    steps = submit("work", [new_row(spec, new)], "merge", Wishes())

    def watched() -> Steps[list[Submitted]]:
        answer: Sequence[Row] | None = None
        while True:
            try:
                request = steps.send(answer)  # type: ignore[arg-type]
            except StopIteration as done:
                found: list[Submitted] = done.value
                return found
            answer = yield request
            if request[0] == "taken_unique_keys":
                assert numbers(claim(queue)) == [1]

    with queue.database.transaction() as transaction:
        (done,) = drive(watched(), transaction)
    assert done.inserted
    assert waiting(queue) == [2]


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_enqueued_while_a_handler_runs_is_worked_off_after_it(
    queue: SqlQueue, spec: QueueSpec[Work], mode: Mode
) -> None:
    """Neither waits for the other: the claim is there for all to see before the handler begins."""
    done: list[int] = []

    def work(job: Job[Work]) -> Any:
        done.append(job.payload.n)
        if job.payload.n < 3 and job.attempt == 1:
            assert put(queue, spec, job.payload.n + 1)
        return Retry("again", after=0) if job.attempt == 1 else Done()

    put(queue, spec, 0)
    queue.enqueue_many(spec, [Work(n=n) for n in range(100, 105)])
    Consumer(queue, spec, work, mode=mode).drain()
    assert sorted(done) == sorted([0, 0, 1, 1, 2, 2, 3, 3, *(2 * list(range(100, 105)))])
    assert rows(queue, "SELECT DISTINCT attempt, state FROM {s}.job_archive") == [(2, "succeeded")]


@pytest.mark.parametrize("replace", [False, True])
def test_an_enqueue_that_meets_a_claim_waits_for_it(queue: SqlQueue, spec: QueueSpec[Work], replace: bool) -> None:
    """The claim in a transaction that is open: the enqueue is decided by its end."""
    put(queue, spec, 1)
    put_in: list[UUID | None] = []
    enqueuer = threading.Thread(target=lambda: put_in.append(put(queue, spec, 2, replace=replace)))
    with queue.database.transaction() as transaction:
        (job,) = queue.leases.claim_within(transaction, ClaimRequest("work", limit=1, worker="w"))
        enqueuer.start()
        until(lambda: value(queue, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
    enqueuer.join()
    assert put_in != [None]
    assert waiting(queue) == [2]
    assert job.lease_no == 1


@pytest.mark.parametrize("another", [False, True])
def test_a_replacement_that_a_claim_overtakes_is_not_lost(
    queue: SqlQueue, spec: QueueSpec[Work], another: bool
) -> None:
    """The waiting job comes after the first search for one, is claimed once it was met; then another comes, or none."""
    steps = insert.one("work", new_row(spec, NewJob(Work(n=9), unique_key="u", unique_until="claim")), "replace")
    replacements = 0

    def watched() -> Steps[UUID | None]:
        nonlocal replacements
        answer: Sequence[Row] | None = None
        while True:
            try:
                request = steps.send(answer)  # type: ignore[arg-type]
            except StopIteration as done:
                found: UUID | None = done.value
                return found
            replacing = isinstance(request, Statement) and request.name == "enqueue_replace"
            replacements += replacing
            if replacing and replacements == 2:
                assert numbers(claim(queue)) == [1]
            answer = yield request
            if replacing and (replacements == 1 or (replacements == 2 and another)):
                assert put(queue, spec, replacements)

    assert drive(watched(), queue.database)
    assert replacements == 2 + another
    assert waiting(queue) == [9]


@pytest.mark.parametrize("new", [{"unique_until": "claim"}, {"unique_until": "ever", "unique_key": "u"}])
def test_what_makes_no_sense_is_refused(queue: SqlQueue, spec: QueueSpec[Work], new: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="unique_until is"):
        queue.enqueue(spec, NewJob(Work(n=1), **new))
