"""Maintaining: the archive's partitions made ahead and filled with what found none, and what expired removed."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import AccessRefused, InvalidInput
from dagster_sqlqueue.queue.maintenance import Maintained, Maintenance
from dagster_sqlqueue.queue.maintenance_run import Stopped, begin
from dagster_sqlqueue.schema import partitions
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, caller, claim, rows, until, value
from tests.support.archived import ahead, archive, days_with_partitions, kept, strays

pytestmark = pytest.mark.usefixtures("whole_day")


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose partitions are as they were made."""
    return fresh


def drop_day(queue: SqlQueue, day: date) -> None:
    rows(queue, f"DROP TABLE {{s}}.job_archive_{day:%Y%m%d}")


def test_a_week_is_made_ahead(queue: SqlQueue, today: date) -> None:
    assert days_with_partitions(queue) == list(ahead(today, *range(-1, 8)))
    assert queue.maintain() == queue.maintain(days_ahead=0)
    done = queue.maintain(days_ahead=10)
    assert done.ran
    assert done.partitions_made == ahead(today, 8, 9, 10)
    assert queue.maintain(days_ahead=10).partitions_made == ()
    queue.migrate()
    assert days_with_partitions(queue) == list(ahead(today, *range(-1, 11)))


def test_how_far_ahead_is_checked(queue: SqlQueue) -> None:
    wrong: list[Any] = [-1, 367, 1.5, True, "7", None]
    for days in wrong:
        with pytest.raises(InvalidInput, match=r"days_ahead is .*; it must be a whole number of days, 0 to 366"):
            queue.maintain(days_ahead=days)


def test_a_partition_is_like_the_others(queue: SqlQueue, spec: QueueSpec[Work], today: date) -> None:
    queue.maintain(days_ahead=8)
    shapes = [
        (
            rows(queue, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s ORDER BY 1", table),
            value(queue, "SELECT count(*) FROM pg_index WHERE indrelid = %s AND indisvalid", table),
        )
        for (table,) in rows(
            queue,
            "SELECT inhrelid FROM pg_inherits WHERE inhparent = CAST(%s AS regclass)",
            f"{queue.database.schema}.job_archive",
        )
    ]
    assert len(shapes) == 11
    assert all(shape == shapes[0] for shape in shapes)
    invalid = "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = CAST(%s AS regclass) AND NOT indisvalid"
    assert rows(queue, invalid, f"{queue.database.schema}.job_archive") == []


def test_rows_without_a_partition_are_moved_into_one(queue: SqlQueue, spec: QueueSpec[Work], today: date) -> None:
    drop_day(queue, today)
    queue.enqueue_many(spec, [Work(n=n) for n in range(50)])
    queue.complete(claim(queue))
    archive(queue, today - timedelta(days=20))
    assert strays(queue) == 53
    before = rows(queue, "SELECT to_jsonb(a) FROM {s}.job_archive AS a ORDER BY id")
    done = queue.maintain()
    assert (done.partitions_made, done.rows_moved) == (ahead(today, -20, 0), 53)
    assert strays(queue) == 0
    assert rows(queue, "SELECT to_jsonb(a) FROM {s}.job_archive AS a ORDER BY id") == before
    assert value(queue, f"SELECT count(*) FROM {{s}}.job_archive_{today:%Y%m%d}") == 50
    assert queue.maintain().rows_moved == 0


def test_moving_stands_in_nobodys_way(queue: SqlQueue, spec: QueueSpec[Work], today: date) -> None:
    drop_day(queue, today)
    there_before = sized(5_000, 30_000)
    archive(queue, today, count=there_before)
    stop = threading.Event()

    def consume() -> int:
        finished = 0
        while not stop.is_set():
            queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
            jobs = claim(queue, 20)
            queue.complete(jobs)
            finished += len(jobs)
        return finished

    def made() -> Maintained | None:
        done = queue.maintain()
        return done if done.partitions_made else None

    with ThreadPoolExecutor(2) as pool:
        consumers = [pool.submit(consume) for _ in range(2)]
        try:
            until(lambda: strays(queue) > there_before + 100, "the consumers")
            # What finds the archive busy leaves the day for the next time.
            done = until(made, "a quiet moment")
            there = sum(kept(queue).values())
            until(lambda: sum(kept(queue).values()) > there + 100, "the consumers to go on")
        finally:
            stop.set()
        finished = sum(consumer.result() for consumer in consumers)
    assert done.partitions_made == (today,)
    assert done.rows_moved > there_before + 100
    assert strays(queue) == 0
    assert kept(queue) == {("work", today): there_before + finished}


def test_nobody_waits_while_rows_are_moved(queue: SqlQueue, spec: QueueSpec[Work], today: date) -> None:
    drop_day(queue, today)
    archive(queue, today, count=100)
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    with queue.database.connection() as mover, ThreadPoolExecutor(1) as pool:
        at = Transaction(mover, queue.database)
        with mover.transaction():
            # What takes long. Only then the partition is attached, in a moment in which nobody writes.
            assert at.run("archive_day_begin", {"day": today}) == [(100,)]
            pool.submit(lambda: queue.complete(claim(queue))).result(PATIENCE)
            assert at.run("archive_day_attach", {"day": today}) == [(20,)]
    assert kept(queue) == {("work", today): 120}


@pytest.fixture
def reader(queue: SqlQueue, url: str) -> "Iterator[psycopg.Connection[Any]]":
    """Somebody who has read the whole archive in a transaction that goes on."""
    with caller(url) as connection:
        connection.execute(f"SELECT count(*) FROM {queue.database.schema}.job_archive".encode())
        yield connection


def test_a_busy_archive_is_left_for_the_next_time(
    queue: SqlQueue, spec: QueueSpec[Work], today: date, reader: "psycopg.Connection[Any]"
) -> None:
    reader.rollback()
    for day in ahead(today, -30, 0):
        archive(queue, day)
    drop_day(queue, today + timedelta(days=7))
    rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=31))
    reader.execute(f"SELECT count(*) FROM {queue.database.schema}.job_archive".encode())
    with queue.database.connection() as connection:
        at = Transaction(connection, queue.database)
        made = partitions.make_missing(at, strays=True, attempts=2)
        dropped = partitions.drop_over(at, only_queue=None, attempts=2)
    assert (made.days, made.rows_moved, made.busy) == ((), 0, ahead(today, -30, 7))
    assert (dropped.days, dropped.busy) == ((), ahead(today, -31))
    assert strays(queue) == 3, "what could not be attached was not put back"
    reader.rollback()
    done = queue.maintain()
    assert (done.partitions_made, done.rows_moved, done.busy) == (ahead(today, -30, 7), 3, ())
    assert done.partitions_dropped == ahead(today, -31)


