"""What operators decide about single jobs: cancel, redrive, hold, release, delay, reprioritise; and finding jobs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, LeaseLost, UnknownJob, UnknownQueue
from dagster_sqlqueue.model import ArchiveState, ClaimedJob
from dagster_sqlqueue.outcomes import Retry, Snooze
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.selection import Decided, Selection
from tests.core.support import Work, caller, make_due, numbers, rows, until, value

PLAIN = QueueSpec("work", Work, bucket_count=4, max_attempts=3, backoff=Backoff(0, jitter=0))
ORDERED = replace(PLAIN, ordered=True)
TWO_A_KEY = replace(PLAIN, max_running_per_key=2)
ALL = Selection(all=True)
LATER = datetime.now(UTC) + timedelta(days=1)


def take(queue: SqlQueue, limit: int = 100) -> list[ClaimedJob]:
    return queue.claim("work", limit=limit, worker="w")


def put(queue: SqlQueue, spec: QueueSpec[Work], count: int, **more: Any) -> list[UUID]:
    """So many jobs, numbered from 0, as they were enqueued."""
    queue.create_queue(spec)
    ids = [queue.enqueue(spec, NewJob(Work(n=n), **more)) for n in range(count)]
    return [job for job in ids if job is not None]


def ids(*jobs: UUID) -> Selection:
    return Selection(ids=jobs)


def state(queue: SqlQueue, job: UUID) -> tuple[str, str | None]:
    row = queue.job(job)
    return row.state, row.error


def finish_all(queue: SqlQueue) -> list[int]:
    """The numbers of the jobs in the order in which they ran, one batch of turns after the other."""
    ran: list[int] = []
    while jobs := take(queue):
        ran += numbers(jobs)
        queue.complete(jobs)
    return ran


def kill(queue: SqlQueue, count: int = 1) -> list[ClaimedJob]:
    """Jobs that went to the dead letter, as their consumer had claimed them."""
    jobs = take(queue, count)
    queue.finish([Ending(job, ArchiveState.FAILED, error=f"failure of {numbers([job])[0]}") for job in jobs])
    return jobs


# Cancel


def test_cancel_ends_what_waits_and_asks_what_runs(queue: SqlQueue) -> None:
    first, second, third, fourth = put(queue, PLAIN, 4)
    claimed = {job.id: job for job in take(queue)}
    running = claimed.pop(first)
    queue.release(list(claimed.values()))
    queue.hold_queued("work", ids(second), "look")
    decided = queue.cancel("work", ids(first, second, third), reason="not needed\x00")
    assert (set(decided.changed), decided.requested, decided.skipped) == ({second, third}, [first], {})
    assert state(queue, second) == state(queue, third) == ("cancelled", "not needed")
    assert queue.job(first).cancel_requested_at is not None
    assert queue.heartbeat([running], lease_seconds=30).cancel_requested == {first}
    again = queue.cancel("work", ids(first, second, fourth))
    assert (again.changed, again.requested, again.skipped) == ([fourth], [first], {second: "it ended as cancelled"})
    assert state(queue, fourth)[1] == "cancelled by an operator"


def test_a_running_job_that_is_to_be_cancelled(queue: SqlQueue) -> None:
    put(queue, PLAIN, 3)
    retried, left, completed = take(queue)
    assert len(queue.cancel("work", ALL).requested) == 3
    queue.requeue([(retried, Retry("no"))])
    queue.complete([completed])
    make_due(queue)
    assert take(queue) == []
    assert [queue.job(job.id).state for job in (retried, left, completed)] == ["cancelled", "cancelled", "succeeded"]
    with pytest.raises(LeaseLost):
        queue.complete([left])


def test_ids_of_which_nothing_can_be_decided_say_why(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    other = replace(PLAIN, name="other")
    queue.create_queue(other)
    foreign = queue.enqueue(other, Work(n=0))
    assert foreign is not None
    nobody = uuid4()
    (done,) = put(queue, PLAIN, 1)
    queue.complete(take(queue))
    decided = queue.cancel("work", ids(foreign, nobody, done))
    assert decided.changed == []
    assert decided.skipped == {
        foreign: "it belongs to queue 'other'",
        nobody: "there is no such job: it was never enqueued, or it ended and was trimmed since",
        done: "it ended as succeeded",
    }
    (live,) = put(queue, PLAIN, 1)
    assert queue.release_held("work", ids(live)).skipped == {live: "it is queued"}
    take(queue)
    assert queue.delay("work", ids(live), 5).skipped == {live: "it is running"}
    assert queue.hold_queued("work", ids(live), "x").skipped == {live: "it is running"}


def test_cancelling_the_head_of_a_key_lets_the_next_one_run(queue: SqlQueue) -> None:
    for spec, at_once in ((ORDERED, 1), (TWO_A_KEY, 2)):
        jobs = put(queue, spec, 6, ordering_key="k")
        running = take(queue)
        assert len(running) == at_once
        queue.requeue([(running[0], Snooze(3600))])
        queue.cancel("work", ids(jobs[0], jobs[4]))
        if at_once == 1:
            assert numbers(take(queue)) == [1]
        else:
            assert numbers(take(queue)) == [2]
        assert queue.cancel("work", ALL).skipped == {}
        make_due(queue)
        assert take(queue) == []
        assert queue.depth("work").live == 0


def test_cancelling_all_of_an_ordered_queue_meets_every_job_once(queue: SqlQueue) -> None:
    queue.create_queue(ORDERED)
    queue.enqueue_many(ORDERED, [NewJob(Work(n=n), ordering_key=f"k{n % 7}", priority=n % 3) for n in range(2500)])
    running = take(queue, 20)
    decided = queue.cancel("work", ALL)
    assert len(set(decided.changed)) == len(decided.changed) == 2500 - len(running)
    assert set(decided.requested) == {job.id for job in running}
    queue.complete(running)
    assert queue.depth("work").live == 0


def test_jobs_that_somebody_else_is_at_are_waited_for_a_little(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = put(queue, PLAIN, 2)
    lock = f"SELECT FROM {queue.database.schema}.job WHERE id = %s FOR UPDATE"
    with caller(queue.database.engine.url.render_as_string(False).replace("+psycopg", "")) as other:
        other.execute(lock.encode(), [first])
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(queue.cancel, "work", ALL)
            until(lambda: queue.depth("work").live == 1)
            other.rollback()
            assert set(future.result(30).changed) == {first, second}
        (third,) = put(queue, PLAIN, 1)
        monkeypatch.setattr("dagster_sqlqueue.deciding._PATIENCE_SECONDS", 0.05)
        other.execute(lock.encode(), [third])
        decided = queue.cancel("work", ids(third))
    assert decided.changed == []
    assert "somebody else is at it" in decided.skipped[third]


# Hold and release


def test_held_jobs_wait_for_somebody_and_keep_their_attempts(queue: SqlQueue) -> None:
    first, second = put(queue, PLAIN, 2)
    queue.requeue([(job, Retry("no")) for job in take(queue)])
    assert queue.hold_queued("work", ids(first), "look at it").changed == [first]
    assert state(queue, first) == ("held", "look at it")
    assert queue.job(first).available_at is None
    assert [job.id for job in take(queue)] == [second]
    assert queue.release_held("work", ALL).changed == [first]
    (job,) = take(queue)
    assert (job.id, job.attempt) == (first, 2)


def test_holding_the_head_stops_an_ordered_key_and_makes_room_otherwise(queue: SqlQueue) -> None:
    jobs = put(queue, ORDERED, 4, ordering_key="k")
    queue.hold_queued("work", ids(jobs[0], jobs[2]), "wait")
    assert take(queue) == []
    queue.release_held("work", ids(jobs[0]))
    assert finish_all(queue) == [0, 1]
    queue.release_held("work", ALL)
    assert finish_all(queue) == [2, 3]
    jobs = put(queue, TWO_A_KEY, 5, ordering_key="k")
    running = take(queue)
    queue.requeue([(job, Snooze(3600)) for job in running])
    waiting = take(queue)
    assert len(waiting) == 2
    queue.requeue([(job, Snooze(0)) for job in waiting])
    queue.hold_queued("work", ids(*(job.id for job in waiting)), "wait")
    assert numbers(take(queue)) == [4]


def test_a_release_is_the_later_word_after_a_cancel(queue: SqlQueue) -> None:
    (job_id,) = put(queue, PLAIN, 1)
    (job,) = take(queue)
    queue.cancel("work", ALL)
    queue.hold([(job, "its handler did not end it")])
    queue.release_held("work", ids(job_id))
    assert len(take(queue)) == 1


# Delay and reprioritise


def test_a_delayed_job_is_due_at_its_moment(queue: SqlQueue) -> None:
    first, second = put(queue, PLAIN, 2)
    moments: list[Any] = [3600, 3600.0, datetime.now(UTC) + timedelta(hours=1)]
    for moment in moments:
        assert queue.delay("work", ids(first), moment).changed == [first]
        left = value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job WHERE id = %s", first)
        assert 3400 < left <= 3600
    assert [job.id for job in take(queue)] == [second]
    row = queue.job(first)
    assert row.run_at == row.available_at
    queue.delay("work", ids(first), datetime(2000, 1, 1, tzinfo=UTC))
    assert [job.id for job in take(queue)] == [first]


def test_a_delay_keeps_a_job_in_its_line(queue: SqlQueue) -> None:
    jobs = put(queue, ORDERED, 3, ordering_key="k")
    (running,) = take(queue)
    assert queue.job(jobs[1]).waits_for_turn
    queue.delay("work", ids(jobs[1]), 3600)
    assert queue.job(jobs[1]).waits_for_turn
    queue.complete([running])
    assert take(queue) == []
    queue.delay("work", ids(jobs[1]), 0)
    assert finish_all(queue) == [1, 2]


def test_a_delayed_job_keeps_no_place_that_another_of_its_key_could_use(queue: SqlQueue) -> None:
    jobs = put(queue, TWO_A_KEY, 5, ordering_key="k")
    running = take(queue)
    queue.delay("work", ids(jobs[2], jobs[3]), 3600)
    queue.complete(running)
    assert numbers(take(queue)) == [4]
    make_due(queue)
    assert len(take(queue)) == 2


def test_a_delay_that_is_none(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    before_the_years = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))
    moments: list[Any] = [
        -1,
        float("nan"),
        float("inf"),
        1e12,
        True,
        "1",
        None,
        datetime(2030, 1, 1),
        before_the_years,
        1j,
    ]
    for moment in moments:
        with pytest.raises(InvalidInput, match="until is"):
            queue.delay("work", ids(job), moment)
    assert len(take(queue)) == 1


def test_another_priority(queue: SqlQueue) -> None:
    first, second, third = put(queue, replace(PLAIN, bucket_count=1), 3)
    queue.rebucket("work", 1)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    (running,) = take(queue, 1)
    assert queue.reprioritise("work", ids(third, first), 7).changed
    assert queue.job(third).priority == queue.job(first).priority == 7
    queue.release([running])
    assert [job.id for job in take(queue)] == [third, first, second]
    assert len(queue.reprioritise("work", ALL, 0).changed) == 3
    for priority in (-1, 10, True, 1.0, "1", None):
        with pytest.raises(InvalidInput, match="priority is"):
            queue.reprioritise("work", ALL, priority)  # type: ignore[arg-type]


# Redrive


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
        assert queue.heartbeat([zombie], lease_seconds=30).held == set()
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
    with ThreadPoolExecutor(1) as pool:
        with queue.database.transaction() as claim:
            claim.run("key_wait", {"queue": "work", "keys": ["k"]})
            future = pool.submit(queue.redrive, "work", ALL)
            until(lambda: value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
            assert queue.job(first.id).state == "failed"
        assert future.result(30).changed == [first.id]
    assert finish_all(queue) == [0, 1]


def test_a_job_goes_back_into_a_bucket_that_is_in_use(queue: SqlQueue) -> None:
    queue.rebucket("work", 16)
    put(queue, PLAIN, 40)
    kill(queue, 40)
    queue.rebucket("work", 2)
    assert len(queue.redrive("work", ALL).changed) == 40
    assert queue.settings("work").lanes == 2


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
        start.wait(10)
        return queue.redrive("work", ALL).changed

    with ThreadPoolExecutor(3) as pool:
        found = [future.result(30) for future in [pool.submit(redrive) for _ in range(3)]]
    assert sorted(job for part in found for job in part) == sorted({job for part in found for job in part})
    assert sum(map(len, found)) == value(queue, "SELECT count(*) FROM {s}.job") == 300
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 0


def test_a_job_that_ended_twice_goes_back_from_its_latest_end(queue: SqlQueue) -> None:
    job_id = uuid4()
    for note in ("old", "new"):
        queue.enqueue(PLAIN, NewJob(Work(n=1, note=note), id=job_id))
        kill(queue)
    assert queue.redrive("work", ids(job_id)).changed == [job_id]
    assert '"new"' in queue.job(job_id).payload
    assert value(queue, "SELECT payload->>'note' FROM {s}.job_archive") == "old"


# Decisions while consumers run


def test_decisions_while_consumers_run_lose_nothing_and_end_nothing_twice(queue: SqlQueue, url: str) -> None:
    queue.create_queue(ORDERED)
    queue.enqueue_many(ORDERED, [NewJob(Work(n=n), ordering_key=f"k{n % 6}") for n in range(240)])
    stop = threading.Event()

    def consume(shared: SqlQueue) -> None:
        while not stop.is_set():
            jobs = take(shared, 5)
            if not jobs:
                stop.wait(0.005)
            failed = [job for job in jobs if numbers([job])[0] % 7 == 0 and job.attempt == 1]
            shared.finish([Ending(job, ArchiveState.FAILED, error="seven") for job in failed])
            shared.finish([Ending(job, ArchiveState.SUCCEEDED) for job in jobs if job not in failed])

    with SqlQueue(url, schema=queue.database.schema) as shared, ThreadPoolExecutor(2) as pool:
        consumers = [pool.submit(consume, shared) for _ in range(2)]
        try:
            for turn in range(8):
                queue.hold_queued("work", Selection(ordering_key=f"k{turn % 6}"), "wait")
                queue.delay("work", Selection(ordering_key=f"k{(turn + 1) % 6}"), 0.01)
                queue.reprioritise("work", Selection(ordering_key=f"k{(turn + 2) % 6}"), turn)
                queue.cancel("work", Selection(payload={"n": 30 * turn + 29}))
                queue.release_held("work", ALL)
                queue.redrive("work", ALL, limit=3)
            until(lambda: queue.depth("work").live == 0, "the end of all jobs")
        finally:
            stop.set()
        for consumer in consumers:
            consumer.result(30)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 240
    assert value(queue, "SELECT count(DISTINCT id) FROM {s}.job_archive") == 240


# Finding


def test_a_job_can_be_seen_wherever_it_is(queue: SqlQueue) -> None:
    (job_id,) = put(queue, ORDERED, 1, ordering_key="k", tags=["t"], backoff=Backoff(1, jitter=0))
    row = queue.job(job_id)
    assert (row.queue, row.state, row.archived, row.tags, row.payload) == (
        "work",
        "queued",
        False,
        ["t"],
        '{"n": 0, "note": ""}',
    )
    assert (row.order_no is not None, row.available_at == row.run_at, row.backoff) == (True, True, [1, 2, 3600, 0])
    (job,) = take(queue)
    assert (queue.job(str(job_id)).state, queue.job(job_id).claimed_by) == ("running", "w")
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"a": 1})])
    ended = queue.job(job_id)
    assert (ended.state, ended.archived, ended.result, ended.available_at) == ("succeeded", True, '{"a": 1}', None)
    with pytest.raises(UnknownJob, match="there is no job 0"):
        queue.job(UUID(int=0))
    with pytest.raises(InvalidInput, match="'nope' is no job id"):
        queue.job("nope")


def test_lists_are_in_the_order_of_claims_and_of_ends(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    for n in range(30):
        queue.enqueue(PLAIN, NewJob(Work(n=n), priority=n % 3, run_at=LATER if n % 5 == 0 else None))
    queue.hold_queued("work", Selection(payload={"n": 17}), "x")
    listed = [row.id for row in queue.jobs("work")]
    assert len(listed) == 30
    assert queue.jobs("work")[-1].state == "held"
    assert [row.id for row in queue.jobs("work", limit=7)] == listed[:7]
    assert [row.state for row in queue.jobs("work", Selection(state="held"))] == ["held"]
    assert queue.jobs("work", archived=True) == []
    ended = [kill(queue)[0].id for _ in range(4)]
    assert [row.id for row in queue.jobs("work", archived=True)] == ended[::-1]
    assert [row.id for row in queue.jobs("work", archived=True, limit=2)] == ended[:1:-1]
    assert queue.jobs("work", Selection(state="succeeded"), archived=True) == []
    assert {row.id for row in queue.jobs("work", ids(*ended), archived=True)} == set(ended)
    assert queue.jobs("work", ids(*ended)) == []


def test_every_condition_of_a_selection(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_sqlqueue.finding._SCAN", 3)
    queue.create_queue(PLAIN)
    for n in range(40):
        key = f"k{n % 4}" if n % 2 else None
        job = NewJob(
            Work(n=n, note="a" if n % 3 else "b'%"), ordering_key=key, tags=[f"t{n % 5}", "all"], priority=n % 2
        )
        queue.enqueue(PLAIN, job)
    jobs = {int(row.payload.split()[1].strip(",")): row for row in queue.jobs("work")}
    fitting = {
        Selection(tags=["t3", "all"]): lambda n: n % 5 == 3,
        Selection(payload='{"note": "b\'%"}'): lambda n: n % 3 == 0,
        Selection(ordering_key="k3"): lambda n: n % 4 == 3,
        Selection(state="queued", tags=["t0"]): lambda n: n % 5 == 0,
        Selection(since=jobs[10].created_at): lambda n: n >= 10,
        Selection(since=jobs[10].created_at, before=jobs[20].created_at): lambda n: 10 <= n < 20,
        Selection(error_contains="%"): lambda n: False,
        ALL: lambda n: True,
    }
    for selection, fits in fitting.items():
        found = [row.id for row in queue.jobs("work", selection)]
        assert sorted(found) == sorted(row.id for n, row in jobs.items() if fits(n)), selection
        assert sorted(queue.reprioritise("work", selection, 4).changed) == sorted(found)
        assert len(queue.jobs("work", selection, limit=2)) == min(2, len(found))
    queue.hold_queued("work", ids(jobs[1].id), "100 %")
    assert [row.id for row in queue.jobs("work", Selection(error_contains="%"))] == [jobs[1].id]
    kill(queue, 39)
    for selection, fits in fitting.items():
        if selection.state or selection.since or selection.error_contains:
            continue
        found = [row.id for row in queue.jobs("work", selection, archived=True)]
        assert sorted(found) == sorted(row.id for n, row in jobs.items() if fits(n) and n != 1)
    assert len(queue.jobs("work", Selection(error_contains="failure of 3"), archived=True)) == 11


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "names no jobs"),
        ({"ids": []}, "names no jobs"),
        ({"ids": ["nope"]}, "'nope' is no job id"),
        ({"ids": "0190"}, "give a sequence"),
        ({"ids": [uuid4()], "all": True}, "ids and all=True at once"),
        ({"ids": [uuid4()], "tags": ["a"]}, "ids and tags at once"),
        ({"all": True, "state": "held"}, "all=True and state at once"),
        ({"tags": "abc"}, "give a sequence"),
        ({"tags": [""]}, "tags holds ''"),
        ({"tags": ["a\x00"]}, "NUL"),
        ({"payload": "{"}, "is not JSON"),
        ({"payload": "[1]"}, "is not a JSON object"),
        ({"payload": {"a": float("nan")}}, "is not JSON"),
        ({"payload": {"a": "\ud800"}}, "lone surrogate"),
        ({"payload": {"a": {1, 2}}}, "is not JSON"),
        ({"ordering_key": 7}, "ordering_key holds 7"),
        ({"error_contains": ""}, "error_contains holds ''"),
        ({"state": "dead"}, "state is 'dead'"),
        ({"before": datetime(2030, 1, 1)}, "the selection's before is"),
        ({"since": "yesterday"}, "the selection's since is"),
    ],
)
def test_a_selection_that_is_none(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Selection(**wrong)


def test_verbs_say_what_they_cannot_take(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    refused = [
        (
            lambda: queue.cancel("work", Selection(state="failed")),
            "cancel is about jobs that are queued or held or running",
        ),
        (lambda: queue.release_held("work", Selection(state="queued")), "release_held is about jobs that are held"),
        (lambda: queue.hold_queued("work", Selection(state="held"), "x"), "hold_queued is about jobs that are queued"),
        (lambda: queue.redrive("work", Selection(state="held")), "redrive is about jobs that are failed"),
        (lambda: queue.jobs("work", Selection(state="failed")), "a list of live jobs is about"),
        (lambda: queue.jobs("work", Selection(state="held"), archived=True), "a list of ended jobs is about"),
        (lambda: queue.hold_queued("work", ALL, " "), "the reason is ' '"),
        (lambda: queue.cancel("work", ALL, reason=None), "the reason is None"),  # type: ignore[arg-type]
        (lambda: queue.jobs("work", limit=0), "limit is 0"),
        (lambda: queue.jobs("work", limit=10_001), "limit is 10001"),
        (lambda: queue.cancel("No!", ALL), "queue name 'No!'"),
    ]
    for verb, says in refused:
        with pytest.raises(InvalidInput, match=says):
            verb()
    for missing in (
        lambda: queue.cancel("nope", ALL),
        lambda: queue.redrive("nope", ids(job)),
        lambda: queue.jobs("nope"),
        lambda: queue.delay("nope", ids(job), 3),
    ):
        with pytest.raises(UnknownQueue, match="no queue 'nope'"):
            missing()
    assert queue.job(job).state == "queued"
