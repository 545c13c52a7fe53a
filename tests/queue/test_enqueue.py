"""Putting in: bad rows, what is copied in, regions, and moments far away."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import psycopg
import pytest
import sqlalchemy as sa

from dagster_sqlqueue import Backoff, Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.ids import bucket_hash
from dagster_sqlqueue.model.outcome import Snooze
from dagster_sqlqueue.queue import Enqueued
from dagster_sqlqueue.queue.head_hints import HeadHints
from dagster_sqlqueue.queue.intake import Rejected
from tests.support import Work, caller, claim, numbers, rows, value
from tests.support.enqueuing import LATER, live, put


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


class Untyped(TypedDict):
    n: int


@dataclass
class Plain:
    n: int


@pytest.mark.parametrize("payload", [dict, dict[str, int], Untyped, Plain, "x", None, Work(n=1), int | str])
def test_a_payload_that_is_no_model_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput, match=r"payload of queue 'work' is .*; it must be a pydantic model"):
        QueueSpec("work", payload)


def test_a_queue_s_name_in_the_place_of_its_declaration_is_refused(queue: SqlQueue) -> None:
    name: Any = "work"
    connection: Any = None
    for call in (
        lambda: queue.enqueue(name, Work(n=1)),
        lambda: queue.enqueue_many(name, [Work(n=1)]),
        lambda: queue.create_queue(name),
        lambda: asyncio.run(queue.aenqueue(name, Work(n=1), connection=connection)),
        lambda: asyncio.run(queue.aenqueue_many(name, [Work(n=1)], connection=connection)),
        lambda: Consumer(queue, name, lambda job: None),
    ):
        with pytest.raises(InvalidInput, match=r"the queue was given as 'work'; give its declaration, QueueSpec\("):
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


def test_payloads_alone_are_copied_in_as_jobs_that_say_nothing_else(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, timeout_seconds=12.5, max_attempts=7))
    jobs = [Work(n=n, note='"\\\n\té\U0001f600') for n in range(1_200)]
    queue.enqueue_many(spec, jobs)
    queue.enqueue_many(spec, [NewJob(job) for job in jobs])
    for n in range(0, 1_200, 100):
        queue.enqueue_many(spec, jobs[n : n + 100])
    columns = (
        "queue, priority, state, available_at = run_at, lease_no, attempt, max_attempts, unique_key, ordering_key,"
    )
    columns += " order_no, region, limited, timeout_seconds, backoff, tags, payload, error"
    same = f"SELECT count(*), min(c) FROM (SELECT count(*) AS c FROM {{s}}.job GROUP BY {columns}) AS same"
    assert rows(queue, same) == [(1_200, 3)]
    for job, bucket in rows(queue, "SELECT id, bucket FROM {s}.job"):
        assert bucket == bucket_hash(job, None) % 4


def test_a_payload_alone_is_enqueued_as_a_job_that_says_nothing_else(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    queue.create_queue(replace(spec, timeout_seconds=12.5, max_attempts=7))
    for n in range(20):
        job = Work(n=n, note='"\\\n\té\U0001f600')
        queue.enqueue(spec, job)
        queue.enqueue(spec, job.model_dump())
        queue.enqueue(spec, job, on_conflict="replace")
        queue.enqueue(spec, NewJob(job))
        with caller(url) as connection:
            queue.enqueue(spec, job, connection=connection)
            connection.commit()
    columns = "queue, priority, state, lease_no, attempt, max_attempts, unique_key, unique_until_claim, ordering_key,"
    columns += " order_no, region, timeout_seconds, backoff, tags, payload, error, wakes, queue_kept,"
    columns += " available_at = run_at AND run_at = created_at"
    same = f"SELECT count(*), min(c) FROM (SELECT count(*) AS c FROM {{s}}.job GROUP BY {columns}) AS same"
    assert rows(queue, same) == [(20, 5)]
    for job_id, bucket in rows(queue, "SELECT id, bucket FROM {s}.job"):
        assert bucket == bucket_hash(job_id, None) % 4


def test_copies_and_arrays_take_turns_in_one_call(queue: SqlQueue, ordered: QueueSpec[Work]) -> None:
    jobs: list[Any] = [Work(n=n) for n in range(9_000)]
    jobs[3_000] = NewJob(Work(n=3_000), ordering_key="k")
    jobs[6_000] = NewJob(Work(n=6_000), unique_key="u")
    jobs[6_001] = NewJob(Work(n=6_001), unique_key="u")
    assert queue.enqueue_many(ordered, jobs) == Enqueued(8_999, 1)
    found = rows(queue, "SELECT CAST(payload->>'n' AS integer) AS n FROM {s}.job ORDER BY n")
    assert [n for (n,) in found] == [n for n in range(9_000) if n != 6_001]


def test_a_generator_may_use_the_connection_that_the_jobs_join(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    with caller(url) as connection:
        with connection.cursor("numbers") as cursor:
            cursor.execute("SELECT generate_series(1, 5000)")
            assert queue.enqueue_many(spec, (Work(n=n) for (n,) in cursor), connection=connection).inserted == 5_000
        connection.commit()
    assert value(queue, "SELECT count(*) FROM {s}.job") == 5_000


@pytest.mark.parametrize("timed", [False, True])
def test_no_statement_waits_for_a_generator_where_statements_are_timed(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, timed: bool
) -> None:
    """Its time would end while the generator is still at the next job."""
    copying = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND strpos(query, %s) = 1"
    open_copies: list[int] = []

    def jobs() -> Iterator[Work]:
        for n in range(2_100):
            if n == 2_050:
                open_copies.append(value(queue, copying, f'COPY "{queue.database.schema}".job'))
            yield Work(n=n)

    timeout = 3_600 if timed else None
    with SqlQueue(url, schema=queue.database.schema, statement_timeout=timeout) as other:
        assert other.enqueue_many(spec, jobs()).inserted == 2_100
    assert open_copies == [0 if timed else 1]


def test_an_ordering_key_keeps_the_order_in_bulk(queue: SqlQueue, ordered: QueueSpec[Work]) -> None:
    jobs = [NewJob(Work(n=n), ordering_key="k", run_at=LATER - timedelta(seconds=n)) for n in range(500)]
    queue.enqueue_many(ordered, jobs)
    found = rows(queue, "SELECT CAST(payload->>'n' AS integer) FROM {s}.job ORDER BY order_no")
    assert [row[0] for row in found] == list(range(500))


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


@pytest.mark.parametrize("regions", [["eu"], ["eu", None], ["eu", "us"]])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_region_that_loses_its_buckets_meanwhile_is_named(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, regions: list[str | None], awaited: bool
) -> None:
    for bucket, region in enumerate(sorted({"eu", "us"} & set(regions))):
        queue.set_region("work", str(region), [bucket])

    def jobs() -> Iterator[NewJob[Work]]:
        for region in regions:
            yield NewJob(Work(n=1), region=region)
        queue.set_region("work", "local", range(4))

    async def aenqueue_many() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await queue.aenqueue_many(spec, jobs(), connection=connection)

    # Of several it is not known which one it was.
    named = "the region of a job has" if "us" in regions else "region is 'eu', which has"
    with pytest.raises(InvalidInput, match=f"^{named} no bucket in queue 'work'; give it some with set_region"):
        asyncio.run(aenqueue_many()) if awaited else queue.enqueue_many(spec, jobs())
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_the_far_past_is_due_at_once_and_first(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    one_lane = replace(spec, name="lane", bucket_count=1)
    queue.create_queue(one_lane)
    hints = HeadHints(sweep_seconds=3600)

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
