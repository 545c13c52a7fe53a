"""A write under a lease that is not the current one is refused."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import Hold, NewJob, QueueSpec, Retry, Snooze, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput, LeaseLost, UnknownQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.support import Work, claim, make_due, rows, value


@pytest.fixture
def overtaken(queue: SqlQueue, spec: QueueSpec[Work]) -> tuple[ClaimedJob, ClaimedJob]:
    """A job's lease that ran out, and the lease of the one who claimed it after."""
    queue.enqueue(spec, Work(n=1))
    (old,) = claim(queue, worker="old")
    make_due(queue)
    (new,) = claim(queue, worker="new")
    assert (old.id, old.lease_no, new.lease_no, new.attempt) == (new.id, 1, 2, 2)
    return old, new


@contextlib.contextmanager
def rolled_back(queue: SqlQueue) -> Iterator[Transaction]:
    """A transaction of the library's that comes to nothing."""
    with queue.database.connection() as connection, connection.transaction(force_rollback=True):
        yield Transaction(connection, queue.database)


def snapshot(queue: SqlQueue) -> list[tuple[object, ...]]:
    return rows(queue, "SELECT * FROM {s}.job") + rows(queue, "SELECT * FROM {s}.job_archive")


WRITES: dict[str, Callable[[SqlQueue, ClaimedJob, QueueSpec[Work]], object]] = {
    "complete": lambda queue, job, spec: queue.complete([job]),
    "fail": lambda queue, job, spec: queue.fail(job, "x", backoff=spec.backoff),
    "fail for good": lambda queue, job, spec: queue.fail(
        job._replace(max_attempts=1),
        "x",
        backoff=spec.backoff,
    ),
}
QUIET: dict[str, Callable[[SqlQueue, ClaimedJob, QueueSpec[Work]], object]] = {
    "heartbeat": lambda queue, job, spec: queue.heartbeat([job], lease_seconds=99).held,
    "retry": lambda queue, job, spec: queue.requeue([(job, Retry("x"))], backoff=spec.backoff),
    "snooze": lambda queue, job, spec: queue.requeue([(job, Snooze(1))], backoff=spec.backoff),
    "release": lambda queue, job, spec: queue.release([job]),
    "ended by us": lambda queue, job, spec: queue.leases.ended_by_us([job]),
}


@pytest.mark.parametrize("write", list(WRITES))
def test_a_stale_ending_raises_and_changes_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], overtaken: tuple[ClaimedJob, ClaimedJob], write: str
) -> None:
    before = snapshot(queue)
    with pytest.raises(LeaseLost, match=rf"lease of 1 of 1 jobs.*{overtaken[0].id}"):
        WRITES[write](queue, overtaken[0], spec)
    assert snapshot(queue) == before
    queue.complete([overtaken[1]])


@pytest.mark.parametrize("write", list(QUIET))
def test_any_other_stale_write_is_refused_and_changes_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], overtaken: tuple[ClaimedJob, ClaimedJob], write: str
) -> None:
    before = snapshot(queue)
    assert QUIET[write](queue, overtaken[0], spec) == set()
    assert snapshot(queue) == before


@pytest.mark.parametrize("write", list(WRITES))
def test_after_the_end_nothing_is_accepted_any_more(queue: SqlQueue, spec: QueueSpec[Work], write: str) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    queue.complete([job])
    before = snapshot(queue)
    with pytest.raises(LeaseLost):
        WRITES[write](queue, job, spec)
    for quiet in ("heartbeat", "retry", "snooze", "release"):
        assert QUIET[quiet](queue, job, spec) == set()
    assert snapshot(queue) == before


def test_after_giving_it_back_the_same_lease_is_not_current(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    queue.release([job])
    with pytest.raises(LeaseLost):
        queue.complete([job])
    assert queue.heartbeat([job], lease_seconds=1).held == set()


def test_of_several_only_the_stale_one_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    jobs = claim(queue)
    rows(queue, "UPDATE {s}.job SET available_at = now() WHERE id = %s", jobs[1].id)
    (again,) = claim(queue)
    with pytest.raises(LeaseLost, match="lease of 1 of 3 jobs"):
        queue.complete(jobs)
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 2}
    queue.complete([again])


