"""What can be read of the queues: statistics, the heads of their buckets and the hints for them, jobs of all states."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.stats import QueueStats
from tests.support import Work, claim, rows, take_time, until, value

VIEWS = [
    "bucket_heads",
    "job_all",
    "job_without_queue",
    "lane",
    "live_bucket",
    "live_job",
    "packed_job",
    "queue_stats",
    "stray_job",
]


def archive(queue: SqlQueue, count: int, *, every: str, wait: str = "n * interval '1 second'") -> None:
    """Jobs that ended as succeeded, one `every` interval back from now; the n-th one waited `wait` and ran two seconds."""
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, region, tags, payload)"
        f" SELECT gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 5, ended - interval '2 seconds' - {wait}, ended,"
        "  ended - interval '2 seconds', ended, 'local', ARRAY[]::text[], '0'"
        f" FROM (SELECT n, statement_timestamp() - (n - 0.5) * interval '{every}' AS ended"
        f"  FROM generate_series(1, {count}) AS n) AS job",
    )


def many(queue: SqlQueue, count: int, due: str) -> None:
    rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        f" SELECT gen_random_uuid(), 'work', n % 4, n % 10, {due}, {due}, 5, '0' FROM generate_series(1, {count}) AS n",
    )


def test_stats_of_an_empty_queue(queue: SqlQueue) -> None:
    stats = asdict(queue.stats("work"))
    assert {stats.pop("queue"), stats.pop("counted_up_to")} == {"work", 10_000}
    assert {name: found for name, found in stats.items() if found} == {}
    assert stats["ready"] == 0
    assert stats["oldest_ready_seconds"] is None
    assert stats["wait_seconds_p50"] is None


def test_stats_of_every_state(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    began = time.monotonic()
    other = QueueSpec("other", Work)
    queue.create_queue(other)
    queue.enqueue_many(other, [Work(n=n) for n in range(7)])
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    done, dead, gone, held, *_ = claim(queue, 6)
    queue.finish(
        [
            Ending(done, ArchiveState.SUCCEEDED),
            Ending(dead, ArchiveState.FAILED, error="no"),
            Ending(gone, ArchiveState.CANCELLED),
        ]
    )
    queue.hold([(held, "look at it")])
    assert queue.finish([Ending(done, ArchiveState.SUCCEEDED)]) == set()
    queue.enqueue(spec, NewJob(Work(n=10), run_at=datetime.now(UTC) + timedelta(hours=1)))
    stats = queue.stats("work")
    assert (stats.ready, stats.running, stats.scheduled, stats.held, stats.parked) == (4, 2, 1, 1, 0)
    assert (stats.measured, stats.succeeded, stats.failed, stats.cancelled, stats.dead_letters) == (3, 1, 1, 1, 1)
    assert stats.stale_writes_today == 1
    assert stats.oldest_ready_seconds is not None
    assert 0 < stats.oldest_ready_seconds <= time.monotonic() - began
    assert stats.next_due_seconds is not None
    assert 3_000 < stats.next_due_seconds <= 3_600
    assert stats.in_per_minute == pytest.approx(10)
    assert stats.in_per_minute_of_hour == pytest.approx(10 / 60)
    assert stats.out_per_minute == pytest.approx(3)
    assert stats.out_per_minute_of_hour == pytest.approx(3 / 60)
    assert queue.stats("other").ready == 7
    assert queue.stats("other").measured == 0


def test_waits_and_run_times_of_the_last_hour(queue: SqlQueue) -> None:
    archive(queue, 100, every="30 seconds")
    archive(queue, 5, every="2 hours")
    stats = queue.stats("work")
    assert stats.measured == 100
    waits = (stats.wait_seconds_p50, stats.wait_seconds_p95, stats.wait_seconds_p99)
    assert waits == pytest.approx((50.5, 95.05, 99.01))
    assert (stats.run_seconds_p50, stats.run_seconds_p95, stats.run_seconds_p99) == pytest.approx((2, 2, 2))
    assert stats.out_per_minute == pytest.approx(2)
    assert stats.out_per_minute_of_hour == pytest.approx(100 / 60)


def test_payload_sizes(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=1, note="x" * size) for size in (0, 500, 1_000)])
    queue.complete(claim(queue))
    stats = queue.stats("work")
    assert stats.payload_bytes_max is not None
    assert stats.payload_bytes_average is not None
    assert 1_000 < stats.payload_bytes_max < 1_100
    assert 500 < stats.payload_bytes_average < 600


def test_rates_beyond_the_count_are_those_of_a_shorter_time(queue: SqlQueue) -> None:
    archive(queue, 12_000, every="20 milliseconds", wait="interval '1 second'")
    ages = (
        "SELECT 600_000 / CAST(EXTRACT(EPOCH FROM clock_timestamp() - finished_at) AS float8)"
        " FROM {s}.job_archive ORDER BY finished_at DESC OFFSET 9_999 LIMIT 1"
    )
    # The statistics are those of now, and enqueuing took a while.
    fastest = value(queue, ages)
    stats = queue.stats("work")
    slowest = value(queue, ages)
    assert (stats.measured, stats.counted_up_to) == (10_000, 10_000)
    assert 0.95 * slowest < stats.out_per_minute_of_hour < 1.05 * fastest <= 1.05 * 3_001
    assert 0.95 * slowest < stats.in_per_minute_of_hour < 1.05 * fastest


def test_counts_stop_where_they_say(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    # Leases as long as the queue's are looked for among what is due soon.
    assert len(claim(queue, lease_seconds=spec.lease_seconds)) == 3
    many(queue, 10_500, "now() - interval '2 hours'")
    many(queue, 10_500, "now() + interval '1 day'")
    stats = queue.stats("work")
    assert (stats.ready, stats.running, stats.scheduled) == (10_000, 3, 10_000), (
        "running ones drowned in the later ones"
    )
    assert (stats.held, stats.parked) == (0, 0)


def test_jobs_that_wait_for_others_of_their_key_are_parked(queue: SqlQueue) -> None:
    line = QueueSpec("line", Work, ordered=True, bucket_count=2)
    queue.create_queue(line)
    queue.enqueue_many(line, [NewJob(Work(n=n), ordering_key="k") for n in range(5)])
    (first,) = queue.claim("line", limit=5, worker="w")
    stats = queue.stats("line")
    assert (stats.ready, stats.running, stats.scheduled, stats.held, stats.parked) == (0, 1, 0, 0, 4)
    assert stats.in_per_minute == pytest.approx(5)
    queue.hold([(first, "why")])
    stats = queue.stats("line")
    assert (stats.running, stats.held, stats.parked) == (0, 1, 4)


def test_a_paused_queue_says_since_when(queue: SqlQueue) -> None:
    before = datetime.now(UTC)
    rows(queue, "UPDATE {s}.queue SET paused_at = now() - interval '1 day', revision = revision + 1")
    paused_at = queue.stats("work").paused_at
    assert paused_at is not None
    assert before <= paused_at + timedelta(days=1) <= datetime.now(UTC)


def test_unknown_queues_and_unusable_names(queue: SqlQueue) -> None:
    for verb in (queue.stats, queue.leases.note_sweep):
        with pytest.raises(UnknownQueue, match="no queue 'missing'"):
            verb("missing")
        with pytest.raises(InvalidInput, match="not usable"):
            verb('a"b')


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("peek", {"limit": -1}, "limit is -1"),
        ("peek", {"limit": "5"}, "limit is '5'"),
        ("dead_letters", {"limit": 2.5}, "limit is 2.5"),
        ("depth", {"cap": None}, "cap is None"),
        ("depth", {"others_cap": -1}, "others_cap is -1"),
        ("archived", {"since_seconds": float("nan")}, "since_seconds is nan; give seconds"),
        ("archived", {"since_seconds": "60"}, "since_seconds is '60'"),
        ("archived", {"since_seconds": 60, "cap": "many"}, "cap is 'many'"),
    ],
)
def test_numbers_that_make_no_sense(queue: SqlQueue, verb: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        getattr(queue, verb)("work", **arguments)


def test_the_view_and_the_class_have_the_same_columns(queue: SqlQueue) -> None:
    columns = rows(
        queue,
        "SELECT attname FROM pg_attribute WHERE attrelid = CAST(%s AS regclass) AND attnum > 0 ORDER BY attnum",
        f"{queue.database.schema}.queue_stats",
    )
    assert [name for (name,) in columns] == list(QueueStats.__dataclass_fields__)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_described_and_can_be_read_as_it_is(queue: SqlQueue, spec: QueueSpec[Work], view: str) -> None:
    queue.enqueue(spec, Work(n=1))
    stray = queue.enqueue(spec, Work(n=2))
    rows(queue, "UPDATE {s}.job SET bucket = 900 WHERE id = %s", stray)
    lost = f"UPDATE {{s}}.job SET queue = 'nowhere' WHERE id = '{queue.enqueue(spec, Work(n=3))}'"
    rows(queue, f"BEGIN; SET LOCAL session_replication_role = replica; {lost}; COMMIT")
    rows(queue, "UPDATE {s}.job SET bucket = 901 WHERE id = %s", queue.enqueue(spec, Work(n=3)))
    batch = uuid4()
    rows(
        queue,
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner) VALUES (%s, 'k', 'work', 'sealing', now(), 'w')",
        batch,
    )
    assert value(queue, "SELECT {s}.pack_batch(%s, 1, ARRAY[CAST(901 AS smallint)], 60)", batch) == 1
    assert rows(queue, f"SELECT * FROM {{s}}.{view}")
    assert value(queue, "SELECT obj_description(CAST(%s AS regclass))", f"{queue.database.schema}.{view}")


def test_there_are_no_other_views(queue: SqlQueue) -> None:
    found = rows(queue, "SELECT viewname FROM pg_views WHERE schemaname = %s ORDER BY 1", queue.database.schema)
    # Through these, users with a role change the rows that they may change, and no others.
    narrow = {"doubled_priority", "event_of_no_job", "new_job", "own_follower", "replaceable_job", "taken_unique_key"}
    assert [name for (name,) in found if name not in narrow and not name.endswith("_long_ago")] == VIEWS


def test_heads_by_view(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), priority=9, run_at=datetime.now(UTC) + timedelta(minutes=1)))
    rows(queue, "UPDATE {s}.bucket SET region = 'eu'")
    ((name, _, region, priority, _, due, _),) = rows(queue, "SELECT * FROM {s}.bucket_heads")
    assert (name, region, priority) == ("work", "eu", 9)
    assert -60 <= due < -50


def test_old_buckets_are_looked_at_until_they_are_empty(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(100)])
    rows(queue, "UPDATE {s}.queue SET bucket_count = 1, revision = revision + 1")
    assert {head.bucket for head in queue.peek_heads("work")} == {0, 1, 2, 3}
    assert queue.depth("work").ready == queue.stats("work").ready == 100
    assert len(queue.peek("work", limit=200)) == 100
    assert value(queue, "SELECT count(*) FROM {s}.live_bucket") == 4
    rows(queue, "DELETE FROM {s}.job WHERE bucket > 1")
    assert value(queue, "SELECT count(*) FROM {s}.live_bucket") == 2


def test_a_job_wherever_it_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    where = "SELECT archived, state, available_at IS NULL, finished_at IS NULL, payload->>'n' FROM {s}.job_all WHERE id = %s"
    id = queue.enqueue(spec, NewJob(Work(n=5), tags=["a"]))
    assert rows(queue, where, id) == [(False, "queued", False, True, "5")]
    (job,) = claim(queue)
    queue.hold([(job, "why")])
    assert rows(queue, where, id) == [(False, "held", True, True, "5")]
    rows(queue, "UPDATE {s}.job SET state = 'queued', available_at = now()")
    queue.complete(claim(queue))
    assert rows(queue, where, id) == [(True, "succeeded", True, False, "5")]


def test_all_columns_of_both_tables_are_there_but_for_what_the_machinery_notes(queue: SqlQueue) -> None:
    def columns(table: str) -> set[str]:
        found = rows(
            queue,
            "SELECT attname FROM pg_attribute WHERE attrelid = CAST(%s AS regclass) AND attnum > 0",
            f"{queue.database.schema}.{table}",
        )
        return {name for (name,) in found}

    assert columns("job_archive") - columns("job_all") == {"ended_in"}
    assert columns("job") - columns("job_all") == {
        *("alone", "claim_token", "limited", "followed", "queue_kept", "wakes")
    }


@pytest.fixture
def swept(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """The queue after a sweep, with jobs in all of its buckets that have been due for an hour."""
    many(queue, 40, "now() - interval '1 hour'")
    assert queue.leases.note_sweep("work") == 4
    return queue


def pass_seconds(queue: SqlQueue, seconds: float) -> None:
    rows(queue, "UPDATE {s}.bucket SET swept_at = swept_at - make_interval(secs => %s)", seconds)


def late(queue: SqlQueue) -> Any:
    """A row that was committed late: due before everything that the sweep saw."""
    rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " VALUES (gen_random_uuid(), 'work', 0, 5, now() - interval '2 hours', now(), 5, '0')",
    )


def oldest(queue: SqlQueue) -> float:
    return max(head.due_seconds for head in queue.peek_heads("work"))


def test_of_many_sweepers_one_pays(swept: SqlQueue) -> None:

    def paid(seconds: float, sweepers: int) -> int:
        """The buckets that so many sweep, so long after a sweep."""
        rows(swept, "UPDATE {s}.bucket SET swept_at = clock_timestamp()")
        pass_seconds(swept, seconds)
        with ThreadPoolExecutor(sweepers) as pool:
            return sum(pool.map(swept.leases.note_sweep, ["work"] * sweepers))

    # Where a process is stopped in between, a sweep is due that was not: then it is tried again.
    assert until(lambda: paid(0, 1) == 0)
    assert until(lambda: paid(1, 1) == 0)
    assert until(lambda: paid(4.1, 4) == 4)
    assert until(lambda: paid(4.1, 1) == 4)


def test_a_bucket_that_another_sweeps_is_left_alone(swept: SqlQueue) -> None:
    pass_seconds(swept, 10)
    with swept.database.transaction() as other:
        take_time(other)
        schema = swept.database.schema
        other.connection.execute(f"SELECT FROM {schema}.bucket WHERE bucket < 3 FOR UPDATE".encode())
        assert swept.leases.note_sweep("work") == 1
    assert swept.leases.note_sweep("work") >= 3


def test_what_was_committed_late_is_seen_by_the_next_sweep(swept: SqlQueue) -> None:
    hints = [hint for (hint,) in rows(swept, "SELECT head_hint FROM {s}.bucket")]
    first = value(swept, "SELECT min(available_at) FROM {s}.job")
    assert set(hints) == {first}
    late(swept)
    # As if the sweep had just been.
    pass_seconds(swept, -3_600)
    assert 3_500 < oldest(swept) < 7_000
    assert swept.depth("work").ready == 40
    assert value(swept, "SELECT oldest_ready_seconds FROM {s}.queue_stats") > 7_000, "statistics believe no hint"
    pass_seconds(swept, 3_604.5)
    assert swept.leases.note_sweep("work") == 4
    assert oldest(swept) > 7_000
    assert swept.depth("work").ready == 41


def test_nobody_believes_an_old_hint(swept: SqlQueue) -> None:
    late(swept)
    pass_seconds(swept, 5)
    assert oldest(swept) > 7_000
    assert swept.depth("work").ready == 41


@pytest.mark.parametrize("leased", [False, True])
def test_a_sweep_hides_nothing_that_is_enqueued_after_it(queue: SqlQueue, spec: QueueSpec[Work], leased: bool) -> None:
    if leased:
        queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
        assert len(claim(queue)) == 40
    assert queue.leases.note_sweep("work") == 4
    # Its transaction began a while ago.
    many(queue, 4, "now() - interval '50 seconds'")
    assert {head.bucket for head in queue.peek_heads("work") if head.due_seconds > 0} == {0, 1, 2, 3}


def test_held_jobs_make_no_hint(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    queue.hold([(job, "why") for job in claim(queue)])
    assert queue.leases.note_sweep("work") == 4
    assert value(queue, "SELECT max(head_hint) < now() FROM {s}.bucket")
