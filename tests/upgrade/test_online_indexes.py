"""Indexes that are made CONCURRENTLY: what an interrupted build left is made anew, and a long wait is reported and ended."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, SchemaBusy
from dagster_sqlqueue.schema import online_indexes
from dagster_sqlqueue.schema.lock_waits import LockWaits
from dagster_sqlqueue.schema.migrations import Migration
from tests.support import Work, rows, until, value
from tests.upgrade.crowd import Crowd
from tests.upgrade.made_up import MADE_UP, become

BUILDING = (
    "SELECT a.pid FROM pg_stat_activity AS a WHERE a.query LIKE '/* sqlqueue migrate {s} */ CREATE INDEX%%'"
    " AND a.wait_event_type = 'Lock'"
)
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"


@pytest.fixture
def writer(url: str, queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """In a transaction that has written a job: an index of the jobs is not made before it ends."""
    become(monkeypatch, 2)
    queue.migrate()
    queue.enqueue(spec, Work(n=1))
    become(monkeypatch, 3)
    with psycopg.connect(url) as connection:
        connection.execute(f"UPDATE {queue.database.schema}.job SET label = 'hunter2'".encode())
        yield connection


def building(queue: SqlQueue) -> list[int]:
    """The sessions that wait in the middle of making the index."""
    with queue.database.connection() as connection:
        return [
            pid
            for (pid,) in connection.execute(BUILDING.replace("{s}", queue.database.schema).replace("%%", "%").encode())
        ]


def valid(queue: SqlQueue) -> list[tuple[bool]]:
    return rows(queue, VALID, f"{queue.database.schema}.job_label")


def test_jobs_come_and_go_while_an_index_is_made(
    queue: SqlQueue, spec: QueueSpec[Work], writer: "psycopg.Connection[Any]"
) -> None:
    reported: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        migration = pool.submit(queue.migrate, LockWaits(0.3, 600.0, reported.append))
        until(lambda: building(queue) and reported, "the build, and the word on whom it waits")
        locks = "SELECT l.mode FROM pg_locks AS l WHERE l.pid = ANY (%s) AND l.relation = %s::regclass AND l.granted"
        found = rows(queue, locks, building(queue), f"{queue.database.schema}.job")
        assert {mode for (mode,) in found} == {"ShareUpdateExclusiveLock"}
        assert [lock.mode for lock in MADE_UP[1].locks] == ["SHARE UPDATE EXCLUSIVE"]
        queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
        assert not migration.done()
        writer.rollback()
        assert [one.version for one in migration.result()] == [3]
    assert f"it waits for process {writer.info.backend_pid}" in reported[0]
    assert "hunter2" not in "".join(reported)
    assert valid(queue) == [(True,)]


def test_what_an_interrupted_build_left_is_made_anew(
    queue: SqlQueue, crowd: Crowd, writer: "psycopg.Connection[Any]"
) -> None:
    killed = crowd.start("migrate", 3)
    (pid,) = until(lambda: building(queue), "the build")
    killed.gone()
    rows(queue, "SELECT pg_terminate_backend(%s)", pid)
    until(lambda: not building(queue), "the end of the build")
    assert valid(queue) == [(False,)]
    assert rows(queue, "SELECT version FROM {s}.schema_version ORDER BY 1") == [(1,), (2,)]
    writer.rollback()
    assert [one.version for one in queue.migrate()] == [3]
    assert valid(queue) == [(True,)]


@pytest.mark.prove
def test_a_build_whose_migrate_was_killed_may_go_on_beside_the_next(
    queue: SqlQueue, crowd: Crowd, writer: "psycopg.Connection[Any]"
) -> None:
    """The server does not see at once that the one who asked is gone."""
    killed = crowd.start("migrate", 3)
    until(lambda: building(queue), "the build")
    killed.gone()
    with ThreadPoolExecutor(1) as pool:
        migration = pool.submit(queue.migrate)
        writer.rollback()
        assert [one.version for one in migration.result()] == [3]
    assert valid(queue) == [(True,)]


@pytest.mark.prove
def test_a_build_that_waits_for_too_long_is_ended(queue: SqlQueue, writer: "psycopg.Connection[Any]") -> None:
    with pytest.raises(SchemaBusy, match=f"it waits for process {writer.info.backend_pid}, .*: sqlqueue migrate"):
        queue.migrate(LockWaits(0.3, 1.0))
    assert value(queue, "SELECT max(version) FROM {s}.schema_version") == 2
    writer.rollback()
    assert [one.version for one in queue.migrate()] == [3]
    assert valid(queue) == [(True,)]


def test_a_migration_without_a_transaction_is_of_indexes() -> None:
    text = (
        "-- Transaction: none\nCREATE INDEX CONCURRENTLY a ON sqlqueue.job (id);\nDROP INDEX CONCURRENTLY sqlqueue.b;"
    )
    found = online_indexes.statements_of(Migration(2, "some", text))
    assert [(one.name, one.makes) for one in found] == [("a", True), ("b", False)]
    for other in ("CREATE INDEX a ON sqlqueue.job (id)", "UPDATE sqlqueue.job SET state = 'held'"):
        with pytest.raises(InvalidInput, match="0002_other has no transaction, and a statement that is none of"):
            online_indexes.statements_of(Migration(2, "other", other))