def test_consumers_go_on_while_something_waits_for_the_archive(
    queue: SqlQueue, spec: QueueSpec[Work], today: date, reader: "psycopg.Connection[Any]"
) -> None:
    rows(queue, "UPDATE {s}.queue SET retention_days = 1")
    reader.rollback()
    rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=3))
    reader.execute(f"SELECT count(*) FROM {queue.database.schema}.job_archive".encode())
    queue.enqueue_many(spec, [Work(n=n) for n in range(100)])

    def drop() -> partitions.PartitionsDropped:
        """Tries until the reader has gone, and does not wait for it in between."""
        with queue.database.connection() as connection:
            return partitions.drop_over(Transaction(connection, queue.database), only_queue=None, attempts=1_000_000)

    def consume() -> None:
        while jobs := claim(queue, 5):
            queue.complete(jobs)

    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%drop_archive%%'"
    with ThreadPoolExecutor(2) as pool:
        dropping = pool.submit(drop)
        try:
            until(lambda: value(queue, waits), "somebody who waits for the archive")
            pool.submit(consume).result(PATIENCE)
            assert not dropping.done()
        finally:
            reader.rollback()
        assert dropping.result(PATIENCE).days == ahead(today, -3)
    assert queue.depth("work").live == 0


@pytest.mark.prove
def test_maintenance_says_which_days_it_left(queue: SqlQueue, today: date, reader: "psycopg.Connection[Any]") -> None:
    rows(queue, "UPDATE {s}.queue SET retention_days = 1")
    reader.rollback()
    rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=3))
    reader.execute(f"SELECT count(*) FROM {queue.database.schema}.job_archive".encode())
    assert queue.maintain().busy == ahead(today, -3)
    reader.rollback()
    assert queue.maintain().partitions_dropped == ahead(today, -3)


