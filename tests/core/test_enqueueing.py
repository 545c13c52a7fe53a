"""Putting in: what replaces what, what is left out, where it lands, and that sending again lands once."""

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, SchemaMissing, UnknownQueue
from dagster_sqlqueue.hints import HeadHints
from dagster_sqlqueue.intake import Rejected
from dagster_sqlqueue.outcomes import Snooze
from dagster_sqlqueue.queue import Enqueued
from tests.core.cleared import cleared
from tests.core.support import Work, caller, claim, make_due, numbers, rows, until, value

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    return cleared(shared, spec)


def live(queue: SqlQueue, columns: str) -> list[tuple[Any, ...]]:
    return rows(queue, f"SELECT {columns} FROM {{s}}.job ORDER BY order_no, id")


def put(queue: SqlQueue, spec: QueueSpec[Work], n: int, key: str | None = "u", **more: Any) -> UUID | None:
    return queue.enqueue(spec, NewJob(Work(n=n), unique_key=key, **more), on_conflict="replace")


def put_as_many(queue: SqlQueue, spec: QueueSpec[Work], n: int, key: str | None = "u", **more: Any) -> Enqueued:
    return queue.enqueue_many(spec, [NewJob(Work(n=n), unique_key=key, **more)], on_conflict="replace")


# Replacing.


