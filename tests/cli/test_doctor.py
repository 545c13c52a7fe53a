"""`doctor`: each finding on a real server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli import doctor
from dagster_sqlqueue.cli.doctor import Check, Verdict, examine
from tests.cli.support import Cli


def _found(queue: SqlQueue) -> dict[str, Check]:
    return {check.name: check for check in examine(queue.database)}


def _server(**changes: Any) -> doctor.Server:
    well: dict[str, Any] = {
        "version_number": 180_000,
        "version": "18.0",
        "clock": 1_000.0,
        "isolation": "read committed",
        "read_only": False,
        "autovacuum": True,
        "fsync": "on",
        "synchronous_commit": "on",
        "connections": 1,
        "max_connections": 100,
        "sees_all": True,
        "asked_at": 999.9,
        "answered_at": 1_000.1,
    }
    return doctor.Server(**{**well, **changes})


@contextmanager
def _setting(url: str, name: str, value: str) -> Iterator[None]:
    def apply(statement: str, wanted: str | None) -> str:
        with psycopg.connect(url, autocommit=True) as connection:
            before = str(connection.execute(f"SHOW {name}").fetchone()[0])
            connection.execute(statement.encode())
            connection.execute("SELECT pg_reload_conf()")
        for _ in range(1_000):
            with psycopg.connect(url) as connection:
                if wanted is None or connection.execute(f"SHOW {name}").fetchone()[0] == wanted:
                    return before
        raise AssertionError(f"{name} did not become {wanted}")

    before = apply(f"ALTER SYSTEM SET {name} = {value}", value)
    try:
        yield
    finally:
        apply(f"ALTER SYSTEM SET {name} = {before}", before)


def test_all_is_well_on_a_fresh_schema(cli: Cli, url: str) -> None:
    with _setting(url, "fsync", "on"):
        report = cli.json("doctor")
        shown = cli.run("doctor")
    assert report["verdict"] == "ok"
    assert [check["name"] for check in report["checks"]] == [
        "schema",
        "server",
        "isolation",
        "durability",
        "clock",
        "connections",
        "autovacuum",
        "long transactions",
        "dead rows",
        "indexes",
        "archive partitions",
        "archive default",
    ]
    assert shown.exit_code == 0
    assert "the one of this package" in shown.stdout


def test_a_missing_schema_is_a_failure_and_the_rest_is_still_examined(bare: Cli) -> None:
    result = bare.run("doctor")
    assert result.exit_code == 1
    assert "sqlqueue init" in result.stdout
    assert "autovacuum" in result.stdout
    assert result.stderr == ""


def test_the_server_must_write_to_disk(queue: SqlQueue, url: str) -> None:
    with _setting(url, "fsync", "off"):
        assert _found(queue)["durability"].verdict is Verdict.FAIL


def test_autovacuum_off(queue: SqlQueue, url: str, schema: str) -> None:
    with _setting(url, "autovacuum", "off"):
        assert _found(queue)["autovacuum"].verdict is Verdict.FAIL
    with queue.database.connection() as connection:
        connection.execute(f"ALTER TABLE {schema}.job SET (autovacuum_enabled = false)".encode())
        found = _found(queue)["autovacuum"]
        assert found.verdict is Verdict.FAIL
        connection.execute(found.cure.encode())
    assert _found(queue)["autovacuum"].verdict is Verdict.OK


def test_a_transaction_that_pins_dead_rows(queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PIN_WARN_SECONDS", 0.0)
    with psycopg.connect(url, application_name="[red]forgotten") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (pid,) = connection.execute("SELECT pg_backend_pid() FROM pg_class LIMIT 1").fetchone()
        found = _found(queue)["long transactions"]
        assert found.verdict is Verdict.WARN
        assert f"transaction {pid} ([red]forgotten" in found.found
        assert "pg_terminate_backend" in found.cure
        monkeypatch.setattr(doctor, "_PIN_FAIL_SECONDS", 0.0)
        assert _found(queue)["long transactions"].verdict is Verdict.FAIL
    monkeypatch.undo()
    assert _found(queue)["long transactions"].verdict is Verdict.OK


def test_an_index_that_is_not_valid(queue: SqlQueue, schema: str) -> None:
    with queue.database.connection() as connection:
        connection.execute(f"CREATE TABLE {schema}.doubled AS SELECT 1 AS n FROM generate_series(1, 2)".encode())
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(f"CREATE UNIQUE INDEX CONCURRENTLY broken ON {schema}.doubled (n)".encode())
    found = _found(queue)["indexes"]
    assert found.verdict is Verdict.FAIL
    assert f"REINDEX INDEX CONCURRENTLY {schema}.broken" in found.cure


def test_archive_partitions(cli: Cli, queue: SqlQueue, schema: str) -> None:
    with queue.database.connection() as connection:
        tomorrow = connection.execute("SELECT to_char(now() + interval '1 day', 'YYYY-MM-DD')").fetchone()[0]
        connection.execute(f"DROP TABLE {schema}.job_archive_{tomorrow.replace('-', '')}".encode())
        missing = _found(queue)["archive partitions"]
        assert missing.verdict is Verdict.WARN
        assert tomorrow in missing.found
        assert cli.run("init").exit_code == 0
        assert _found(queue)["archive partitions"].verdict is Verdict.OK
        connection.execute(
            f"INSERT INTO {schema}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts,"
            " run_at, created_at, finished_at, region, tags, payload) VALUES"
            " (gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 1, now(), now(), '2001-01-01', 'local', '{}', '{}')".encode()
        )
    strays = _found(queue)["archive default"]
    assert strays.verdict is Verdict.WARN
    assert "1 rows in the default partition" in strays.found


def test_dead_rows_in_the_job_table(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _found(queue)["dead rows"].verdict is Verdict.OK
    monkeypatch.setattr(doctor, "_DEAD_ROWS", -1)
    found = _found(queue)["dead rows"]
    assert found.verdict is Verdict.WARN
    assert "VACUUM" in found.cure


@pytest.mark.parametrize(
    ("check", "changes", "verdict"),
    [
        (doctor._version, {}, Verdict.OK),
        (doctor._version, {"version_number": 140_000}, Verdict.WARN),
        (doctor._version, {"version_number": 110_000}, Verdict.FAIL),
        (doctor._version, {"read_only": True}, Verdict.FAIL),
        (doctor._isolation, {"isolation": "serializable"}, Verdict.WARN),
        (doctor._durability, {"synchronous_commit": "off"}, Verdict.WARN),
        (doctor._durability, {"synchronous_commit": "remote_apply"}, Verdict.OK),
        (doctor._clock, {}, Verdict.OK),
        (doctor._clock, {"clock": 1_001.05}, Verdict.OK),
        (doctor._clock, {"clock": 1_001.2}, Verdict.WARN),
        (doctor._clock, {"clock": 900.0}, Verdict.WARN),
        (doctor._connections, {"connections": 79}, Verdict.OK),
        (doctor._connections, {"connections": 80}, Verdict.WARN),
        (doctor._connections, {"connections": 95}, Verdict.FAIL),
    ],
)
def test_verdicts(check: Callable[[doctor.Server], Check], changes: dict[str, Any], verdict: Verdict) -> None:
    found = check(_server(**changes))
    assert found.verdict is verdict
    assert bool(found.cure) is (verdict is not Verdict.OK)
