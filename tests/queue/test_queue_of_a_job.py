"""The queue of a job is there, and stays there: whatever writes the job, and whatever deletes the queue."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.doctor import Verdict, examine
from dagster_sqlqueue.errors import UnknownQueue
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.support import Work, caller, claim, raw_rows, rows, value
from tests.support.raw_rows import in_schema


def delete(queue: SqlQueue, connection: "psycopg.Connection[Any]", name: str) -> None:
    """As an owner does who deletes a queue by hand."""
    connection.execute(in_schema(queue, "DELETE FROM {s}.bucket WHERE queue = %s"), [name])
    connection.execute(in_schema(queue, "DELETE FROM {s}.queue WHERE name = %s"), [name])


def write_around_the_triggers(queue: SqlQueue, url: str, name: str, jobs: int) -> None:
    with caller(url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        raw_rows.insert(queue, connection, [name] * jobs)
        connection.commit()


WAYS: dict[str, Callable[[SqlQueue, "psycopg.Connection[Any]", str], object]] = {
    "one row": lambda queue, connection, name: raw_rows.insert(queue, connection, [name]),
    "one of many rows": lambda queue, connection, name: raw_rows.insert(
        queue, connection, ["work"] * 300 + [name] + ["work"] * 300
    ),
    "a COPY": lambda queue, connection, name: raw_rows.copy(
        queue, connection, [("work", 0)] * 400 + [(name, 0)] + [("work", 0)] * 99
    ),
    "a job that changes its queue": lambda queue, connection, name: connection.execute(
        in_schema(queue, "UPDATE {s}.job SET queue = %s"), [name]
    ),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_queue_that_is_not_there(
    queue: SqlQueue, url: str, spec: QueueSpec[Work], way: str, known: bool
) -> None:
    queue.enqueue(spec, Work(n=1))
    with caller(url) as connection:
        if known:
            queue.enqueue_many(spec, [Work(n=1)], connection=connection)
        with pytest.raises(
            psycopg.errors.ForeignKeyViolation, match='queue "nowhere", which does not exist'
        ) as refused:
            WAYS[way](queue, connection, "nowhere")
        assert refused.value.diag.constraint_name == "job_queue_fkey"
        assert refused.value.diag.table_name == "job"
    assert value(queue, "SELECT count(*) FROM {s}.job") == 1


def test_verbs_name_the_queue_that_is_not_there(queue: SqlQueue, url: str) -> None:
    nowhere = QueueSpec("nowhere", Work)
    for call in (
        lambda: queue.enqueue(nowhere, Work(n=1)),
        lambda: queue.enqueue_many(nowhere, [Work(n=1)] * 300),
        lambda: queue.enqueue(nowhere, NewJob(Work(n=1), unique_key="u"), on_conflict="replace"),
    ):
        with pytest.raises(UnknownQueue, match="no queue 'nowhere'"):
            call()
    with caller(url) as connection, pytest.raises(psycopg.Error, match="nowhere") as refused:
        connection.execute(f"SELECT {pinned_schema(queue.database.schema)}.enqueue('nowhere', '{{}}')".encode())
    assert refused.value.sqlstate == "SQ002"


def test_a_queue_with_jobs_is_neither_deleted_nor_renamed(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    id = queue.enqueue(spec, Work(n=1))
    for change in (
        "DELETE FROM {s}.queue WHERE name = 'work'",
        "UPDATE {s}.queue SET name = 'other' WHERE name = 'work'",
        "TRUNCATE {s}.queue CASCADE",
    ):
        with caller(url) as connection:
            connection.execute(in_schema(queue, "DELETE FROM {s}.bucket"))
            with pytest.raises(psycopg.errors.ForeignKeyViolation, match='queue "work" has jobs'):
                connection.execute(in_schema(queue, change))
    (job,) = claim(queue, 1)
    assert job.id == id
    queue.complete([job])
    with caller(url) as connection:
        delete(queue, connection, "work")
        connection.commit()
    with pytest.raises(UnknownQueue):
        queue.enqueue(spec, Work(n=1))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_does_not_see_new_jobs_deletes_no_queue(
    queue: SqlQueue, url: str, spec: QueueSpec[Work], level: str
) -> None:
    with caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        assert connection.execute(in_schema(queue, "SELECT count(*) FROM {s}.job")).fetchone() == (0,)
        queue.enqueue(spec, Work(n=1))
        with pytest.raises(psycopg.errors.InvalidTransactionState, match=f'"work" cannot be deleted .* at {level}'):
            delete(queue, connection, "work")
    assert claim(queue, 1)


def test_what_a_savepoint_has_locked_ends_with_it(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    with caller(url) as connection, caller(url) as owner:
        connection.execute("SAVEPOINT before")
        queue.enqueue_many(spec, [Work(n=1)], connection=connection)
        connection.execute("ROLLBACK TO SAVEPOINT before")
        delete(queue, owner, "work")
        owner.commit()
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match='"work", which does not exist'):
            raw_rows.insert(queue, connection)


def test_a_transaction_that_deletes_a_queue_on_which_it_had_put_jobs(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    with caller(url) as connection:
        queue.enqueue_many(spec, [Work(n=1)], connection=connection)
        connection.execute(in_schema(queue, "DELETE FROM {s}.job"))
        delete(queue, connection, "work")
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match='"work", which does not exist'):
            raw_rows.insert(queue, connection)


def test_a_statement_that_deletes_the_queue_of_its_own_job(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    with caller(url) as connection:
        queue.enqueue_many(spec, [Work(n=1)], connection=connection)
        connection.execute(in_schema(queue, "DELETE FROM {s}.job"))
        connection.execute(in_schema(queue, "DELETE FROM {s}.bucket"))
        both = "WITH gone AS (DELETE FROM {s}.queue WHERE name = 'work') " + raw_rows.ROW
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match='"work"'):
            connection.execute(in_schema(queue, both), [0, ["work"]])


def test_a_queue_of_the_same_name_in_another_schema_is_another(
    queue: SqlQueue, url: str, spec: QueueSpec[Work]
) -> None:
    """Settings of a session are distinguished by their names without regard to capitals, schemas are not."""
    with SqlQueue(url, schema=queue.database.schema.upper()) as other, caller(url) as connection:
        other.migrate()
        try:
            queue.enqueue_many(spec, [Work(n=1)], connection=connection)
            with pytest.raises(psycopg.errors.ForeignKeyViolation, match='"work", which does not exist'):
                raw_rows.insert(other, connection)
            connection.rollback()
        finally:
            rows(other, "DROP SCHEMA {s} CASCADE")


def test_the_row_of_the_queue_is_locked_once_a_call(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    calls = (
        "SELECT funcname, calls FROM pg_stat_xact_user_functions"
        f" WHERE schemaname = '{queue.database.schema}' AND funcname LIKE 'keep_queue%'"
    )
    with caller(url) as connection:
        connection.execute("SET LOCAL track_functions = 'pl'")
        queue.enqueue_many(spec, [Work(n=n) for n in range(3_000)], connection=connection)
        assert connection.execute(calls.encode()).fetchall() == [("keep_queue", 1)]
        queue.enqueue_many(spec, [NewJob(Work(n=n), unique_key=f"{n}") for n in range(300)], connection=connection)
        assert connection.execute(calls.encode()).fetchall() == [("keep_queue", 2)]
        many = (
            f"SELECT {pinned_schema(queue.database.schema)}.enqueue_many('work', array_fill(jsonb '{{}}', ARRAY[50]))"
        )
        connection.execute(many.encode())
        assert connection.execute(calls.encode()).fetchall() == [("keep_queue", 3)]


def test_of_many_jobs_the_first_sees_to_the_queue_and_wakes(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The first of a priority that is new has it noted, the first that is due in each bucket wakes a consumer."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    jobs = [NewJob(Work(n=n), priority=3, run_at=tomorrow if n % 2 else None) for n in range(400)]
    queue.enqueue_many(spec, [*jobs, *(Work(n=n) for n in range(200))])
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE NOT queue_kept") == 1
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE NOT queue_kept AND priority = 3") == 1
    assert set(rows(queue, "SELECT DISTINCT priority FROM {s}.queue_priority")) == {(0,), (3,)}
    due = "SELECT bucket, count(*) FROM {s}.job WHERE wakes AND run_at <= now() GROUP BY bucket ORDER BY bucket"
    assert rows(queue, due) == [(bucket, 1) for bucket in range(spec.bucket_count)]
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE NOT wakes AND run_at > now()") == 0
    assert len(claim(queue, 1_000)) == 400


def test_rows_that_say_that_their_queue_is_kept(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    """They are checked no more where they are enqueued, and as any others where their queue or priority changes."""
    row = raw_rows.ROW.replace("max_attempts, ", "max_attempts, queue_kept, ").replace("1, '", "1, true, '")
    with caller(url) as connection:
        assert connection.execute(in_schema(queue, "SELECT {s}.keep_queue('work')")).fetchone() == (True,)
        connection.execute(in_schema(queue, row), [0, ["work"] * 3])
        connection.commit()
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match='queue "nowhere", which does not exist'):
            connection.execute(in_schema(queue, "UPDATE {s}.job SET queue = 'nowhere'"))
    rows(queue, "UPDATE {s}.job SET priority = 5")
    assert set(rows(queue, "SELECT priority FROM {s}.queue_priority")) == {(0,), (5,)}
    assert len(claim(queue, 10)) == 3


def test_staged_jobs_of_a_queue_that_has_gone_are_no_duplicates(queue: SqlQueue) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match='queue "nowhere", which does not exist') as refused:
        rows(queue, "SELECT {s}.enqueue_staged(gen_random_uuid(), 'nowhere', NULL, NULL, '{{}}', 0)")
    assert refused.value.diag.constraint_name == "job_queue_fkey"


def test_jobs_of_no_queue_stop_nothing_and_are_named(queue: SqlQueue, url: str, spec: QueueSpec[Work]) -> None:
    """More of them than maintenance reads in one go, on queues that come before and after the other."""
    for name in ("aaa", "zzz"):
        write_around_the_triggers(queue, url, name, 1_500)
    kept = queue.enqueue(spec, Work(n=1))
    stray = queue.enqueue(spec, Work(n=2))
    rows(queue, "UPDATE {s}.job SET bucket = 900 WHERE id = %s", stray)
    (found,) = [check for check in examine(queue.database) if check.name == "strays"]
    assert found.verdict is Verdict.WARN
    assert (
        "1 of queue work; jobs are on queues that do not exist: 1,500 of queue aaa, 1,500 of queue zzz" in found.found
    )
    assert "sqlqueue maintain" in found.cure
    assert "sqlqueue create" in found.cure
    assert queue.maintain().jobs_moved == 1
    assert [settings.name for settings in queue.queues()] == ["work"]
    assert queue.stats("work").ready == 2
    assert {job.id for job in claim(queue, 10)} == {kept, stray}
    # Made, it has them.
    queue.create_queue(QueueSpec("zzz", Work))
    queue.maintain()
    assert len(queue.claim("zzz", limit=2_000, worker="w")) == 1_500
