"""Bringing jobs back from the dead letter: which, as what, and where in their line."""

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, LeaseLost
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.outcome import Retry
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.selection import Decided, Selection
from tests.gate.patience import PATIENCE
from tests.support import Work, numbers, rows, value
from tests.support.decisions import ALL, LATER, ORDERED, PLAIN, finish_all, ids, kill, put, take, waiting_for_the_key


def test_a_redriven_job_is_the_same_job_with_all_its_attempts(queue: SqlQueue) -> None:
    (job_id,) = put(queue, PLAIN, 1, unique_key="u", tags=["a", "b"], priority=3, ordering_key="o", timeout_seconds=5.0)
    before = queue.job(job_id)
    (zombie,) = kill(queue)
    with pytest.raises(LeaseLost):
        queue.complete([zombie])
    assert queue.redrive("work", ids(job_id)) == Decided([job_id])
    row = queue.job(job_id)
    assert (row.state, row.attempt, row.lease_no, row.error) == ("queued", 0, 1, "failure of 0")
    same = ("id", "bucket", "priority", "max_attempts", "created_at", "unique_key", "ordering_key", "payload", "tags")
    for name in (*same, "timeout_seconds", "region", "backoff"):
        assert getattr(row, name) == getattr(before, name)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 0
    assert queue.redrive("work", ids(job_id)).skipped == {job_id: "it is queued"}
    for _ in range(2):
        with pytest.raises(LeaseLost):
            queue.complete([zombie])
        assert queue.heartbeat([zombie], lease_seconds=300).held == set()
        jobs = take(queue)
    assert jobs == []
    assert queue.job(job_id).lease_no == 2


def test_what_has_a_live_twin_stays_in_the_archive(queue: SqlQueue) -> None:
    put(queue, PLAIN, 1, unique_key="u")
    (old,) = kill(queue)
    put(queue, PLAIN, 1, unique_key="u")
    (newer,) = kill(queue)
    queue.enqueue(PLAIN, NewJob(Work(n=5), id=uuid4()))
    decided = queue.redrive("work", ALL)
    assert decided.changed == [newer.id]
    assert decided.skipped == {old.id: "a live job of the queue has the same id, or the unique key 'u'"}
    assert queue.job(old.id).state == "failed"
    queue.cancel("work", ids(newer.id))
    assert queue.redrive("work", ALL).changed == [old.id]


def test_redrive_takes_what_failed_or_was_cancelled(queue: SqlQueue) -> None:
    jobs = put(queue, PLAIN, 6)
    (failed,) = (job.id for job in kill(queue))
    (done,) = take(queue, 1)
    queue.complete([done])
    (cancelled, *_) = [job for job in jobs if job not in (failed, done.id)]
    queue.cancel("work", ids(cancelled))
    assert queue.redrive("work", ids(done.id, cancelled)).skipped == {
        done.id: "it ended as succeeded",
        cancelled: "it ended as cancelled",
    }
    assert queue.redrive("work", ALL).changed == [failed]
    assert queue.redrive("work", Selection(state="cancelled"), states=["failed", "cancelled"]).changed == [cancelled]
    for states in (["succeeded"], [], ["queued"], "nonsense"):
        with pytest.raises(InvalidInput, match="what can be redriven is failed or cancelled"):
            queue.redrive("work", ALL, states=states)
    for limit in (0, -1, True, 1.5):
        with pytest.raises(InvalidInput, match="limit is"):
            queue.redrive("work", ALL, limit=limit)  # type: ignore[arg-type]