def without_a_summary(queue: SqlQueue, today: date) -> None:
    """Two days, each with more pages than its index has a summary of from its beginning; autovacuum adds none."""
    for day in (today, today - timedelta(days=1)):
        ((index,),) = rows(
            queue,
            "SELECT CAST(i.indexrelid AS regclass)::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            " JOIN pg_am AS a ON a.oid = c.relam"
            f" WHERE a.amname = 'brin' AND i.indrelid = CAST('{{s}}.job_archive_{day:%Y%m%d}' AS regclass)",
        )
        rows(queue, f"ALTER INDEX {index} SET (autosummarize = off)")
        archive(queue, day, count=5_000)


def test_the_pages_of_ended_jobs_are_summarized(queue: SqlQueue, today: date) -> None:
    """A stream would read those without a summary at each of its polls."""
    without_a_summary(queue, today)
    queue.maintain()
    assert value(queue, "SELECT {s}.summarize_archive()") == 0


def test_a_day_that_is_in_use_is_summarized_the_next_time(
    queue: SqlQueue, today: date, reader: "psycopg.Connection[Any]"
) -> None:
    reader.rollback()
    without_a_summary(queue, today)
    rows(queue, "SELECT {s}.summarize_archive()")
    without_a_summary(queue, today)
    reader.execute(
        f"LOCK TABLE {queue.database.schema}.job_archive_{today:%Y%m%d} IN SHARE UPDATE EXCLUSIVE MODE".encode()
    )
    yesterdays = value(queue, "SELECT {s}.summarize_archive()")
    assert yesterdays > 0
    reader.rollback()
    assert value(queue, "SELECT {s}.summarize_archive()") == yesterdays


def test_one_process_maintains_at_a_time(queue: SqlQueue, today: date) -> None:
    drop_day(queue, today)
    with queue.database.connection() as other:
        run = begin(other, queue.database, forced=True)
        assert run is not None
        done = queue.maintain()
        assert (done.ran, done.partitions_made) == (False, ())
        with run.ending():
            pass
    with ThreadPoolExecutor(4) as pool:
        done_by_each = list(pool.map(lambda _: queue.maintain(), range(4)))
    assert [done.partitions_made for done in done_by_each if done.partitions_made] == [(today,)]
    assert value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_a_run_that_was_killed_keeps_the_next_one_for_five_minutes_at_the_most(queue: SqlQueue) -> None:
    with psycopg.connect(queue.database.url.replace("+psycopg", "")) as killed:
        killed.autocommit = True
        run = begin(killed, queue.database, forced=True)
        assert run is not None
    assert not queue.maintain().ran
    rows(queue, "UPDATE {s}.maintenance SET held_until = now()")
    with queue.database.connection() as late:
        lost = begin(late, queue.database, forced=True)
        assert lost is not None
        rows(queue, "UPDATE {s}.maintenance SET held_until = now()")
        assert queue.maintain().ran
        lost._said_at = -1e9
        with pytest.raises(Stopped):
            lost.run("forget_expired", {})


def test_a_run_is_due_an_hour_after_the_last(queue: SqlQueue) -> None:
    upkeep = Maintenance(queue.catalog)
    assert not upkeep.maintain_if_due(stopping=lambda: False).ran, "due an hour after the schema was made"
    rows(queue, "UPDATE {s}.maintenance SET due_at = now()")
    assert upkeep.maintain_if_due(stopping=lambda: True).ran
    assert value(queue, "SELECT done_at FROM {s}.maintenance") is None, "what is stopped is not done"
    assert upkeep.maintain_if_due(stopping=lambda: False).ran
    assert value(queue, "SELECT due_at - done_at FROM {s}.maintenance") == timedelta(hours=1)
    assert not upkeep.maintain_if_due(stopping=lambda: False).ran


def test_maintaining_takes_one_connection(queue: SqlQueue, url: str, today: date) -> None:
    drop_day(queue, today)
    with SqlQueue(url, schema=queue.database.schema, pool_size=1) as narrow:
        assert narrow.maintain().partitions_made == (today,)
        assert narrow.trim("work") == narrow.trim()
        assert Maintenance(narrow.catalog).ensure_partitions()