@pytest.mark.parametrize("one", [put, put_as_many])
def test_a_waiting_job_takes_everything_but_what_tells_where_it_stands(
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
    jobs = [NewJob(Work(n=n), unique_key=f"u{n % 2_500}") for n in range(5_000)]
    assert queue.enqueue_many(spec, jobs, on_conflict="replace") == Enqueued(2_500, 0, 2_500)
    assert value(queue, "SELECT min(CAST(payload->>'n' AS integer)) FROM {s}.job") == 2_500
    assert value(queue, "SELECT count(*) FROM {s}.job") == 2_500


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


def test_replacing_meets_the_job_that_another_transaction_is_just_putting_in(
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


@pytest.fixture
def ordered(queue: SqlQueue, spec: QueueSpec[Work]) -> QueueSpec[Work]:
    made = replace(spec, ordered=True)
    queue.create_queue(made)
    return made


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


# Sending again.


def test_a_replacement_that_is_sent_again_lands_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    old = put(queue, spec, 1)
    again = {"on_conflict": "replace", "sent_before": True}
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
    done = queue.enqueue_many(spec, [*jobs, {"bad": 1}], on_conflict=on_conflict, on_bad_row="skip", sent_before=True)
    assert (done.inserted, done.duplicates, done.replaced, len(done.rejected)) == (0, 3, 0, 1)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 3


# Bad rows.


def test_bad_rows_are_left_out_and_reported(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    jobs: list[Any] = [Work(n=n) for n in range(4_500)]
    jobs[3] = {"n": "many"}
    jobs[2_000] = NewJob(Work(n=1), region="nowhere")
    jobs[4_499] = NewJob(Work(n=1), run_at=datetime(2026, 1, 1))
    done = queue.enqueue_many(spec, iter(jobs), on_bad_row="skip")
    assert (done.inserted, done.duplicates) == (4_497, 0)
    assert [bad.row for bad in done.rejected] == [3, 2_000, 4_499]
    for bad, words in zip(done.rejected, ["n: Input should be", "set_region", "time zone"], strict=True):
        assert words in bad.error
        assert not bad.error.startswith("row")
    assert value(queue, "SELECT count(*) FROM {s}.job") == 4_497
    only_bad = queue.enqueue_many(spec, [{"n": "x"}], on_bad_row="skip")
    assert only_bad == Enqueued(0, 0, 0, [Rejected(0, only_bad.rejected[0].error)])


def test_a_choice_that_is_none_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    wrong: Any = "merge"
    for call in (
        lambda: queue.enqueue(spec, Work(n=1), on_conflict=wrong),
        lambda: queue.enqueue_many(spec, [Work(n=1)], on_conflict=wrong),
        lambda: queue.enqueue_many(spec, [Work(n=1)], on_bad_row=wrong),
    ):
        with pytest.raises(InvalidInput, match=r"is 'merge'; it must be '\w+' or '\w+'"):
            call()


@pytest.mark.parametrize("before", [10, 2_500])
def test_a_generator_that_raises_takes_everything_back(queue: SqlQueue, spec: QueueSpec[Work], before: int) -> None:
    def jobs() -> Iterator[Work]:
        for n in range(before):
            yield Work(n=n)
        raise KeyError("the file ended early")

    with pytest.raises(KeyError, match="ended early"):
        queue.enqueue_many(spec, jobs(), on_bad_row="skip")
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_large_payloads_do_not_pile_up(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    tracemalloc.start()
    try:
        done = queue.enqueue_many(spec, ({"n": n, "note": "x" * 500_000} for n in range(100)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.inserted == 100
    # A chunk ends at 8 MB, and is held three times at most: as text, in the driver's form and on its way.
    assert peak < 35_000_000


# Plain jobs are copied in.


def test_what_is_copied_in_is_what_would_have_been_inserted(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, timeout_seconds=12.5))
    jobs = [
        NewJob(
            Work(n=n, note='"\\\n\té\U0001f600'),
            run_at=[
                None,
                LATER,
                datetime(1, 1, 1, tzinfo=UTC),
                datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            ][n % 4],
            priority=n % 10,
            tags=[[], ["a", 'q"\\{},'], ["NULL"]][n % 3],
            max_attempts=[None, 7][n % 2],
            timeout_seconds=[None, 3, 0.25][n % 3],
            backoff=[None, Backoff(1, 2, 3, 0.5)][n % 2],
            region=[None, "local"][n % 2],
        )
        for n in range(1_200)
    ]
    with queue.database.transaction() as transaction:
        queue.enqueue_many(spec, jobs, connection=transaction.connection)
        for n in range(0, 1_200, 100):
            queue.enqueue_many(spec, jobs[n : n + 100], connection=transaction.connection)
    columns = "queue, priority, state, available_at, run_at, lease_no, attempt, max_attempts, created_at, unique_key,"
    columns += " ordering_key, order_no, region, limited, timeout_seconds, backoff, tags, payload, error"
    pairs = rows(
        queue,
        f"SELECT count(*), min(c) FROM (SELECT count(*) AS c FROM {{s}}.job GROUP BY {columns}) AS same",
    )
    assert pairs == [(1_200, 2)]
    assert value(queue, "SELECT count(DISTINCT bucket) FROM {s}.job") == 4
    assert value(queue, "SELECT max(bucket) FROM {s}.job") == 3


def test_an_ordering_key_keeps_the_order_in_bulk(queue: SqlQueue, ordered: QueueSpec[Work]) -> None:
    jobs = [NewJob(Work(n=n), ordering_key="k", run_at=LATER - timedelta(seconds=n)) for n in range(500)]
    queue.enqueue_many(ordered, jobs)
    found = rows(queue, "SELECT CAST(payload->>'n' AS integer) FROM {s}.job ORDER BY order_no")
    assert [row[0] for row in found] == list(range(500))


# Regions.


def test_a_region_takes_its_own_buckets(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.set_region("work", "eu", [1, 3])
    queue.enqueue_many(spec, [NewJob(Work(n=n), region="eu") for n in range(50)])
    queue.enqueue_many(spec, [NewJob(Work(n=n), region="eu") for n in range(400)])
    queue.enqueue(spec, NewJob(Work(n=1), region="eu"))
    put(queue, spec, 1, region="eu")
    assert set(live(queue, "bucket, region")) == {(1, "eu"), (3, "eu")}
    queue.rebucket("work", 2)
    assert queue.enqueue_many(spec, [NewJob(Work(n=n), region="eu") for n in range(20)]).inserted == 20
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE bucket = 3") < 300


def test_a_region_without_buckets_is_named_and_poisons_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    lost = NewJob(Work(n=1), region="mars", unique_key="u")
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with caller(url) as connection, engine.connect() as pooled:
        for theirs in (None, connection, pooled):
            for on_conflict in ("ignore", "replace"):
                with pytest.raises(InvalidInput, match=r"no bucket in queue 'work'; give it some with set_region"):
                    queue.enqueue(spec, lost, connection=theirs, on_conflict=on_conflict)
                with pytest.raises(InvalidInput, match=r"row 1: region is 'mars', which .* queue 'work'.*'local'"):
                    queue.enqueue_many(spec, [Work(n=0), lost], connection=theirs, on_conflict=on_conflict)
        queue.enqueue(spec, Work(n=2), connection=connection)
        queue.enqueue(spec, Work(n=2), connection=pooled)
        connection.commit()
        pooled.commit()
    engine.dispose()
    assert value(queue, "SELECT count(*) FROM {s}.job") == 2
    with pytest.raises(UnknownQueue):
        queue.enqueue(replace(spec, name="missing"), lost)


# On an asynchronous connection.


def awaited(url: str, work: "Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]", **settings: Any) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(url, **settings) as connection:
            await work(connection)

    asyncio.run(run())


def count(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


def test_awaited_enqueues_stand_or_fall_with_the_transaction(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        made = await queue.aenqueue(spec, {"n": 1}, connection=connection)
        assert isinstance(made, UUID)
        done = await queue.aenqueue_many(spec, (Work(n=n) for n in range(2_500)), connection=connection)
        assert done == Enqueued(2_500, 0)
        assert count(queue) == 0
        await connection.rollback()
        assert count(queue) == 0

        await queue.aenqueue(spec, NewJob(Work(n=1), unique_key="u"), connection=connection)
        assert await queue.aenqueue(spec, NewJob(Work(n=2), unique_key="u"), connection=connection) is None
        one = await queue.aenqueue(
            spec, NewJob(Work(n=3), unique_key="u"), connection=connection, on_conflict="replace"
        )
        assert isinstance(one, UUID)
        await connection.commit()
        assert live(queue, "CAST(payload->>'n' AS integer)") == [(3,)]

    awaited(url, work)


def test_awaited_enqueues_refuse_what_the_others_refuse(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        with pytest.raises(InvalidPayload, match="row 0: "):
            await queue.aenqueue(spec, {"n": "x"}, connection=connection)
        jobs: list[Any] = [*[Work(n=n) for n in range(2_100)], {"n": "x"}]
        with pytest.raises(InvalidPayload, match="row 2100: "):
            await queue.aenqueue_many(spec, jobs, connection=connection)
        with pytest.raises(InvalidInput, match="set_region"):
            await queue.aenqueue(spec, NewJob(Work(n=1), region="mars"), connection=connection)
        missing = replace(spec, name="missing")
        with pytest.raises(UnknownQueue, match="there are: work"):
            await queue.aenqueue(missing, {"n": 1}, connection=connection)
        with pytest.raises(UnknownQueue, match="there are: work"):
            await queue.aenqueue_many(missing, [], connection=connection)

        async def jobs_of_a_stream() -> AsyncIterator[Any]:
            for n in range(300):
                yield {"n": n if n != 77 else "x"}

        done = await queue.aenqueue_many(
            spec, jobs_of_a_stream(), connection=connection, on_bad_row="skip", on_conflict="replace"
        )
        assert (done.inserted, [bad.row for bad in done.rejected]) == (299, [77])
        await connection.commit()
        assert count(queue) == 299

    awaited(url, work)


def test_awaited_in_autocommit_a_call_is_its_own(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        await queue.aenqueue(spec, Work(n=1), connection=connection)
        await queue.aenqueue_many(spec, [Work(n=1)], connection=connection)
        assert count(queue) == 2
        async with connection.transaction(force_rollback=True):
            await queue.aenqueue_many(spec, [Work(n=n) for n in range(300)], connection=connection)
        async with connection.pipeline():
            await queue.aenqueue_many(spec, [Work(n=n) for n in range(300)], connection=connection)
        assert count(queue) == 302

    awaited(url, work, autocommit=True)


def test_the_wrong_kind_of_connection_is_named(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    async def work(connection: "psycopg.AsyncConnection[Any]") -> None:
        theirs: Any = connection
        with pytest.raises(InvalidInput, match="await aenqueue"):
            queue.enqueue(spec, {"n": 1}, connection=theirs)
        with pytest.raises(InvalidInput, match="await aenqueue"):
            queue.enqueue_many(spec, [], connection=theirs)
        blocking: Any = queue.database.engine
        with pytest.raises(InvalidInput, match=r"connection is a Engine; give a psycopg\.AsyncConnection"):
            await queue.aenqueue(spec, {"n": 1}, connection=blocking)
        with SqlQueue(url, schema="nowhere") as nowhere, pytest.raises(SchemaMissing, match="sqlqueue init"):
            await nowhere.aenqueue(spec, {"n": 1}, connection=connection)

    awaited(url, work)


# Moments far away.


def test_the_far_past_is_due_at_once_and_first(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    one_lane = replace(spec, name="lane", bucket_count=1)
    queue.create_queue(one_lane)
    hints = HeadHints()

    def claimed() -> list[int]:
        return numbers(queue.claim("lane", limit=10, worker="w", hints=hints))

    queue.enqueue(one_lane, Work(n=1))
    assert claimed() == [1]
    queue.enqueue_many(
        one_lane, [Work(n=2), NewJob(Work(n=3), run_at=datetime(1, 1, 1, tzinfo=UTC)), NewJob(Work(n=4), run_at=LATER)]
    )
    # Older than where the last claim began: the next sweep finds it.
    assert claimed() == [2]
    hints.sweep_next()
    assert claimed() == [3]
    assert queue.depth("lane").scheduled == 1


def test_the_last_moment_there_is_can_be_waited_for(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    end = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    queue.enqueue(spec, NewJob(Work(n=1), run_at=end))
    assert live(queue, "run_at, available_at") == [(end, end)]
    assert claim(queue) == []
    queue.enqueue(spec, Work(n=2))
    (job,) = claim(queue)
    queue.requeue([(job, Snooze(end))])
    assert claim(queue) == []
