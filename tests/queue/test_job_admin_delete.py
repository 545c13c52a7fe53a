"""Deleting jobs for good: which, with what of them, and what becomes of those beside them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, LeaseLost, UnknownJob, UnknownQueue
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.selection import Decided, Selection
from tests.support import Work, numbers, rows, value
from tests.support.decisions import ALL, LATER, ORDERED, PLAIN, finish_all, ids, kill, put, take

TABLES_OF_JOBS = ("job", "job_archive", "job_event", "human_task", "job_progress", "follower")


def left(queue: SqlQueue) -> dict[str, int]:
    """How many rows there are of any job."""
    counted = {name: value(queue, f"SELECT count(*) FROM {{s}}.{name}") for name in TABLES_OF_JOBS}
    return {name: count for name, count in counted.items() if count}


def test_what_waits_and_what_ended_goes_and_what_runs_stays(queue: SqlQueue) -> None:
    put(queue, PLAIN, 6)
    (failed,) = kill(queue)
    done, running = take(queue, 2)
    queue.complete([done])
    queue.cancel("work", Selection(payload={"n": 3}))
    queue.hold_queued("work", Selection(payload={"n": 4}), "look")
    decided = queue.delete("work", ALL)
    assert (len(decided.changed), decided.skipped) == (5, {})
    assert failed.id in decided.changed
    assert left(queue) == {"job": 1}
    assert queue.job(running.id).state == "running"
    assert queue.delete("work", ALL) == Decided()


def test_jobs_named_by_their_ids_say_why_they_stay(queue: SqlQueue) -> None:
    put(queue, PLAIN, 3)
    (failed,) = kill(queue)
    (running,) = take(queue, 1)
    queue.create_queue(replace(PLAIN, name="other"))
    other = queue.enqueue(replace(PLAIN, name="other"), NewJob(Work(n=9)))
    assert other is not None
    (waiting,) = (job.id for job in queue.jobs("work") if job.state == "queued")
    nobodys = uuid4()
    decided = queue.delete("work", ids(failed.id, running.id, waiting, other, nobodys))
    assert set(decided.changed) == {failed.id, waiting}
    assert decided.skipped == {
        running.id: "it is running",
        other: "it belongs to queue 'other'",
        nobodys: "there is no such job: it was never enqueued, or it ended and was trimmed since",
    }
    with pytest.raises(UnknownJob):
        queue.job(waiting)
    assert queue.job(other).state == "queued"


def test_by_filter_and_state(queue: SqlQueue) -> None:
    put(queue, PLAIN, 1)
    (failed,) = kill(queue)
    put(queue, PLAIN, 3, tags=["vip"])
    put(queue, PLAIN, 2)
    assert len(queue.delete("work", Selection(tags=["vip"]), states=["queued"]).changed) == 3
    assert queue.job(failed.id).state == "failed"
    assert queue.delete("work", Selection(error_contains="failure of 0"), states="failed").changed == [failed.id]
    assert queue.delete("work", Selection(state="held")) == Decided()
    assert queue.delete("work", Selection(state="succeeded")) == Decided()
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert queue.delete("work", Selection(before=yesterday)) == Decided()
    assert len(queue.delete("work", Selection(since=yesterday)).changed) == 2


def test_more_than_a_batch(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    queue.enqueue_many(PLAIN, [NewJob(Work(n=n)) for n in range(2_300)])
    rows(
        queue,
        "SELECT {s}.make_archive_partition(CAST(timezone('UTC', now()) AS date) - n) FROM generate_series(1, 2) n",
    )
    for job in range(2):
        queue.complete(queue.claim("work", limit=600, worker=f"w{job}"))
    rows(
        queue,
        "UPDATE {s}.job_archive SET finished_at = finished_at - interval '1 day' WHERE claimed_by = 'w0'",
    )
    assert len(set(queue.delete("work", ALL).changed)) == 2_300
    assert left(queue) == {}


def test_its_history_its_task_and_its_progress_go_with_it(queue: SqlQueue) -> None:
    put(queue, PLAIN, 2)
    people = HumanWork(queue)
    people.hand_over("work", ALL, by="boss", reason="asks for a person")
    (one, other) = (job.id for job in queue.jobs("work"))
    people.take("anna", "work")
    rows(queue, "INSERT INTO {s}.job_progress SELECT id, 1, 50, 'half', now() FROM {s}.job")
    assert queue.delete("work", ids(one)).changed == [one]
    for table in ("job_event", "human_task", "job_progress"):
        assert rows(queue, f"SELECT DISTINCT job_id FROM {{s}}.{table}") == [(other,)]
    queue.cancel("work", ids(other))
    queue.delete("work", ids(other))
    assert left(queue) == {}


def test_who_follows_it_is_notified_that_it_was_cancelled(queue: SqlQueue) -> None:
    callbacks = replace(PLAIN, name="callbacks")
    queue.create_queue(callbacks)
    (job,) = put(queue, PLAIN, 1)
    Followers(queue).follow(job, Callback(callbacks))
    queue.delete("work", ids(job))
    (callback,) = queue.claim("callbacks", limit=5, worker="w")
    assert '"cancelled"' in callback.payload
    assert "deleted by an operator" in callback.payload
    assert left(queue) == {"job": 1}


def test_the_key_of_a_deleted_job_goes_on(queue: SqlQueue) -> None:
    put(queue, ORDERED, 4, ordering_key="k")
    queue.delete("work", Selection(payload={"n": 0}))
    assert finish_all(queue) == [1, 2, 3]


def test_a_producer_does_not_bring_a_deleted_job_back_and_no_zombie_is_believed(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1, unique_key="u")
    (zombie,) = kill(queue)
    waiting = queue.enqueue(PLAIN, NewJob(Work(n=1), id=uuid4()))
    queue.delete("work", ALL)
    for known in (job, waiting):
        assert queue.enqueue(PLAIN, NewJob(Work(n=7), id=known)) is None
    done = queue.enqueue_many(PLAIN, [NewJob(Work(n=7), id=job), NewJob(Work(n=8), unique_key="u")])
    assert (done.inserted, done.duplicates) == (1, 1)
    assert numbers(take(queue)) == [8]
    with pytest.raises(LeaseLost):
        queue.complete([zombie])


def test_what_is_known_of_deleted_jobs_is_forgotten_after_a_week(queue: SqlQueue) -> None:
    put(queue, PLAIN, 2)
    queue.delete("work", ALL)
    rows(queue, "UPDATE {s}.job_replaced SET noted_at = noted_at - interval '6 days'")
    assert queue.maintain().expired_removed == 0
    rows(queue, "UPDATE {s}.job_replaced SET noted_at = noted_at - interval '2 days'")
    assert queue.maintain().expired_removed == 2
    assert value(queue, "SELECT count(*) FROM {s}.job_replaced") == 0


def test_a_queue_is_emptied_of_what_waits(queue: SqlQueue) -> None:
    put(queue, PLAIN, 3)
    (failed,) = kill(queue)
    (running,) = take(queue, 1)
    put(queue, PLAIN, 2, run_at=LATER)
    queue.hold_queued("work", Selection(payload={"n": 2}), "look")
    assert len(queue.delete("work", ALL, states=["queued", "held"]).changed) == 3
    assert {job.id for job in (*queue.jobs("work"), *queue.jobs("work", archived=True))} == {failed.id, running.id}


def test_what_cannot_be_asked_for(queue: SqlQueue) -> None:
    put(queue, PLAIN, 1)
    for states in (["running"], [], "nonsense"):
        with pytest.raises(InvalidInput, match="what can be deleted is queued or held or succeeded"):
            queue.delete("work", ALL, states=states)
    with pytest.raises(InvalidInput, match="delete applies to jobs that are queued"):
        queue.delete("work", Selection(state="failed"), states=["queued"])
    with pytest.raises(InvalidInput, match="delete applies to jobs that are"):
        queue.delete("work", Selection(state="running"))
    with pytest.raises(UnknownQueue):
        queue.delete("nope", ALL)
    assert left(queue) == {"job": 1}
