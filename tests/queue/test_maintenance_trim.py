"""The archive is dropped and thinned out by what each queue keeps."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.doctor import Verdict, schema_checks
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from tests.gate.patience import sized
from tests.support import Work, rows
from tests.support.archived import ahead, archive, days_with_partitions, kept, strays

pytestmark = pytest.mark.usefixtures("whole_day")


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose partitions are as they were made."""
    return fresh


def retain(queue: SqlQueue, **days: int) -> None:
    for name, kept_days in days.items():
        queue.create_queue(QueueSpec(name, Work, retention_days=kept_days))


def test_a_day_is_dropped_when_nobody_keeps_it(queue: SqlQueue, today: date) -> None:
    retain(queue, work=2, longer=4)
    for back in range(8):
        rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=back))
        archive(queue, today - timedelta(days=back))
    for back in (4, 5):
        archive(queue, today - timedelta(days=back), name="longer", count=2)
    done = queue.trim()
    assert done.partitions_dropped == ahead(today, -7, -6, -5, -3)
    assert done.rows_deleted == {"work": 3}
    assert kept(queue) == {
        **{("work", today - timedelta(days=back)): 3 for back in range(3)},
        ("longer", today - timedelta(days=4)): 2,
    }
    assert queue.trim() == queue.trim("work")


def test_several_may_trim_at_once(queue: SqlQueue, today: date) -> None:
    retain(queue, work=1)
    days = ahead(today, *range(-12, -2))
    for day in days:
        rows(queue, "SELECT {s}.make_archive_partition(%s)", day)
        archive(queue, day)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: queue.trim(), range(4)))
    assert sorted(day for each in done for day in each.partitions_dropped) == list(days)
    assert kept(queue) == {}


def test_one_queue_is_trimmed_alone(queue: SqlQueue, today: date) -> None:
    retain(queue, work=1, other=1, third=1)
    shared, alone, others = ahead(today, -5, -6, -7)
    for day in (shared, alone, others):
        rows(queue, "SELECT {s}.make_archive_partition(%s)", day)
    archive(queue, shared)
    archive(queue, shared, name="other")
    archive(queue, alone)
    archive(queue, others, name="other")
    done = queue.trim("work")
    assert (done.partitions_dropped, done.rows_deleted) == ((alone,), {"work": 3})
    assert kept(queue) == {("other", shared): 3, ("other", others): 3}
    with pytest.raises(UnknownQueue):
        queue.trim("missing")


def test_a_queue_that_says_nothing_keeps_its_jobs_for_thirty_days(queue: SqlQueue, today: date) -> None:
    assert queue.settings("work").retention_days == 30
    for back in (30, 31):
        archive(queue, today - timedelta(days=back))
    assert queue.trim().rows_deleted == {"work": 3}
    assert set(kept(queue)) == {("work", today - timedelta(days=30))}


@pytest.mark.parametrize("wrong", [None, -1, 1.5, True, "30", 36_601])
def test_a_retention_is_a_number_of_days(wrong: Any) -> None:
    said = r"retention_days of queue 'work' is .*; it must be a whole number of days, at most a hundred years, or 0"
    with pytest.raises(InvalidInput, match=said):
        QueueSpec("work", Work, retention_days=wrong)


def test_the_longest_retention_keeps_nobody_from_maintaining(queue: SqlQueue, today: date) -> None:
    retain(queue, work=36_600, mail=1)
    archive(queue, today - timedelta(days=400))
    archive(queue, today - timedelta(days=2), name="mail")
    assert queue.maintain().rows_deleted == {"mail": 3}
    assert schema_checks.retention(queue.database).verdict is Verdict.OK
    with pytest.raises(psycopg.errors.CheckViolation):
        rows(queue, "UPDATE {s}.queue SET retention_days = 36601 WHERE name = 'work'")


def test_a_retention_of_zero_keeps_everything(queue: SqlQueue, today: date) -> None:
    retain(queue, work=0)
    for back in (1, 400):
        archive(queue, today - timedelta(days=back))
    done = queue.maintain()
    assert (done.partitions_dropped, done.rows_deleted, done.rows_moved) == ((), {}, 3)
    assert sum(kept(queue).values()) == 6
    retain(queue, shorter=5)
    archive(queue, today - timedelta(days=400), name="shorter")
    assert queue.trim().rows_deleted == {"shorter": 3}
    assert set(kept(queue)) == {("work", today - timedelta(days=back)) for back in (1, 400)}