def test_a_lease_that_ran_out_and_was_not_claimed_is_still_current(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    jobs = claim(queue)
    make_due(queue)
    assert queue.heartbeat(jobs, lease_seconds=300).held == {jobs[0].id}
    assert claim(queue) == []
    queue.complete(jobs)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60", True])
def test_a_heartbeat_refuses_a_lease_that_makes_no_sense(queue: SqlQueue, spec: QueueSpec[Work], seconds: Any) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    with pytest.raises(InvalidInput, match=f"lease_seconds is {seconds!r}; it must be positive"):
        queue.heartbeat([job], lease_seconds=seconds)
    assert queue.heartbeat([job], lease_seconds=300).held == {job.id}


def test_a_lease_that_ran_out_on_the_last_attempt_ends_in_the_dead_letter(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=2))
    queue.enqueue(spec, NewJob(Work(n=2), max_attempts=2))
    (first, second) = claim(queue)
    assert queue.fail(first, "the error before", backoff=spec.backoff)
    make_due(queue)
    begun: set[tuple[UUID, int]] = set()
    while jobs := claim(queue):
        begun |= {(job.id, job.attempt) for job in jobs if job.alone}
        make_due(queue)
    # Of the second nobody knows whether it had begun beside the first.
    assert begun == {(first.id, 2), (second.id, 1), (second.id, 2)}
    dead = {letter.id: letter for letter in queue.dead_letters("work")}
    assert [dead[job.id].attempt for job in (first, second)] == [2, 2]
    for job in (first, second):
        assert "the lease ran out on the last of 2 attempts: its consumer died or hung" in (dead[job.id].error or "")
    assert "the error before" in (dead[first.id].error or "")
    with pytest.raises(LeaseLost):
        queue.complete([first])
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 2


def test_lease_numbers_only_grow(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=50))
    seen = []
    for turn in range(12):
        (job,) = claim(queue)
        seen.append(job.lease_no)
        match turn % 4:
            case 0:
                queue.release([job])
            case 1:
                queue.fail(job, "x", backoff=spec.backoff)
            case 2:
                queue.requeue([(job, Snooze(0))], backoff=spec.backoff)
            case _:
                make_due(queue)
    assert seen == list(range(1, 13))


def test_the_leases_of_a_dead_worker_end_at_once_and_its_jobs_are_claimed_one_by_one(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(6)])
    dead = queue.claim("work", limit=3, worker="dead")
    alive = queue.claim("work", limit=2, worker="alive")
    assert queue.leases.end_leases("work", "dead") == {job.id for job in dead}
    assert queue.leases.end_leases("work", "dead") == set(), "they are over"
    taken: dict[UUID, tuple[int, bool]] = {}
    while jobs := queue.claim("work", limit=10, worker="heir"):
        taken |= {job.id: (job.attempt, len(jobs) == 1) for job in jobs}
    assert {job.id: (1, True) for job in dead}.items() <= taken.items()
    assert len(taken) == 4
    assert not {job.id for job in alive} & taken.keys()
    with pytest.raises(LeaseLost):
        queue.complete(dead)
    queue.complete(alive)


def test_leases_longer_than_the_queues_are_ended_if_their_length_is_given(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=1))
    queue.claim("work", limit=1, worker="dead", lease_seconds=3_600)
    assert queue.leases.end_leases("work", "dead") == set()
    assert len(queue.leases.end_leases("work", "dead", lease_seconds=3_600)) == 1
    with pytest.raises(UnknownQueue):
        queue.leases.end_leases("nowhere", "dead")


