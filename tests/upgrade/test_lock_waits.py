"""A migration that waits for locks: others go on, it says on whom it waits, and it does not wait for ever."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput, SchemaBusy
from dagster_sqlqueue.schema.lock_waits import LockWaits, shown
from dagster_sqlqueue.schema.migrations import Migration
from tests.cli.support import Cli
from tests.support import Work, rows, until, value
from tests.upgrade.crowd import Crowd
from tests.upgrade.made_up import MADE_UP, REAL, become, known_to

SECRET = "hunter2"


@pytest.fixture
def reader(url: str, queue: SqlQueue) -> Iterator["psycopg.Connection[Any]"]:
    """In a transaction that has read the jobs, and holds a lock on their table until it ends."""
    with psycopg.connect(url) as connection:
        connection.execute(f"SELECT /* don't tell */ '{SECRET}'\n FROM {queue.database.schema}.job".encode())
        yield connection


def test_producers_go_on_while_a_migration_waits_for_an_open_select(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    reader: "psycopg.Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(monkeypatch, 2)
    reported: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        migration = pool.submit(queue.migrate, LockWaits(0.2, 600.0, reported.append))
        until(lambda: reported, "the word on whom it waits")
        for n in range(20):
            queue.enqueue(spec, Work(n=n))
        assert not migration.done()
        assert value(queue, "SELECT count(*) FROM {s}.job") == 20
        reader.rollback()
        assert [one.version for one in migration.result()] == [2]
    assert f"it waits for process {reader.info.backend_pid}, in a transaction since 20" in reported[0]
    assert reported[0].endswith("Z, idle after: SELECT   ?")
    assert SECRET not in "".join(reported)


def test_it_gives_up_and_leaves_everything_as_it_was(
    queue: SqlQueue,
    url: str,
    reader: "psycopg.Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(monkeypatch, 2)
    with pytest.raises(SchemaBusy, match=f"it waits for process {reader.info.backend_pid}, .*again: sqlqueue migrate$"):
        queue.migrate(LockWaits(0.3, 1.0))
    cli = Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": queue.database.schema})
    ended = cli.run("migrate", "--lock-timeout", "300ms", "--give-up-after", "1s")
    assert (ended.exit_code, ended.stdout) == (10, "")
    note, error = ended.stderr.splitlines()
    assert note.startswith(f"it waits for process {reader.info.backend_pid}")
    assert error.startswith("error: the migration did not get its locks within 1.0 s")
    assert SECRET not in ended.stderr
    assert value(queue, "SELECT max(version) FROM {s}.schema_version") == 1
    reader.rollback()
    assert [one.version for one in queue.migrate()] == [2]
    assert "must be a positive number" in cli.refused(2, "migrate", "--give-up-after", "0")
    with pytest.raises(InvalidInput, match="lock_timeout_seconds is -1"):
        LockWaits(-1)


def test_it_takes_all_its_locks_before_it_does_anything(
    queue: SqlQueue, reader: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would hold the first ones while it waits for the others, once more for each of them."""
    text = (
        "-- Locks: queue ACCESS EXCLUSIVE; job ACCESS EXCLUSIVE\n"
        "ALTER TABLE sqlqueue.queue ADD COLUMN label text; SELECT pg_sleep(600);"
    )
    become(monkeypatch, 1)
    monkeypatch.setattr("dagster_sqlqueue.schema.migrations.available", lambda: (*REAL, Migration(2, "both", text)))
    with pytest.raises(SchemaBusy):
        queue.migrate(LockWaits(0.2, 0.5))


@pytest.mark.parametrize(
    "migration", [*REAL, *(one for one in MADE_UP if one.transactional)], ids=lambda one: one.label
)
def test_the_locks_of_a_header_are_those_that_the_server_grants(
    url: str, schema: str, migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, migration.version - 1)
    there = "SELECT c.oid FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p')"
    taken = (
        "SELECT c.relname, l.mode FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation"
        " WHERE l.pid = pg_backend_pid() AND l.granted AND l.relation = ANY (%s)"
    )
    with SqlQueue(url, schema=schema) as queue:
        if known_to(migration.version - 1):
            queue.migrate()
        with queue.database.connection() as connection, connection.transaction():
            oids = [oid for (oid,) in connection.execute(there, (schema,))]
            if not oids:
                connection.execute(statements.load("prepare_schema", schema).encode())
            connection.execute(statements.in_schema(migration.text, schema).encode())
            found = {(table, mode.removesuffix("Lock").upper()) for table, mode in connection.execute(taken, (oids,))}
    written = {(table, mode.replace(" ", "")) for table, mode in migration.locks}
    assert {(table, mode) for table, mode in found if mode != "ACCESSSHARE"} == written


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("ALTER ROLE ada PASSWORD 'hunter2'", "ALTER ROLE ada PASSWORD ?"),
        ("/* don't */ ALTER ROLE ada PASSWORD 'hunter2'", "ALTER ROLE ada PASSWORD ?"),
        ("-- it's\nSELECT \"it's\", 'hunter2', E'\\'hunter2', 4711", 'SELECT "it\'s", ?, ?, ?'),
        ("DO $x$ hunter2 $x$", "DO ?"),
        ("SELECT 'hunter2, cut off", "SELECT ?"),
        ("SELECT $$ hunter2, cut off", "SELECT ?"),
        ("\n  SELECT $1\n  FROM t2", "SELECT $?"),
        ("", ""),
        ("SELECT " + "x" * 200, "SELECT " + "x" * 93 + "…"),
    ],
)
def test_what_is_shown_of_a_statement(query: str, line: str) -> None:
    assert shown(query) == line


@pytest.mark.prove
def test_of_several_at_once_one_applies_and_none_needs_a_session(
    url: str, queue: SqlQueue, crowd: Crowd, reader: "psycopg.Connection[Any]"
) -> None:
    all_of_them = [crowd.start("migrate", 4) for _ in range(3)]
    until(
        lambda: value(queue, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'") > 0, "a wait"
    )
    assert rows(queue, "SELECT objsubid FROM pg_locks WHERE locktype = 'advisory' AND mode <> 'ExclusiveLock'") == []
    reader.rollback()
    assert [process.ended() for process in all_of_them] == [0, 0, 0]
    assert sorted(version for version, _ in crowd.said("applied")) == ["2", "3", "4"]
    with queue.database.connection() as connection:
        assert Transaction(connection, queue.database).run("migration_index", {"name": "job_label"}) == [(True,)]


def test_a_migration_that_was_killed_is_finished_by_the_next(
    queue: SqlQueue, crowd: Crowd, reader: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = crowd.start("migrate", 4)
    until(
        lambda: value(queue, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'") > 0, "a wait"
    )
    killed.gone()
    reader.rollback()
    become(monkeypatch, 4)
    finished = {migration.version for migration in queue.migrate(LockWaits(0.2, 600.0))}
    assert finished | {2, 3, 4} == {2, 3, 4}
    assert rows(queue, "SELECT version FROM {s}.schema_version ORDER BY 1") == [(1,), (2,), (3,), (4,)]
    assert threading.active_count() < 20