def test_redrive_by_filter_and_up_to_a_limit(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    jobs = [
        NewJob(Work(n=n, note="odd" if n % 2 else "even"), tags=[f"t{n % 3}"], ordering_key=f"k{n % 5}")
        for n in range(2400)
    ]
    queue.enqueue_many(PLAIN, jobs)
    kill(queue, 1200)
    kill(queue, 1200)
    assert len(queue.redrive("work", ALL, limit=3).changed) == 3
    assert len(queue.redrive("work", Selection(error_contains="failure of 11"), limit=1).changed) == 1
    for job in take(queue):
        queue.finish([Ending(job, ArchiveState.CANCELLED)])
    found = queue.redrive("work", Selection(tags=["t0"], payload={"note": "odd"}, ordering_key="k4")).changed
    expected = [n for n in range(2400) if n % 3 == 0 and n % 2 and n % 5 == 4]
    assert set(numbers(take(queue, 1000))) <= set(expected)
    assert len(expected) - 4 <= len(found) <= len(expected)
    rest = queue.redrive("work", ALL).changed
    assert len(rest) + len(found) + 4 == len({*rest, *found}) + 4 == 2400
    assert queue.redrive("work", ALL) == Decided()


def test_redrive_by_the_moment_of_the_end(queue: SqlQueue) -> None:
    put(queue, PLAIN, 3)
    for _ in range(3):
        kill(queue)
    first, second, third = queue.jobs("work", archived=True)[::-1]
    assert second.finished_at is not None
    assert third.finished_at is not None
    assert queue.redrive("work", Selection(since=second.finished_at, before=third.finished_at)).changed == [second.id]
    assert queue.redrive("work", Selection(since=second.finished_at)).changed == [third.id]
    assert queue.redrive("work", Selection(before=LATER)).changed == [first.id]


def test_a_redriven_job_goes_before_those_of_its_key_that_came_after_it(queue: SqlQueue) -> None:
    put(queue, ORDERED, 5, ordering_key="k")
    (first,) = kill(queue)
    assert numbers(kill(queue)) == [1]
    (running,) = take(queue)
    assert set(queue.redrive("work", ALL).changed) > {first.id}
    assert take(queue) == []
    queue.requeue([(running, Retry("no"))])
    assert finish_all(queue) == [0, 1, 2, 3, 4]


def test_a_job_comes_back_before_or_after_a_decision_about_its_key_never_in_its_middle(queue: SqlQueue) -> None:
    put(queue, ORDERED, 2, ordering_key="k")
    (first,) = kill(queue)
    with waiting_for_the_key(queue, queue.redrive, "work", ALL) as redriven:
        assert queue.job(first.id).state == "failed"
    assert redriven.result(PATIENCE).changed == [first.id]
    assert finish_all(queue) == [0, 1]


def test_a_job_goes_back_into_a_bucket_that_is_in_use(queue: SqlQueue) -> None:
    queue.rebucket("work", 16)
    put(queue, PLAIN, 40)
    kill(queue, 40)
    queue.rebucket("work", 2)
    assert len(queue.redrive("work", ALL).changed) == 40
    assert queue.settings("work").claim_buckets == 2


def test_a_redrive_into_a_queue_that_was_given_turns_or_lost_them(queue: SqlQueue) -> None:
    put(queue, PLAIN, 2, ordering_key="k")
    kill(queue, 2)
    queue.create_queue(ORDERED)
    queue.redrive("work", ALL)
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE order_no IS NULL") == 0
    assert len(kill(queue, 2)) == 1
    queue.create_queue(PLAIN)
    queue.redrive("work", ALL)
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE order_no IS NOT NULL") == 0
    assert len(take(queue)) == 2


def test_two_who_redrive_at_once_bring_every_job_back_once(queue: SqlQueue) -> None:
    put(queue, PLAIN, 300)
    kill(queue, 300)
    start = threading.Barrier(3)

    def redrive() -> list[UUID]:
        start.wait(PATIENCE)
        return queue.redrive("work", ALL).changed

    with ThreadPoolExecutor(3) as pool:
        found = [future.result(PATIENCE) for future in [pool.submit(redrive) for _ in range(3)]]
    assert sorted(job for part in found for job in part) == sorted({job for part in found for job in part})
    assert sum(map(len, found)) == value(queue, "SELECT count(*) FROM {s}.job") == 300
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 0


def test_a_job_that_ended_twice_goes_back_from_its_latest_end(queue: SqlQueue) -> None:
    """No enqueue does that; two archives that were made one can."""
    job_id = uuid4()
    queue.enqueue(PLAIN, NewJob(Work(n=1, note="old"), id=job_id))
    kill(queue)
    rows(
        queue,
        "INSERT INTO {s}.job_archive SELECT later.* FROM {s}.job_archive AS a CROSS JOIN LATERAL jsonb_populate_record("
        "a, jsonb_build_object("
        "'payload', a.payload || '{{\"note\": \"new\"}}', 'finished_at', a.finished_at + interval '1 s')) AS later",
    )
    assert queue.redrive("work", ids(job_id)).changed == [job_id]
    assert '"new"' in queue.job(job_id).payload
    assert value(queue, "SELECT payload->>'note' FROM {s}.job_archive") == "old"
