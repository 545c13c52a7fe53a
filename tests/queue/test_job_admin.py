"""What operators decide about single jobs: cancel, hold, release, reschedule, reprioritise; also while consumers run."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput, LeaseLost, UnknownQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.outcome import Retry, Snooze
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.explain import Why
from dagster_sqlqueue.queue.job_admin import Completed
from dagster_sqlqueue.queue.selection import Selection
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, make_due, numbers, rows, until, value
from tests.support.decisions import ALL, ORDERED, PLAIN, TWO_A_KEY, finish_all, ids, put, take


def state(queue: SqlQueue, job: UUID) -> tuple[str, str | None]:
    row = queue.job(job)
    return row.state, row.error


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
    assert queue.heartbeat([running], lease_seconds=300).cancel_requested == {first}
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


@pytest.mark.parametrize(
    "back", [Retry("no"), Retry("no", after=3_600), Snooze(3_600), Snooze(datetime(2100, 1, 1, tzinfo=UTC))], ids=str
)
def test_one_that_is_to_be_cancelled_and_goes_back_keeps_its_keys_no_longer(
    queue: SqlQueue, back: Retry | Snooze
) -> None:
    spec = replace(ORDERED, backoff=Backoff.fixed(3_600))
    (first,) = put(queue, spec, 1, ordering_key="k", unique_key="u")
    (second,) = put(queue, spec, 1, ordering_key="k")
    (running,) = take(queue)
    assert queue.cancel("work", ids(first)).requested == [first]
    queue.requeue([(running, back)])
    found = queue.explain(first)
    assert [reason.why for reason in found.reasons] == [Why.CANCEL_REQUESTED]
    assert "It was asked to end while it ran: the next claim of its bucket ends it as cancelled" in found.text
    assert not found.claimable
    until(lambda: [job.id for job in take(queue)] == [second], "the next of the key")
    assert queue.job(first).state == "cancelled"
    assert queue.enqueue(spec, NewJob(Work(n=2), ordering_key="k", unique_key="u")) is not None


def test_one_that_is_to_be_cancelled_and_is_held_says_so(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    (running,) = take(queue)
    queue.cancel("work", ids(job))
    queue.hold([(running, "look")])
    assert "cancelled; it was asked to end while it ran." in queue.explain(job).text


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
    assert queue.reschedule("work", ids(live), 5).skipped == {live: "it is running"}
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
    with caller(queue.database.url.replace("+psycopg", "")) as other:
        other.execute(lock.encode(), [first])
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(queue.cancel, "work", ALL)
            until(lambda: queue.depth("work").live == 1)
            other.rollback()
            assert set(future.result(PATIENCE).changed) == {first, second}
        (third,) = put(queue, PLAIN, 1)
        monkeypatch.setattr("dagster_sqlqueue.queue.decision._PATIENCE_SECONDS", 0.05)
        other.execute(lock.encode(), [third])
        decided = queue.cancel("work", ids(third))
    assert decided.changed == []
    assert "somebody else is at it" in decided.skipped[third]


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


def test_a_delayed_job_is_due_at_its_moment(queue: SqlQueue) -> None:
    first, second = put(queue, PLAIN, 2)
    moments: list[Any] = [3600, 3600.0, datetime.now(UTC) + timedelta(hours=1)]
    for moment in moments:
        assert queue.reschedule("work", ids(first), moment).changed == [first]
        left = value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job WHERE id = %s", first)
        assert 3400 < left <= 3600
    assert [job.id for job in take(queue)] == [second]
    row = queue.job(first)
    assert row.run_at == row.available_at
    queue.reschedule("work", ids(first), datetime(2000, 1, 1, tzinfo=UTC))
    assert [job.id for job in take(queue)] == [first]


def test_a_delay_keeps_a_job_in_its_line(queue: SqlQueue) -> None:
    jobs = put(queue, ORDERED, 3, ordering_key="k")
    (running,) = take(queue)
    assert queue.job(jobs[1]).waits_for_turn
    queue.reschedule("work", ids(jobs[1]), 3600)
    assert queue.job(jobs[1]).waits_for_turn
    queue.complete([running])
    assert take(queue) == []
    queue.reschedule("work", ids(jobs[1]), 0)
    assert finish_all(queue) == [1, 2]


def test_a_delayed_job_keeps_no_place_that_another_of_its_key_could_use(queue: SqlQueue) -> None:
    jobs = put(queue, TWO_A_KEY, 5, ordering_key="k")
    running = take(queue)
    queue.reschedule("work", ids(jobs[2], jobs[3]), timedelta(hours=1))
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
        timedelta(seconds=-1),
        datetime(2030, 1, 1),
        before_the_years,
        1j,
    ]
    for moment in moments:
        with pytest.raises(InvalidInput, match="until is"):
            queue.reschedule("work", ids(job), moment)
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
                queue.reschedule("work", Selection(ordering_key=f"k{(turn + 1) % 6}"), 0.01)
                queue.reprioritise("work", Selection(ordering_key=f"k{(turn + 2) % 6}"), turn)
                queue.cancel("work", Selection(payload={"n": 30 * turn + 29}))
                queue.release_held("work", ALL)
                queue.redrive("work", ALL, limit=3)
            until(lambda: queue.depth("work").live == 0, "the end of all jobs")
        finally:
            stop.set()
        for consumer in consumers:
            consumer.result(PATIENCE)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 240
    assert value(queue, "SELECT count(DISTINCT id) FROM {s}.job_archive") == 240


def test_complete_held_ends_what_is_held_and_nothing_else(queue: SqlQueue) -> None:
    held, waiting, running, ended = put(queue, PLAIN, 4)
    claimed = {job.id: job for job in take(queue)}
    queue.complete([claimed.pop(ended)])
    lease = claimed.pop(running)
    queue.release(list(claimed.values()))
    queue.hold_queued("work", ids(held), "look")
    done = [Completed(job, f"person {n}", {"n": n}) for n, job in enumerate((held, waiting, running, ended))]
    decided = queue.complete_held("work", done)
    assert decided.changed == [held]
    assert decided.skipped == {waiting: "it is queued", running: "it is running", ended: "it ended as succeeded"}
    row = queue.job(held)
    assert (row.state, row.claimed_by, row.result, row.error) == ("succeeded", "person 0", '{"n": 0}', "look")
    assert queue.heartbeat([lease], lease_seconds=300).cancel_requested == set()
    for by in ("", " ", "\x00"):
        with pytest.raises(InvalidInput, match="give the name of the person who did the work"):
            queue.complete_held("work", [Completed(waiting, by)])
    with pytest.raises(InvalidInput, match="the selection names no jobs"):
        queue.complete_held("work", [])
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        queue.complete_held("work", [Completed(waiting, "anna", float("nan"))])


@pytest.mark.parametrize("spec", [ORDERED, TWO_A_KEY])
def test_complete_held_lets_the_key_go_on(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    first, second, third, fourth = put(queue, spec, 4, ordering_key="k")
    queue.hold_queued("work", ids(first), "look")
    if spec is ORDERED:
        assert take(queue) == []
    queue.complete_held("work", [Completed(first, "anna")])
    taken = [job.id for job in take(queue)]
    assert taken == ([second] if spec is ORDERED else [second, third])
    assert queue.job(fourth).state == "queued"


@pytest.mark.parametrize("verb", ["hold_queued", "release_held", "complete_held"])
def test_what_a_caller_adds_stands_or_falls_with_the_decision(queue: SqlQueue, verb: str) -> None:
    jobs = put(queue, PLAIN, 3)
    if verb != "hold_queued":
        queue.hold_queued("work", ALL, "look")
    before = {job: state(queue, job) for job in jobs}
    seen: list[UUID] = []

    def decide(also: Any) -> None:
        if verb == "complete_held":
            queue.complete_held("work", [Completed(job, "anna") for job in jobs], also=also)
        else:
            getattr(queue, verb)("work", ids(*jobs), *(["look"] if verb == "hold_queued" else []), also=also)

    def fail(executor: Executor, changed: Sequence[UUID]) -> None:
        executor.run("resume", {"queue": "work"})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        decide(fail)
    assert {job: state(queue, job) for job in jobs} == before
    decide(lambda _, changed: seen.extend(changed))
    assert sorted(seen) == sorted(jobs)
    assert {job: state(queue, job) for job in jobs} != before


def test_verbs_say_what_they_cannot_take(queue: SqlQueue) -> None:
    (job,) = put(queue, PLAIN, 1)
    (running,) = claim(queue)
    queue.release([running])
    refused = [
        (
            lambda: queue.cancel("work", Selection(state="failed")),
            "cancel applies to jobs that are queued or held or running",
        ),
        (lambda: queue.release_held("work", Selection(state="queued")), "release_held applies to jobs that are held"),
        (
            lambda: queue.hold_queued("work", Selection(state="held"), "x"),
            "hold_queued applies to jobs that are queued",
        ),
        (lambda: queue.redrive("work", Selection(state="held")), "redrive applies to jobs that are failed"),
        (lambda: queue.jobs("work", Selection(state="failed")), "a list of live jobs applies to jobs that are"),
        (
            lambda: queue.jobs("work", Selection(state="held"), archived=True),
            "a list of ended jobs applies to jobs that are",
        ),
        (lambda: queue.hold_queued("work", ALL, " "), "the reason is ' '"),
        (lambda: queue.hold_queued("work", ALL, "\x00"), r"the reason is '\\x00'"),
        (lambda: queue.hold([(running, "")]), "the reason is ''"),
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
        lambda: queue.reschedule("nope", ids(job), 3),
    ):
        with pytest.raises(UnknownQueue, match="no queue 'nope'"):
            missing()
    assert queue.job(job).state == "queued"
