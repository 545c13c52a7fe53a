"""A job whose unique key is taken replaces the one that waits, in its place; and sending again lands once."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import Enqueued
from tests.gate.patience import sized
from tests.support import Work, caller, claim, make_due, numbers, rows, until, value
from tests.support.enqueuing import LATER, live, put


def put_as_many(queue: SqlQueue, spec: QueueSpec[Work], n: int, key: str | None = "u", **more: Any) -> Enqueued:
    return queue.enqueue_many(spec, [NewJob(Work(n=n), unique_key=key, **more)], on_conflict="replace")


@pytest.mark.parametrize("one", [put, put_as_many])
def test_a_waiting_job_takes_everything_but_its_place(
    queue: SqlQueue, spec: QueueSpec[Work], one: Callable[..., Any]
) -> None:
    first = queue.enqueue(
        spec, NewJob(Work(n=1), unique_key="u", ordering_key="a", tags=["old"], timeout_seconds=5, region="local")
    )
    before = live(queue, "id, created_at, bucket, ordering_key, region, lease_no")
    made = one(
        queue,
        spec,
        2,
        run_at=LATER,
        priority=7,
        tags=["new", "words"],
        max_attempts=9,
        timeout_seconds=70.5,
        backoff=Backoff.fixed(3),
        ordering_key="b",
    )
    assert made in (first, Enqueued(0, 0, 1))
    assert live(queue, "id, created_at, bucket, ordering_key, region, lease_no") == before
    ((payload, run_at, available_at, *rest),) = live(
        queue, "payload, run_at, available_at, priority, tags, max_attempts, timeout_seconds, backoff"
    )
    assert (payload, run_at, available_at) == ({"n": 2, "note": ""}, LATER, LATER)
    assert rest == [7, ["new", "words"], 9, 70.5, [3.0, 1.0, 3.0, 0.0]]
    one(queue, spec, 3)
    ((run_at, due, *rest),) = live(
        queue, "run_at, available_at <= now(), priority, tags, max_attempts, timeout_seconds, backoff"
    )
    assert due
    assert run_at < LATER
    assert rest == [0, [], spec.max_attempts, None, None]
    assert numbers(claim(queue)) == [3]


@pytest.mark.parametrize("one", [put, put_as_many])
def test_a_running_or_held_job_is_left_as_it_is(
    queue: SqlQueue, spec: QueueSpec[Work], one: Callable[..., Any]
) -> None:
    put(queue, spec, 1, "running")
    put(queue, spec, 2, "held")
    jobs = {job.unique_key: job for job in claim(queue)}
    queue.hold([(jobs["held"], "look at it")])
    before = live(queue, "id, state, payload, CAST(available_at AS text), run_at")
    for key in ("running", "held"):
        assert one(queue, spec, 9, key) in (None, Enqueued(0, 1, 0))
    assert live(queue, "id, state, payload, CAST(available_at AS text), run_at") == before


def test_the_new_content_begins_anew(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    first = put(queue, spec, 1)
    for _ in range(2):
        (job,) = claim(queue)
        queue.fail(job, "broken", backoff=Backoff(0))
        make_due(queue)
    rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
    assert put(queue, spec, 2, max_attempts=1) == first
    (job,) = claim(queue)
    assert (job.id, job.attempt, job.error, job.cancel_requested, job.lease_no) == (first, 1, None, False, 3)


def test_of_several_in_one_call_the_last_wins_as_if_each_had_come_alone(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    running = put(queue, spec, 0, "runs")
    assert [job.id for job in claim(queue)] == [running]
    waiting = put(queue, spec, 0, "waits")
    ids = [uuid4() for _ in range(7)]
    keys = ["new", "waits", None, "runs", "new", "waits", "new"]
    jobs = [NewJob(Work(n=n + 1), unique_key=key, id=ids[n]) for n, key in enumerate(keys)]
    assert queue.enqueue_many(spec, jobs, on_conflict="replace") == Enqueued(2, 1, 4)
    found = {row[0]: row[1]["n"] for row in live(queue, "id, payload")}
    assert found == {waiting: 6, running: 0, ids[0]: 7, ids[2]: 3}


def test_the_last_wins_also_across_chunks(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    keys = sized(2_100, 2_500)
    jobs = [NewJob(Work(n=n), unique_key=f"u{n % keys}") for n in range(2 * keys)]
    assert queue.enqueue_many(spec, jobs, on_conflict="replace") == Enqueued(keys, 0, keys)
    assert value(queue, "SELECT min(CAST(payload->>'n' AS integer)) FROM {s}.job") == keys
    assert value(queue, "SELECT count(*) FROM {s}.job") == keys


def test_jobs_without_a_unique_key_replace_nothing(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    same = uuid4()
    assert put(queue, spec, 1, None, id=same) == same
    assert put(queue, spec, 2, None, id=same) is None
    assert queue.enqueue_many(
        spec, [NewJob(Work(n=3), id=same), NewJob(Work(n=4), unique_key="u"), Work(n=5)], on_conflict="replace"
    ) == Enqueued(2, 1, 0)


def test_a_unique_key_of_another_queue_is_another(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    other = replace(spec, name="other")
    queue.create_queue(other)
    assert put(queue, spec, 1) != put(queue, other, 2)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 2


def test_an_id_of_another_live_job_is_named(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    theirs, mine = uuid4(), uuid4()
    queue.enqueue(spec, NewJob(Work(n=1), id=theirs))
    with caller(url) as connection:
        for call in (put, put_as_many):
            with pytest.raises(
                InvalidInput, match=rf"row 0: id {theirs} belongs to a live job of queue 'work'.*None.*'u'"
            ):
                call(queue, spec, 2, id=theirs)
        with pytest.raises(InvalidInput, match=f"id {theirs} belongs"):
            queue.enqueue(
                spec,
                NewJob(Work(n=2), id=theirs, unique_key="u"),
                on_conflict="replace",
                connection=connection,
            )
        queue.enqueue(spec, Work(n=3), connection=connection)
        connection.commit()
    jobs = [NewJob(Work(n=4), id=mine, unique_key="u"), NewJob(Work(n=5), id=mine, unique_key="v")]
    with pytest.raises(InvalidInput, match=f"row 1: id {mine} is also the id of row 0, whose unique key is 'u'"):
        queue.enqueue_many(spec, jobs, on_conflict="replace")
    assert sorted(row[0] for row in live(queue, "CAST(payload->>'n' AS integer)")) == [1, 3]


def test_replacing_meets_the_job_that_another_transaction_is_just_enqueuing(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    with caller(url) as connection:
        first = queue.enqueue(spec, NewJob(Work(n=1), unique_key="u"), connection=connection)
        found: list[UUID | None] = []
        second = threading.Thread(target=lambda: found.append(put(queue, spec, 2)))
        second.start()
        until(lambda: rows(queue, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"), "the wait")
        connection.commit()
        second.join()
    assert found == [first]
    assert live(queue, "CAST(payload->>'n' AS integer)") == [(2,)]


def test_producers_and_consumers_that_race_for_few_keys_lose_nothing(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, max_running_per_key=1))
    calls = 60
    landed: list[tuple[int, UUID | None]] = []
    stop = threading.Event()
    ended: list[UUID] = []

    def produce(number: int) -> None:
        for n in range(calls):
            sent = calls * number + n
            moment = LATER if n % 5 == 0 else None
            landed.append((sent, put(queue, spec, sent, f"u{sent % 6}", ordering_key=f"k{sent % 3}", run_at=moment)))

    def consume() -> None:
        while not stop.is_set():
            jobs = claim(queue, 3)
            queue.complete(jobs)
            ended.extend(job.id for job in jobs)

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for thread in (*producers, *consumers):
        thread.start()
    for thread in producers:
        thread.join()
    stop.set()
    for thread in consumers:
        thread.join()
    assert len(landed) == 3 * calls
    # What was not left out as a duplicate of a running job is live or was worked off; nothing waits for nobody.
    rows(
        queue,
        "UPDATE {s}.job SET run_at = now(), available_at = LEAST(available_at, now()) WHERE available_at < 'infinity'",
    )
    until(lambda: not (queue.complete(claim(queue)) or rows(queue, "SELECT 1 FROM {s}.job")), "the end of the backlog")
    accepted = {made for _, made in landed if made is not None}
    assert accepted == {row[0] for row in rows(queue, "SELECT id FROM {s}.job_archive")}
    assert len(ended) == len(set(ended))
    contents = rows(
        queue,
        "SELECT count(*) FROM {s}.job_archive WHERE CAST(payload->>'n' AS integer) = ANY (%s)",
        [sent for sent, made in landed if made is not None],
    )
    assert contents == [(len(accepted),)]


def test_in_an_ordered_queue_the_replaced_keep_their_place_and_their_parking(
    queue: SqlQueue, ordered: QueueSpec[Work]
) -> None:
    for n, key in enumerate("abc"):
        put(queue, ordered, n, key, ordering_key="k")
    (first,) = claim(queue)
    assert claim(queue) == []
    parked = "SELECT count(*) FROM {s}.job WHERE state = 'queued' AND available_at = 'infinity'"
    assert value(queue, parked) == 2
    assert put(queue, ordered, 12, "c", ordering_key="k")
    assert put(queue, ordered, 11, "b", ordering_key="k")
    assert value(queue, parked) == 2
    queue.complete([first])
    (second,) = claim(queue)
    assert numbers([second]) == [11]
    queue.complete([second])
    assert numbers(claim(queue)) == [12]


def test_in_an_ordered_queue_one_that_is_put_off_holds_its_key_up_and_nothing_is_lost(
    queue: SqlQueue, ordered: QueueSpec[Work]
) -> None:
    for n, key in enumerate("abc"):
        put(queue, ordered, n, key, ordering_key="k")
    (first,) = claim(queue)
    claim(queue)
    put(queue, ordered, 11, "b", ordering_key="k", run_at=LATER)
    queue.complete([first])
    assert claim(queue) == []
    put(queue, ordered, 21, "b", ordering_key="k")
    (second,) = claim(queue)
    queue.complete([second])
    (third,) = claim(queue)
    assert numbers([second, third]) == [21, 2]


def test_one_that_is_put_off_makes_room_for_another_of_its_key(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    limited = replace(spec, max_running_per_key=1)
    queue.create_queue(limited)
    for n, key in enumerate("abc"):
        put(queue, limited, n, key, ordering_key="k")
    (first,) = claim(queue)
    assert claim(queue) == []
    queue.complete([first])
    # The second was let in by that; put off, it gives its place to the third.
    put(queue, limited, 11, "b", ordering_key="k", run_at=LATER)
    assert numbers(claim(queue)) == [2]


def test_a_replacement_that_is_sent_again_lands_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    old = put(queue, spec, 1)
    again = {"on_conflict": "replace"}
    sent = [NewJob(Work(n=2), unique_key="u", id=uuid4()), NewJob(Work(n=3), unique_key="v", id=uuid4())]
    assert queue.enqueue_many(spec, sent, on_conflict="replace") == Enqueued(1, 0, 1)
    assert queue.enqueue_many(spec, sent, **again) == Enqueued(0, 2, 0)
    # What came after it stays, when it comes again.
    assert put(queue, spec, 4) == old
    assert queue.enqueue_many(spec, sent, **again) == Enqueued(0, 2, 0)
    assert sorted(row[0] for row in live(queue, "CAST(payload->>'n' AS integer)")) == [3, 4]
    queue.complete(claim(queue))
    assert queue.enqueue_many(spec, sent, **again) == Enqueued(0, 2, 0)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0
    fresh = [NewJob(Work(n=5), unique_key="u", id=uuid4()), *sent]
    assert queue.enqueue_many(spec, fresh, **again) == Enqueued(1, 2, 0)
    assert live(queue, "CAST(payload->>'n' AS integer)") == [(5,)]


def test_what_is_known_of_replacements_is_forgotten_after_a_week(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    put(queue, spec, 1)
    put(queue, spec, 2)
    assert value(queue, "SELECT count(*) FROM {s}.job_replaced") == 0
    put(queue, spec, 3, id=uuid4())
    rows(queue, "UPDATE {s}.job_replaced SET noted_at = noted_at - interval '8 days'")
    last = uuid4()
    put(queue, spec, 4, id=last)
    assert rows(queue, "SELECT id FROM {s}.job_replaced") == [(last,)]


@pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
def test_a_commit_without_an_answer_is_sent_again(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, on_conflict: Any
) -> None:
    put(queue, spec, 0)
    jobs = [NewJob(Work(n=n), unique_key="u" if n == 1 else None, id=uuid4()) for n in (1, 2, 3)]
    with caller(url) as connection:
        queue.enqueue_many(spec, [*jobs, {"bad": 1}], connection=connection, on_conflict=on_conflict, on_bad_row="skip")
        connection.commit()
    done = queue.enqueue_many(spec, [*jobs, {"bad": 1}], on_conflict=on_conflict, on_bad_row="skip")
    assert (done.inserted, done.duplicates, done.replaced, len(done.rejected)) == (0, 3, 0, 1)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 3
