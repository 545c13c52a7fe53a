"""Running a queue as a whole: settings that change under live jobs, buckets and regions."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.outcome import Retry
from dagster_sqlqueue.model.queue import RateLimit, Strategy
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.gate.patience import PATIENCE
from tests.queue.admin_support import PLAIN, side, take
from tests.support import Work, caller, numbers, rows, take_time, until, value

ORDERED = replace(PLAIN, ordered=True)


def parked(queue: SqlQueue) -> int:
    count: int = value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'queued' AND available_at = 'infinity'")
    return count


def test_the_revision_grows_with_every_change_and_with_nothing_else(queue: SqlQueue) -> None:
    seen = [queue.settings("work").revision]
    for change in (
        lambda: queue.create_queue(PLAIN),
        lambda: queue.create_queue(replace(PLAIN, max_attempts=7)),
        lambda: queue.create_queue(ORDERED),
        lambda: queue.create_queue(replace(ORDERED, strategy="fifo")),
        lambda: queue.create_queue(replace(PLAIN, rate=RateLimit(5))),
        lambda: queue.create_queue(replace(PLAIN, max_running_per_key=5)),
        lambda: queue.create_queue(PLAIN),
        lambda: queue.pause("work"),
        lambda: queue.resume("work"),
        lambda: queue.rebucket("work", 8),
        lambda: queue.set_region("work", "eu", [1, 7]),
    ):
        seen.append(change().revision)
        assert change().revision == seen[-1] == queue.settings("work").revision
    assert seen == sorted(set(seen))


def test_settings_are_as_declared(queue: SqlQueue) -> None:
    spec = replace(
        PLAIN,
        ordered=True,
        on_poison="stop",
        timeout_seconds=7.5,
        max_running=4,
        rate=RateLimit(3, 2.5),
        retention_days=9,
    )
    settings = queue.create_queue(spec)
    for name in ("ordered", "on_poison", "timeout_seconds", "max_running", "rate", "retention_days", "backoff"):
        assert getattr(settings, name) == getattr(spec, name)
    assert (settings.keyed, settings.limited, settings.paused_at) == (True, True, None)
    assert settings == queue.settings("work")


def test_a_queue_that_becomes_ordered_keeps_the_order_in_which_its_jobs_came(queue: SqlQueue) -> None:
    for strategy in [each for each in Strategy if each is not Strategy.TOKEN]:
        queue.create_queue(PLAIN)
        for n in range(6):
            queue.enqueue(PLAIN, NewJob(Work(n=n), ordering_key=f"k{n % 2}", priority=n))
        queue.create_queue(replace(ORDERED, strategy=strategy))
        came = defaultdict(list)
        while jobs := take(queue):
            for job in jobs:
                came[job.ordering_key] += numbers([job])
            queue.complete(jobs)
        assert came == {"k0": [0, 2, 4], "k1": [1, 3, 5]}


def test_jobs_that_wait_for_a_turn_are_let_out_when_there_are_no_turns_any_more(queue: SqlQueue) -> None:
    queue.create_queue(ORDERED)
    queue.enqueue_many(ORDERED, [NewJob(Work(n=n), ordering_key="k") for n in range(5)])
    (first,) = take(queue)
    assert parked(queue) == 4
    queue.create_queue(replace(PLAIN, max_running_per_key=3))
    assert len(take(queue)) == 2
    assert parked(queue) == 2
    queue.create_queue(PLAIN)
    assert parked(queue) == 0
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE order_no IS NOT NULL") == 0
    assert len(take(queue)) == 2
    queue.complete([first])


def test_jobs_wait_on_in_their_line_when_another_setting_changes(queue: SqlQueue) -> None:
    queue.create_queue(ORDERED)
    queue.enqueue_many(ORDERED, [NewJob(Work(n=n), ordering_key="k") for n in range(5)])
    before = take(queue)
    queue.create_queue(replace(ORDERED, max_running=10))
    assert parked(queue) == 4
    queue.complete(before)
    assert numbers(take(queue)) == [1]


def test_leases_count_towards_a_limit_that_came_after_them(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    queue.enqueue_many(PLAIN, [Work(n=n) for n in range(10)])
    running = take(queue, 3)
    queue.create_queue(replace(PLAIN, max_running=4))
    assert len(take(queue)) == 1
    assert take(queue) == []
    queue.complete(running[:2])
    assert len(take(queue)) == 2
    queue.create_queue(PLAIN)
    assert len(take(queue)) == 4


def test_what_was_enqueued_under_the_old_settings_and_committed_late_takes_its_turn(queue: SqlQueue, url: str) -> None:
    queue.create_queue(PLAIN)
    queue.enqueue(PLAIN, NewJob(Work(n=0), ordering_key="k"))
    with caller(url) as producer, SqlQueue(url, schema=queue.database.schema) as operator:
        queue.enqueue(PLAIN, NewJob(Work(n=1), ordering_key="k"), connection=producer)
        with side(operator.create_queue, ORDERED):
            until(lambda: queue.settings("work").ordered)
            producer.commit()
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE order_no IS NULL") == 0
    (first,) = take(queue)
    assert (numbers([first]), parked(queue)) == ([0], 1)


def test_what_was_claimed_under_the_old_settings_and_committed_late_counts(queue: SqlQueue, url: str) -> None:
    queue.create_queue(PLAIN)
    queue.enqueue_many(PLAIN, [Work(n=n) for n in range(4)])
    claim = (
        f"UPDATE {queue.database.schema}.job SET state = 'running', lease_no = 1, available_at = now() + interval '1 h'"
    )
    with caller(url) as claimer, SqlQueue(url, schema=queue.database.schema) as operator:
        claimer.execute(f"LOCK TABLE {queue.database.schema}.job IN ROW SHARE MODE".encode())
        with side(operator.create_queue, replace(PLAIN, max_running=3)):
            until(lambda: queue.settings("work").limited)
            claimer.execute(claim.encode())
            claimer.commit()
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE limited") == 4
    assert take(queue) == []


def test_two_who_change_a_queue_at_once_leave_its_jobs_in_line_with_one_of_them(queue: SqlQueue, url: str) -> None:
    queue.create_queue(ORDERED)
    queue.enqueue_many(ORDERED, [NewJob(Work(n=n), ordering_key=f"k{n % 3}") for n in range(30)])
    with (
        SqlQueue(url, schema=queue.database.schema) as other,
        side(lambda: [other.create_queue(ORDERED) for _ in range(10)]),
    ):
        for _ in range(10):
            queue.create_queue(PLAIN)
    keyed = queue.settings("work").keyed
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE (order_no IS NOT NULL) <> %s", keyed) == 0
    assert keyed or parked(queue) == 0


def work_off(queue: SqlQueue, endings: list[int], stop: threading.Event) -> None:
    """Claim and complete; every fifth job fails once. Several at once."""
    while not stop.is_set():
        jobs = take(queue, 7)
        if not jobs:
            stop.wait(0.002)
        again = [job for job in jobs if job.attempt == 1 and numbers([job])[0] % 5 == 0]
        queue.requeue([(job, Retry("once more")) for job in again])
        done = [job for job in jobs if job not in again]
        queue.complete(done)
        endings += numbers(done)


@contextmanager
def consumers(url: str, schema: str, count: int = 3) -> Iterator[list[int]]:
    stop = threading.Event()
    endings: list[int] = []
    with ThreadPoolExecutor(count) as pool, SqlQueue(url, schema=schema, pool_size=count) as shared:
        futures = [pool.submit(work_off, shared, endings, stop) for _ in range(count)]
        try:
            yield endings
        finally:
            stop.set()
        for future in futures:
            future.result(PATIENCE)


def test_order_limits_and_strategy_change_while_consumers_run(queue: SqlQueue, url: str) -> None:
    queue.create_queue(PLAIN)
    jobs = 0
    with consumers(url, queue.database.schema) as endings:
        for spec in (
            ORDERED,
            replace(ORDERED, strategy="fifo", max_running=2),
            replace(PLAIN, strategy="assign", max_running_per_key=2),
            replace(PLAIN, strategy="token"),
            replace(ORDERED, strategy="fanout"),
            replace(PLAIN, max_running_per_key=1),
            PLAIN,
            ORDERED,
        ):
            queue.enqueue_many(spec, [NewJob(Work(n=jobs + n), ordering_key=f"k{n % 4}") for n in range(60)])
            jobs += 60
            queue.create_queue(spec)
        until(lambda: len(endings) == jobs, "the end of all jobs")
    assert sorted(endings) == list(range(jobs))
    assert queue.depth("work").live == 0


def assert_in_order(queue: SqlQueue) -> None:
    """The archive's jobs of each key ran one after the other, in the order of their numbers."""
    overlaps = value(
        queue,
        """
        SELECT count(*) FROM (
            SELECT started_at, lag(finished_at) OVER w AS before, payload, lag(payload) OVER w AS payload_before
            FROM {s}.job_archive WINDOW w AS (PARTITION BY ordering_key ORDER BY order_no)
        ) AS run WHERE started_at < before OR (payload->>'n')::int < (payload_before->>'n')::int
        """,
    )
    assert overlaps == 0