def test_rows_of_a_queue_that_is_gone_go_with_the_longest_retention(queue: SqlQueue, today: date) -> None:
    rows(queue, "DELETE FROM {s}.bucket WHERE queue = 'work'")
    rows(queue, "DELETE FROM {s}.queue WHERE name = 'work'")
    retain(queue, ever=0)
    for back in (10, 21):
        rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=back))
        archive(queue, today - timedelta(days=back))
    assert queue.trim().partitions_dropped == (), "no queue says for how long"
    retain(queue, short=2, long=20)
    assert queue.trim().partitions_dropped == ahead(today, -21)
    assert set(kept(queue)) == {("work", today - timedelta(days=10))}


def test_rows_of_queues_that_are_gone_are_deleted_from_a_day_that_others_keep(
    queue: SqlQueue, today: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.queue.maintenance._TRIMMED_AT_ONCE", 4)
    retain(queue, work=2, gone=0, ever=0)
    for back in (21, 1):
        rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=back))
        for name in ("ever", "gone", "went_earlier"):
            archive(queue, today - timedelta(days=back), name=name)
    queue.delete_queue("gone")
    assert queue.trim("ever").rows_deleted == {}
    done = queue.trim()
    assert (done.partitions_dropped, done.rows_deleted) == ((), {"gone": 3, "went_earlier": 3})
    assert set(kept(queue)) == {
        ("ever", today - timedelta(days=21)),
        *((name, today - timedelta(days=1)) for name in ("ever", "gone", "went_earlier")),
    }
    assert queue.trim().rows_deleted == {}


def test_rows_that_found_no_partition_are_trimmed_where_they_are(queue: SqlQueue, today: date) -> None:
    retain(queue, work=2)
    for back in (3, 2):
        archive(queue, today - timedelta(days=back))
    done = queue.maintain()
    assert (done.rows_deleted, done.rows_moved, done.partitions_made) == ({"work": 3}, 3, ahead(today, -2))
    assert set(kept(queue)) == {("work", today - timedelta(days=2))}


def test_a_day_without_jobs_goes_two_days_later(queue: SqlQueue, today: date) -> None:
    for back in (2, 3):
        rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=back))
    assert queue.trim("work").partitions_dropped == ()
    assert queue.trim().partitions_dropped == ahead(today, -3, -2)
    assert days_with_partitions(queue)[0] == today - timedelta(days=1)


def test_many_jobs_over_ten_days(queue: SqlQueue, today: date, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished through the verbs, spread over days with and without a partition, trimmed: exactly what each queue keeps."""
    jobs_each, batch = sized((1_500, 1_000), (16_667, 10_000))
    monkeypatch.setattr("dagster_sqlqueue.queue.maintenance._TRIMMED_AT_ONCE", batch)
    keeps = {"short": 1, "long": 5, "ever": 0}
    retain(queue, **keeps)
    for name in keeps:
        spec = QueueSpec(name, Work)
        queue.enqueue_many(spec, (Work(n=n) for n in range(jobs_each)))
        while jobs := queue.claim(name, limit=10_000, worker="w"):
            queue.complete(jobs)
    for back in range(2, 10, 2):
        rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=back))
    # Nothing of the queue that keeps everything ended more than six days ago.
    rows(
        queue,
        "UPDATE {s}.job_archive SET finished_at = timezone('UTC', CAST(%s AS timestamp)"
        " + interval '12 hours' - CAST(payload->>'n' AS integer) %% (CASE queue WHEN 'ever' THEN 7 ELSE 10 END)"
        " * interval '1 day')",
        today,
    )
    before = kept(queue)
    assert sum(before.values()) == 3 * jobs_each
    assert len(before) == 10 + 10 + 7
    assert strays(queue) > jobs_each
    done = queue.maintain()
    expected = {
        (name, day): count
        for (name, day), count in before.items()
        if not (days := keeps[name]) or day >= today - timedelta(days=days)
    }
    assert kept(queue) == expected
    assert len(expected) == 2 + 6 + 7
    assert done.partitions_dropped == ahead(today, -8)
    gone = Counter({name: sum(count for (n, _), count in before.items() if n == name) for name in keeps})
    gone.subtract({name: sum(count for (n, _), count in expected.items() if n == name) for name in keeps})
    dropped = {name: before[name, today - timedelta(days=8)] for name in ("short", "long")}
    assert done.rows_deleted == {name: gone[name] - dropped[name] for name in ("short", "long")}
    assert done.rows_deleted["short"] > batch, "one batch was enough: nothing was shown"
    assert strays(queue) == 0
    assert queue.maintain() == queue.maintain()