def test_a_number_counts_from_the_commit_of_its_claim(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    """Rolled back, a claim never was: its number is given again, and until the commit it is no lease."""
    queue.enqueue(spec, Work(n=1))
    for _ in range(2):
        with rolled_back(queue) as transaction:
            (job,) = queue.leases.claim_within(transaction, ClaimRequest("work", limit=1, worker="w"))
            assert job.lease_no == 1
            with pytest.raises(LeaseLost):
                queue.complete([job])
        with rolled_back(queue) as transaction:
            (locked,) = queue.leases.lock_due(transaction, ClaimRequest("work", limit=1))
            assert locked.lease_no == 1
        with psycopg.connect(url) as connection:
            claimed = sql.SQL("SELECT lease_no FROM {}.claim('work', 'w')")
            name = sql.Identifier(pinned_schema(queue.database.schema))
            assert connection.execute(claimed.format(name)).fetchall() == [(1,)]
            connection.rollback()
    (mine,) = claim(queue)
    assert mine.lease_no == 1
    queue.complete([mine])


ODD: dict[str, tuple[Callable[[SqlQueue, ClaimedJob], object], str]] = {
    "one job": (lambda queue, job: queue.complete(job), "jobs is a ClaimedJob; give a list"),
    "no jobs": (lambda queue, job: queue.release(None), "jobs is a NoneType; give a list"),  # type: ignore[arg-type]
    "an id": (lambda queue, job: queue.complete([job.id]), "there is a UUID among the jobs; give each as `claim`"),  # type: ignore[list-item]
    "an id that failed": (lambda queue, job: queue.fail(job.id, "x"), "there is a UUID among the jobs"),  # type: ignore[arg-type]
    "an id that lives": (lambda queue, job: queue.heartbeat([job.id], lease_seconds=60), "there is a UUID among"),  # type: ignore[list-item]
    "a job alone": (lambda queue, job: queue.hold([job]), "there is a ClaimedJob among the jobs; give pairs"),  # type: ignore[list-item]
    "no way back": (lambda queue, job: queue.requeue([(job, Hold("x"))]), "by a Hold; give a Retry"),  # type: ignore[list-item]
    "one ending": (
        lambda queue, job: queue.finish(Ending(job, ArchiveState.FAILED)),
        "endings is a Ending; give a list",
    ),  # type: ignore[arg-type]
    "no ending": (lambda queue, job: queue.finish([job]), "there is a ClaimedJob among the endings"),  # type: ignore[list-item]
    "no state": (lambda queue, job: queue.finish([Ending(job, "done")]), "is 'done'; it must be one of 'succeeded'"),  # type: ignore[arg-type]
    "no text": (
        lambda queue, job: queue.finish([Ending(job, ArchiveState.FAILED, error=ValueError("x"))]),  # type: ignore[arg-type]
        r"is ValueError\('x'\); give a text",
    ),
}


@pytest.mark.parametrize("odd", list(ODD))
def test_what_is_no_claimed_job_is_refused(queue: SqlQueue, spec: QueueSpec[Work], odd: str) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    write, message = ODD[odd]
    with pytest.raises(InvalidInput, match=message):
        write(queue, job)
    assert rows(queue, "SELECT state, error FROM {s}.job_all") == [("running", None)]


def test_jobs_may_be_given_by_an_iterator_and_states_as_texts(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(6)])
    jobs: Any = iter(claim(queue))
    taken = {
        "heartbeat": queue.heartbeat(itertools.islice(jobs, 1), lease_seconds=60).held,  # type: ignore[arg-type]
        "requeue": queue.requeue((job, Snooze(3_600)) for job in itertools.islice(jobs, 1)),  # type: ignore[arg-type]
        "hold": queue.hold((job, "look at it") for job in itertools.islice(jobs, 1)),  # type: ignore[arg-type]
        "release": queue.release(itertools.islice(jobs, 1)),  # type: ignore[arg-type]
        "finish": queue.finish(Ending(job, "failed", error="no luck") for job in itertools.islice(jobs, 1)),  # type: ignore[arg-type]
    }
    assert {verb: len(ids) for verb, ids in taken.items()} == dict.fromkeys(taken, 1)
    queue.complete(jobs)
    found = rows(queue, "SELECT state, error FROM {s}.job_all")
    assert sorted(found, key=str) == [
        ("failed", "no luck"),
        ("held", "look at it"),
        ("queued", None),
        ("queued", None),
        ("running", None),
        ("succeeded", None),
    ]