def test_what_expired_is_removed(queue: SqlQueue) -> None:
    rows(queue, "INSERT INTO {s}.waiter VALUES ('work', 'old', now() - interval '2 minutes'), ('work', 'new', now())")
    rows(queue, "INSERT INTO {s}.worker VALUES ('work', 'a', 1, now() - interval '2 minutes'), ('work', 'b', 1, now())")
    rows(
        queue,
        "INSERT INTO {s}.consumer_slot (queue, sensor, slot, token, buckets, expires_at)"
        " SELECT 'work', n::text, 1, gen_random_uuid(), '{{0}}', now() - n * interval '50 minutes'"
        " FROM generate_series(1, 2) AS n",
    )
    rows(queue, "INSERT INTO {s}.assignment VALUES ('work', 'b', gen_random_uuid(), 1, false)")
    rows(queue, "INSERT INTO {s}.stale_write SELECT 'work', CAST(now() AS date) - n, 1 FROM generate_series(89, 92) n")
    rows(
        queue,
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, created_at)"
        " VALUES (gen_random_uuid(), 'k', 'work', 'abandoned', now(), 'w', now() - interval '5 years')",
    )
    rows(
        queue,
        "INSERT INTO {s}.transactional_consumer (worker, queue, batch_size, backend, believed_until)"
        " SELECT 'w' || days, 'work', 1, 1, now() - days * interval '1 day' FROM generate_series(6, 8, 2) AS days",
    )
    assert queue.maintain().expired_removed == 1 + 1 + 1 + 1 + 2 + 1
    assert rows(queue, "SELECT worker FROM {s}.waiter") == [("new",)]
    assert rows(queue, "SELECT name FROM {s}.worker") == [("b",)]
    assert rows(queue, "SELECT sensor FROM {s}.consumer_slot") == [("1",)]
    assert value(queue, "SELECT count(*) FROM {s}.batch") == 1
    assert queue.maintain().expired_removed == 0


def test_the_start_of_a_drain_makes_what_is_missing(queue: SqlQueue, today: date) -> None:
    assert Maintenance(queue.catalog).ensure_partitions()
    for day in ahead(today, 0, 1, 3):
        drop_day(queue, day)
    assert Maintenance(queue.catalog).ensure_partitions()
    assert set(ahead(today, 0, 1)) < set(days_with_partitions(queue))
    assert today + timedelta(days=3) not in days_with_partitions(queue)


def test_the_start_of_a_drain_moves_nothing(queue: SqlQueue, today: date) -> None:
    for day in ahead(today, 0, 1):
        drop_day(queue, day)
    archive(queue, today)
    assert Maintenance(queue.catalog).ensure_partitions()
    assert strays(queue) == 3
    assert today not in days_with_partitions(queue)


def test_a_consumer_that_may_make_no_tables_goes_on(
    queue: SqlQueue, url: str, today: date, caplog: pytest.LogCaptureFixture
) -> None:
    drop_day(queue, today + timedelta(days=1))
    role = f"consumer_{queue.database.schema}"
    rows(queue, f"CREATE ROLE {role} LOGIN")
    rows(queue, f"GRANT USAGE ON SCHEMA {{s}} TO {role}")
    rows(queue, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{s}} TO {role}")
    try:
        theirs = make_url(url).set(username=role).render_as_string()
        with SqlQueue(theirs, schema=queue.database.schema) as consumer:
            with caplog.at_level(logging.WARNING):
                assert not Maintenance(consumer.catalog).ensure_partitions()
            with pytest.raises(AccessRefused):
                consumer.maintain()
    finally:
        rows(queue, f"DROP OWNED BY {role}")
        rows(queue, f"DROP ROLE {role}")
    (message,) = caplog.messages
    assert "no partition for tomorrow: this user may not make one" in message
    assert "sqlqueue maintain" in message
    assert value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_a_drain_starts_while_the_archive_is_busy(
    queue: SqlQueue, today: date, reader: "psycopg.Connection[Any]", caplog: pytest.LogCaptureFixture
) -> None:
    reader.rollback()
    drop_day(queue, today + timedelta(days=1))
    reader.execute(f"SELECT count(*) FROM {queue.database.schema}.job_archive".encode())
    assert not Maintenance(queue.catalog).ensure_partitions()
    reader.rollback()
    assert Maintenance(queue.catalog).ensure_partitions()


def test_a_drain_without_a_schema_is_not_stopped_here(url: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    with SqlQueue(url, schema=schema) as bare:
        assert not Maintenance(bare.catalog).ensure_partitions()
