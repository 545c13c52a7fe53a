"""Which versions of code and schema work together, what is said of it, and what code can ask of a schema."""

import logging

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.doctor import Verdict, examine
from dagster_sqlqueue.errors import InvalidInput, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.schema import capabilities, migrations, window
from dagster_sqlqueue.schema.migration_files import LOCK_MODES, Migration, TableLock
from tests.support import rows, value
from tests.upgrade.made_up import MADE_UP, REAL, MadeUp, become


def test_every_migration_says_whom_it_serves_and_what_it_locks() -> None:
    for migration in (*REAL, *MADE_UP):
        assert "-- Serves: " in migration.text, migration.label
        assert "-- Locks: " in migration.text, migration.label
        assert 1 <= migration.serves_from <= migration.version
        assert all(lock.mode in LOCK_MODES for lock in migration.locks)
    assert REAL[-1].version - 1 <= window.OLDEST_SCHEMA <= REAL[-1].version or len(REAL) > 2


def test_headers() -> None:
    plain = Migration(7, "plain", "SELECT 1;\n-- Serves: 0001\n")
    assert (plain.serves_from, plain.transactional, plain.locks) == (7, True, ())
    said = Migration(
        7, "said", "-- Of it.\n--\n-- Serves: 0003\n-- Transaction: none\n-- Locks: job SHARE; queue EXCLUSIVE\n"
    )
    assert (said.serves_from, said.transactional) == (3, False)
    assert said.locks == (TableLock("job", "SHARE"), TableLock("queue", "EXCLUSIVE"))
    with pytest.raises(InvalidInput, match=r"0007_wrong has the header Locks: 'job MUCH'"):
        _ = Migration(7, "wrong", "-- Locks: job MUCH\n").locks
    with pytest.raises(InvalidInput, match="Transaction: 'some'"):
        _ = Migration(7, "wrong", "-- Transaction: some\n").transactional


def test_new_code_on_the_last_schema(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    become(monkeypatch, 2)
    with caplog.at_level(logging.WARNING):
        assert [migrations.check(queue.database) for _ in range(3)] == [1, 1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        f"schema {queue.database.schema!r} of {queue.database.where}: the schema is at version 1, older than this package"
        " (0.1.0), which knows version 2 and works on it; upgrade the schema when it suits: sqlqueue migrate"
    ]
    checks = {check.name: check for check in examine(queue.database)}
    assert (checks["schema"].verdict, checks["schema"].cure) == (
        Verdict.WARN,
        "upgrade the schema when it suits: sqlqueue migrate",
    )
    assert checks["indexes"].verdict is Verdict.OK
    assert checks["roles"].found.startswith("not compared")
    monkeypatch.setattr(window, "OLDEST_SCHEMA", 2)
    lacks = r"is at version 1 and lacks 0002_label; .* from 2 on\. The schema is to be upgraded: sqlqueue migrate$"
    with pytest.raises(SchemaTooOld, match=lacks):
        migrations.check(queue.database)


def test_old_code_on_the_next_schema(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        become(patch, 2)
        queue.migrate()
        functions = rows(queue, "SELECT * FROM {s}.function_set")
    with caplog.at_level(logging.WARNING):
        assert [migrations.check(queue.database) for _ in range(3)] == [2, 2, 2]
    assert len(caplog.records) == 1
    assert "newer than this package" in caplog.text
    check = next(examine(queue.database))
    assert (check.verdict, check.cure) == (
        Verdict.WARN,
        "upgrade the package when it suits: pip install --upgrade dagster-sqlqueue",
    )
    assert queue.migrate() == []
    assert rows(queue, "SELECT * FROM {s}.function_set") == functions


def test_a_floor_shuts_old_code_out_and_not_the_one_that_it_names(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        become(patch, 4)
        queue.migrate()
        assert migrations.check(queue.database) == 4
    for call in (lambda: migrations.check(queue.database), queue.migrate):
        with pytest.raises(
            SchemaTooNew,
            match=r"at version 4, which serves code that knows version 2 or a newer one; .* up to 1\. The package",
        ):
            call()
    assert next(examine(queue.database)).verdict is Verdict.FAIL
    become(monkeypatch, 2)
    assert migrations.check(queue.database) == 4


def test_a_migration_that_was_skipped_is_no_older_schema(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(queue, "INSERT INTO {s}.schema_version VALUES (3, 'next', 1)")
    become(monkeypatch, 3)
    with pytest.raises(SchemaTooOld, match="lacks 0002_label;"):
        migrations.check(queue.database)


def test_code_asks_a_schema_what_it_can_do(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, 2)
    assert not capabilities.has(queue.database, MadeUp.LABELS)
    queue.migrate()
    monkeypatch.setattr(capabilities, "_POLL_SECONDS", 0.0)
    assert capabilities.has(queue.database, MadeUp.LABELS)
    assert value(queue, "SELECT {s}.labelled('new')") == 0
    rows(queue, "DROP TABLE {s}.schema_version")
    assert capabilities.has(queue.database, MadeUp.LABELS)
