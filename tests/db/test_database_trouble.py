"""The database is away, refuses us, or holds another schema: what is said, and that no password is in it."""

import multiprocessing
import re
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Database, QueueSpec, SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import (
    DatabaseUnavailable,
    InvalidInput,
    QueueError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from dagster_sqlqueue.schema import migrations, window
from dagster_sqlqueue.schema.migrations import Migration
from tests.gate.patience import sized
from tests.support import OwnServer, Work, claim, drop, narrow_queue, own_server, rows, until, value

PASSWORD = "s3cr/t@%pass word"
QUOTED = "s3cr%2Ft%40%25pass%20word"


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose tables a test may break."""
    return fresh


@pytest.fixture(scope="module")
def guarded() -> Iterator[OwnServer]:
    """A server that asks for a password."""
    with own_server(password="right") as server:
        yield server


def message_of(url: str) -> str:
    """Everything that an error and its traceback say when a verb is called."""
    with SqlQueue(url, connect_timeout=30) as queue, pytest.raises(DatabaseUnavailable) as caught:
        queue.depth("work")
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    return f"{shown}\n{queue.database!r}\n{queue.database.where}"


@pytest.mark.parametrize("password", [QUOTED, "wrong"])
def test_a_wrong_password_is_reported_and_never_shown(guarded: OwnServer, password: str) -> None:
    said = message_of(f"postgresql://postgres:{password}@{guarded.query}")
    assert "check user and password in SQLQUEUE_URL" in said
    assert 'password authentication failed for user "postgres"' in said
    for secret in (PASSWORD, QUOTED, "pass word", "wrong"):
        assert secret not in said


def test_a_password_that_is_a_usual_word_does_not_show_through_what_is_blotted_out(guarded: OwnServer) -> None:
    said = message_of(f"postgresql://postgres:authentication@{guarded.query}")
    assert "***" not in said
    assert "check user and password" in said


def test_a_password_in_the_query_is_not_shown_either(guarded: OwnServer) -> None:
    said = message_of(f"postgresql://postgres@{guarded.query}&password={QUOTED}")
    assert "check user and password" in said
    assert PASSWORD not in said
    assert QUOTED not in said


def test_the_right_password_works(guarded: OwnServer) -> None:
    with SqlQueue(f"postgresql://postgres:right@{guarded.query}") as queue:
        assert [migration.version for migration in queue.migrate()] == [m.version for m in migrations.available()]


def test_no_password_at_all_is_reported(guarded: OwnServer) -> None:
    assert "check user and password" in message_of(guarded.url)


@pytest.mark.parametrize(
    ("url", "reason", "cure"),
    [
        ("postgresql://u:{p}@127.0.0.1:1/db", "127.0.0.1:1/db", "names its host and port"),
        ("postgresql://u:{p}@nowhere.invalid/db", "nowhere.invalid/db", "names its host and port"),
        ("postgresql://u:{p}@/db?host=/nonexistent", "/nonexistent", "names its host and port"),
    ],
)
def test_an_unreachable_host_is_named(url: str, reason: str, cure: str) -> None:
    said = message_of(url.format(p=QUOTED))
    assert reason in said
    assert cure in said
    assert "cannot use the database" in said
    assert PASSWORD not in said
    assert QUOTED not in said


def test_a_missing_database_is_named(url: str) -> None:
    said = message_of(url.replace("/postgres?", "/not_there?"))
    assert 'database "not_there" does not exist' in said
    assert "check the database and user in SQLQUEUE_URL" in said


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"mysql://u:{QUOTED}@h/db", "begins with 'mysql'"),
        (f"postgresql+psycopg2://u:{QUOTED}@h/db", r"begins with 'postgresql\+psycopg2'"),
        (f"postgresql+asyncpg://u:{QUOTED}@h/db", r"begins with 'postgresql\+asyncpg'"),
        (f"postgresql://u:{QUOTED}@h:port/db", "does not parse"),
        (f"u:{QUOTED}@h/db", "does not parse"),
        ("postgresql://u:not@quoted@h/db", "more than one '@'.*%40"),
        ("", "does not parse"),
    ],
)
def test_a_url_that_is_none_is_refused_without_showing_it(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        Database(url)
    said = "".join(traceback.format_exception(caught.value, limit=0))
    for secret in (PASSWORD, QUOTED, "quoted@h"):
        assert secret not in said


def test_urls_that_mean_the_same() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        database = Database(f"{scheme}://u:{QUOTED}@host:6543/db")
        assert (database.where, repr(database)) == ("host:6543/db", "Database('host:6543/db', schema='sqlqueue')")


def test_settings_reach_the_connections(url: str) -> None:
    database = Database(url, application_name="x" * 100, statement_timeout=1.5, pool_size=1)
    with database.connection() as connection:
        shown = [
            connection.execute(f"SHOW {name}".encode()).fetchall()[0][0]
            for name in ("application_name", "statement_timeout", "timezone", "default_transaction_isolation")
        ]
    assert shown == ["x" * 63, "1500ms", "UTC", "read committed"]
    with pytest.raises(InvalidInput, match="pool_size is 0"):
        Database(url, pool_size=0)
    database.close()


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("pool_size", [0, -1, "5", 1.5, True, None]),
        ("application_name", [None, 7]),
        ("connect_timeout", [0, -1, "10", 2.5, None]),
        ("statement_timeout", [0, -1, "5", float("nan"), float("inf"), 0.0001, 3_000_000]),
    ],
)
def test_settings_that_no_connection_can_have_are_refused(url: str, setting: str, values: list[Any]) -> None:
    for wrong in values:
        settings: dict[str, Any] = {setting: wrong}
        for build in (Database, SqlQueue):
            with pytest.raises(InvalidInput, match=f"{setting} is {re.escape(repr(wrong))}; "):
                build(url, **settings)


def test_a_missing_schema_is_reported_with_its_cure(url: str, spec: QueueSpec[Work]) -> None:
    with SqlQueue(url, schema="not_made") as queue:
        calls = [
            lambda: queue.enqueue(spec, Work(n=1)),
            lambda: queue.enqueue_many(spec, [Work(n=1)]),
            lambda: claim(queue),
            lambda: queue.depth("work"),
            lambda: queue.settings("work"),
            lambda: queue.create_queue(spec),
            lambda: migrations.check(queue.database),
        ]
        for call in calls:
            with pytest.raises(
                SchemaMissing, match=r"schema 'not_made' of .* Make them with: sqlqueue migrate --schema not_made"
            ):
                call()


def test_an_older_schema_is_reported_with_its_cure_and_mended_by_it(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.available()
    assert migrations.check(queue.database) == known[-1].version
    later = Migration(known[-1].version + 1, "later", "CREATE TABLE sqlqueue.later (n integer)")
    monkeypatch.setattr(migrations, "available", lambda: (*known, later))
    monkeypatch.setattr(window, "OLDEST_SCHEMA", later.version)
    lacks = rf"is at version {known[-1].version} and lacks {later.version:04}_later; .* The schema .*: sqlqueue migrate"
    with pytest.raises(SchemaTooOld, match=lacks):
        migrations.check(queue.database)
    assert queue.migrate() == [later]
    assert migrations.check(queue.database) == later.version
    assert rows(queue, "SELECT n FROM {s}.later") == []


def test_a_newer_schema_is_reported_with_its_cure(queue: SqlQueue) -> None:
    rows(queue, "INSERT INTO {s}.schema_version (version, name, serves_from) VALUES (9999, 'future', 9999)")
    for call in (lambda: migrations.check(queue.database), queue.migrate):
        with pytest.raises(SchemaTooNew, match=r"is at version 9999, .*pip install --upgrade dagster-sqlqueue"):
            call()


def test_migrating_again_applies_nothing(queue: SqlQueue) -> None:
    assert queue.migrate() == []


def _migrate(url: str, schema: str) -> list[int]:
    with SqlQueue(url, schema=schema) as queue:
        return [migration.version for migration in queue.migrate()]


def test_of_many_processes_that_migrate_one_applies(url: str, schema: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dagster_sqlqueue"])
    processes = sized(3, 8)
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        applied = [future.result() for future in [pool.submit(_migrate, url, schema) for _ in range(processes)]]
    assert sorted(applied, key=len) == [[]] * (processes - 1) + [[m.version for m in migrations.available()]]


def test_a_migration_that_fails_leaves_everything_as_it_was(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.available()
    next = known[-1].version + 1
    broken = Migration(next, "broken", "CREATE TABLE sqlqueue.half (n integer); SELECT 1 / 0;")
    after = Migration(next + 1, "after", "CREATE TABLE sqlqueue.after (n integer);")
    with SqlQueue(url, schema=schema) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "available", lambda: (*known, broken, after))
            with pytest.raises(psycopg.errors.DivisionByZero):
                queue.migrate()
        assert value(queue, "SELECT to_regnamespace(%s)", schema) is None
        assert value(queue, "SELECT to_regnamespace(%s)", f"{schema}_v1") is None
        assert value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        queue.migrate()
        assert migrations.check(queue.database) == known[-1].version


def test_two_may_make_the_same_partition_at_once(queue: SqlQueue) -> None:
    make = f"SELECT {queue.database.schema}.make_archive_partition('2050-01-01')".encode()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with ThreadPoolExecutor(1) as pool, queue.database.connection() as first:
        with first.transaction():
            assert first.execute(make).fetchall() == [("job_archive_20500101",)]
            second = pool.submit(rows, queue, make.decode())
            until(lambda: value(queue, waiting, f"%{queue.database.schema}.make_archive_partition('2050%"))
        assert second.result() == [(None,)]


@pytest.mark.parametrize("name", ["Selected", "Weird$1", "_", "x" * 63])
def test_a_schema_name_may_need_quotes(url: str, spec: QueueSpec[Work], name: str) -> None:
    with SqlQueue(url, schema=name) as queue:
        with pytest.raises(SchemaMissing, match="sqlqueue migrate"):
            queue.depth("work")
        queue.migrate()
        queue.create_queue(spec)
        queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
        queue.complete(claim(queue)[:2])
        assert (queue.depth("work").live, migrations.check(queue.database)) == (1, migrations.available()[-1].version)
        assert value(queue, "SELECT count(*) FROM {s}.job_archive_default") == 0
        drop(queue)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "pg_catalog",
        "PG_x",
        "a b",
        'a"; DROP TABLE x; --',
        "a'b",
        "a.b",
        "1a",
        "a\n",
        "a%s",
        "a:b",
        "ü",
        "x" * 64,
        None,
    ],
)
def test_a_hostile_schema_name_is_refused(url: str, name: str) -> None:
    with pytest.raises(InvalidInput, match="is not usable"):
        SqlQueue(url, schema=name)


def test_there_is_no_statement_of_another_name() -> None:
    with pytest.raises(InvalidInput, match="no SQL file 'nothing'"):
        statements.load("nothing")


def test_every_statement_can_be_prepared_by_the_server(queue: SqlQueue) -> None:
    """What the loader makes of each file is SQL, in a schema of any name, with nothing of the default schema left."""
    schema = queue.database.schema
    files = statements.names()
    unpreparable = {"prepare_schema", "waiter_listen", "enqueue_copy", "snapshot", "roles_make", "roles_grant"}
    unpreparable |= {"merge_begin", "merge_again", "merge_end", "stage_copy", "spark_keep_archive", "spark_keep_live"}
    assert len(files) > 100
    with queue.database.connection() as connection:
        for name in set(files) - unpreparable:
            text = statements.load(name, schema)
            assert "sqlqueue" not in text, name
            assert ":=" in text or " :" not in text, name
            numbered: dict[str, str] = {}
            for part in text.replace("%%", "%").split("%(")[1:]:
                numbered.setdefault(part.split(")")[0], f"${len(numbered) + 1}")
            for parameter, number in numbered.items():
                for form in ("s", "b"):
                    text = text.replace(f"%({parameter}){form}", number)
            connection.execute(f"PREPARE tried AS {text.replace('%%', '%')}".encode())
            connection.execute("DEALLOCATE tried")


def test_a_terminated_connection_does_not_come_back(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """What was cut off is reported; the next call works, on a new connection."""
    with pytest.raises(DatabaseUnavailable, match="terminating connection"):
        rows(queue, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert queue.enqueue(spec, Work(n=1))


def test_a_pool_that_is_used_up_is_reported_with_its_cure(url: str) -> None:
    with (
        narrow_queue(url, "dagster_sqlqueue") as queue,
        queue.database.connection(),
        pytest.raises(DatabaseUnavailable, match=r"none of the 1 connections to .*; raise pool_size"),
    ):
        queue.depth("work")


def test_a_deadlock_or_a_conflict_is_tried_again_by_itself(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    rows(
        queue,
        """CREATE FUNCTION {s}.conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('conflicts') < 4 THEN RAISE SQLSTATE '40001'; END IF; RETURN NEW; END $$""",
    )
    rows(queue, "CREATE SEQUENCE public.conflicts")
    rows(queue, "CREATE TRIGGER conflict BEFORE INSERT ON {s}.job FOR EACH ROW EXECUTE FUNCTION {s}.conflict()")
    assert queue.enqueue(spec, Work(n=1))
    assert value(queue, "SELECT last_value FROM public.conflicts") == 4
    rows(queue, "DROP SEQUENCE public.conflicts")


def test_statements_sent_together_work_again_after_one_has_failed(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it failed as the driver had the next one prepared."""
    load = statements.load
    monkeypatch.setattr(
        statements, "load", lambda name, *rest: "SELECT 1 / %(by)s" if name == "divide" else load(name, *rest)
    )
    for number in range(12):
        lock = ("queue_lock", {"name": "work"})
        if number in (4, 5, 6):
            with pytest.raises(psycopg.errors.DivisionByZero):
                queue.database.run_together(("divide", {"by": 0}), lock)
        else:
            assert queue.database.run_together(("divide", {"by": 1}), lock) == [[(1,)], [("work",)]]


def test_the_errors_are_one_tree() -> None:
    from dagster_sqlqueue import errors

    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, QueueError) for kind in found)
    assert all(f"`{kind.__name__}`" in (errors.__doc__ or "") for kind in found)