def test_an_ordered_queue_is_rebucketed_under_load(queue: SqlQueue, url: str) -> None:
    queue.create_queue(ORDERED)
    jobs = 0
    with consumers(url, queue.database.schema) as endings:
        for count in (4, 16, 8, 3):
            queue.enqueue_many(ORDERED, [NewJob(Work(n=jobs + n), ordering_key=f"k{n % 20}") for n in range(100)])
            assert queue.rebucket("work", count).bucket_count == count
            queue.enqueue_many(ORDERED, [NewJob(Work(n=jobs + 100 + n), ordering_key=f"k{n % 20}") for n in range(100)])
            jobs += 200
        until(lambda: len(endings) == jobs, "the end of all jobs")
    assert sorted(endings) == list(range(jobs))
    assert_in_order(queue)
    assert value(queue, "SELECT count(DISTINCT bucket) FROM {s}.job_archive") > 10


def test_old_buckets_are_looked_at_until_they_are_empty(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    assert queue.rebucket("work", 16).claim_buckets == 16
    queue.enqueue_many(PLAIN, [Work(n=n) for n in range(200)])
    settings = queue.rebucket("work", 2)
    assert (settings.bucket_count, settings.claim_buckets, len(settings.regions)) == (2, 16, 16)
    queue.enqueue_many(PLAIN, [Work(n=n) for n in range(200, 220)])
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE bucket >= 2") < 200
    jobs = take(queue, 1000)
    assert sorted(numbers(jobs)) == list(range(220))
    queue.complete(jobs)
    assert queue.settings("work").claim_buckets == 2


def test_buckets_and_regions_that_cannot_be(queue: SqlQueue) -> None:
    before = queue.settings("work")
    counts: list[Any] = [0, -1, 1025, 2.0, True, "4", None]
    for count in counts:
        with pytest.raises(InvalidInput, match=r"bucket_count of queue 'work' is .*; it must be 1 to 1024"):
            queue.rebucket("work", count)
    buckets: list[Any] = [[], [4], [-1], [0, 99], [True], [1.0], ["1"]]
    for some in buckets:
        with pytest.raises(InvalidInput, match="the buckets 0 to 3"):
            queue.set_region("work", "eu", some)
    regions: list[Any] = ["", "x" * 1001, None, 7, "a\x00b", "\ud800"]
    for region in regions:
        with pytest.raises(InvalidInput, match="region is"):
            queue.set_region("work", region, [0])
    assert queue.settings("work") == before


def test_buckets_belong_to_regions(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    assert queue.set_region("work", "eu", [3, 1, 3]).regions == ("local", "eu", "local", "eu")
    job_ids = {queue.enqueue(PLAIN, NewJob(Work(n=n), region="eu")) for n in range(20)}
    assert {row[0] for row in rows(queue, "SELECT bucket FROM {s}.job")} == {1, 3}
    with pytest.raises(InvalidInput, match="no bucket would be left for 'eu'; give the region one of the first 1"):
        queue.rebucket("work", 1)
    assert queue.rebucket("work", 2).regions == ("local", "eu", "local", "eu")
    assert {job.id for job in take(queue)} == job_ids


def test_a_queue_that_is_not_there(queue: SqlQueue) -> None:
    verbs: list[Callable[[str], object]] = [
        queue.pause,
        queue.resume,
        queue.drain,
        lambda name: queue.rebucket(name, 3),
        lambda name: queue.set_region(name, "eu", [0]),
    ]
    for verb in verbs:
        with pytest.raises(UnknownQueue, match=r"no queue 'nope' .*\(there are: work\)"):
            verb("nope")
        with pytest.raises(InvalidInput, match="queue name 'No!'"):
            verb("No!")


def test_settings_wait_for_nobody_who_enqueues_or_claims(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    queue.enqueue(spec, Work(n=0))
    with caller(url) as producer, queue.database.transaction() as worker:
        take_time(worker)
        queue.enqueue(spec, Work(n=1), connection=producer)
        queue.leases.lock_due(worker, ClaimRequest("work", limit=1))
        # Who would wait fails instead.
        impatient = f"{url}{'&' if '?' in url else '?'}options=-c%20lock_timeout%3D10s"
        with SqlQueue(impatient, schema=queue.database.schema) as operator:
            operator.rebucket("work", 5)
            operator.pause("work")
