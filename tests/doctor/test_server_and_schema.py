"""`doctor`: each finding about the server and the schema, on a real server."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.doctor import schema_checks, server_checks
from dagster_sqlqueue.doctor.server_checks import Check, Verdict
from tests.cli.support import Cli
from tests.doctor.support import findings
from tests.gate.patience import sized
from tests.support import own_server, rows, until


def _server(**changes: Any) -> server_checks.Server:
    well: dict[str, Any] = {
        "version_number": 180_000,
        "version": "18.0",
        "clock": 1_000.0,
        "isolation": "read committed",
        "default_isolation": "read committed",
        "read_only": False,
        "autovacuum": True,
        "naptime_seconds": 60,
        "fsync": "on",
        "synchronous_commit": "on",
        "connections": 1,
        "max_connections": 100,
        "sees_all": True,
        "xid_age": 1_000,
        "encoding": "UTF8",
        "asked_at": 999.9,
        "answered_at": 1_000.1,
    }
    return server_checks.Server(**{**well, **changes})


def _shown(url: str, name: str) -> str:
    """A setting, as a new connection has it."""
    with psycopg.connect(url) as connection:
        return str(connection.execute(f"SHOW {name}".encode()).fetchone()[0])


@contextmanager
def _setting(url: str, name: str, value: str) -> Iterator[None]:
    def apply(statement: str, wanted: str) -> str:
        with psycopg.connect(url, autocommit=True) as connection:
            before = _shown(url, name)
            connection.execute(statement.encode())
            connection.execute("SELECT pg_reload_conf()")
            until(lambda: _shown(url, name) == wanted, f"{name} to become {wanted}")
        return before

    before = apply(f"ALTER SYSTEM SET {name} = {value}", value)
    try:
        yield
    finally:
        apply(f"ALTER SYSTEM SET {name} = {before}", before)


def _archive(connection: "psycopg.Connection[Any]", schema: str, finished_at: str) -> None:
    connection.execute(
        f"INSERT INTO {schema}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, tags, payload) VALUES (gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 1,"
        f" now(), now(), {finished_at}, 'local', '{{}}', '{{}}')".encode()
    )


def test_all_is_well_on_a_fresh_schema(cli: Cli, url: str) -> None:
    with _setting(url, "fsync", "on"):
        report = cli.json("doctor")
        shown = cli.run("doctor")
    assert report["verdict"] == "ok"
    assert [check["name"] for check in report["checks"]] == [
        "schema",
        "pooler",
        "server",
        "encoding",
        "isolation",
        "durability",
        "clock",
        "connections",
        "transaction ids",
        "collation",
        "autovacuum",
        "long transactions",
        "dead rows",
        "functions",
        "indexes",
        "archive partitions",
        "archive default",
        "retention",
        "maintenance",
        "queues",
        "settings",
        "leases",
        "strays",
        "keys",
        "schedules",
        "batches",
        "roles",
    ]
    assert shown.exit_code == 0
    assert "the one of this package" in shown.stdout


def test_a_missing_schema_is_a_failure_and_the_rest_is_still_examined(bare: Cli) -> None:
    result = bare.run("doctor")
    assert result.exit_code == 1
    assert "sqlqueue " in result.stdout
    assert "autovacuum" in result.stdout
    assert result.stderr == ""


def test_the_server_must_write_to_disk(queue: SqlQueue, url: str) -> None:
    with _setting(url, "fsync", "off"):
        assert findings(queue)["durability"].verdict is Verdict.FAIL


def test_autovacuum_off(queue: SqlQueue, url: str, schema: str) -> None:
    with _setting(url, "autovacuum", "off"):
        assert findings(queue)["autovacuum"].verdict is Verdict.FAIL
    with queue.database.connection() as connection:
        for off in ("false", "off", "0"):
            connection.execute(f"ALTER TABLE {schema}.job SET (autovacuum_enabled = {off})".encode())
            found = findings(queue)["autovacuum"]
            assert found.verdict is Verdict.FAIL
            connection.execute(found.cure.encode())
            assert findings(queue)["autovacuum"].verdict is Verdict.OK


def test_a_default_isolation_that_callers_get(queue: SqlQueue, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
        try:
            queue.close()
            found = findings(queue)["isolation"]
        finally:
            connection.execute("ALTER ROLE postgres RESET default_transaction_isolation")
    assert found.verdict is Verdict.WARN
    assert "serializable by default" in found.found


def test_a_transaction_that_pins_dead_rows(queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_checks, "_PIN_WARN_SECONDS", 0.0)
    with psycopg.connect(url, application_name="[red]forgotten") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (pid,) = connection.execute("SELECT pg_backend_pid() FROM pg_class LIMIT 1").fetchone()
        found = findings(queue)["long transactions"]
        assert found.verdict is Verdict.WARN
        assert f"transaction {pid} ([red]forgotten" in found.found
        assert "pg_terminate_backend" in found.cure
        monkeypatch.setattr(schema_checks, "_PIN_FAIL_SECONDS", 0.0)
        assert findings(queue)["long transactions"].verdict is Verdict.FAIL
    monkeypatch.undo()
    assert findings(queue)["long transactions"].verdict is Verdict.OK


def test_a_prepared_transaction_pins_dead_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_checks, "_PIN_WARN_SECONDS", 0.0)
    with (
        own_server(settings=["max_prepared_transactions=5"]) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
        SqlQueue(server.url) as queue,
    ):
        queue.migrate()
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE forgotten (n integer)")
        connection.execute("PREPARE TRANSACTION 'at ''noon'")
        found = findings(queue)["long transactions"]
        assert found.verdict is Verdict.WARN
        assert "prepared transaction at 'noon (postgres) for " in found.found
        assert "ROLLBACK PREPARED 'at ''noon'" in found.cure
        connection.execute("ROLLBACK PREPARED 'at ''noon'")
        assert findings(queue)["long transactions"].verdict is Verdict.OK


def test_an_index_that_is_not_there(queue: SqlQueue, schema: str) -> None:
    assert set(schema_checks.known_indexes(1)) > {"job_claim", "job_unique_key", "job_archive_finished"}
    with queue.database.connection() as connection:
        for name in sorted(schema_checks.known_indexes(1))[:: sized(8, 1)]:
            connection.execute(f"DROP INDEX {schema}.{name}".encode())
            found = findings(queue)["indexes"]
            assert found.verdict is Verdict.FAIL
            assert found.found == f"missing: {name}"
            connection.execute(found.cure.encode())
            assert findings(queue)["indexes"].verdict is Verdict.OK


def test_an_index_that_has_swollen(queue: SqlQueue, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with queue.database.connection() as connection:
        connection.execute(f"VACUUM ANALYZE {schema}.job".encode())
        monkeypatch.setattr(schema_checks, "_SWOLLEN_BYTES", 0)
        found = findings(queue)["indexes"]
        assert found.verdict is Verdict.WARN
        assert "job_claim (0 MB)" in found.found
        for statement in found.cure.split("; "):
            connection.execute(statement.encode())


def test_an_index_that_is_not_valid(queue: SqlQueue, schema: str) -> None:
    with queue.database.connection() as connection:
        connection.execute(f"CREATE TABLE {schema}.doubled AS SELECT 1 AS n FROM generate_series(1, 2)".encode())
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(f"CREATE UNIQUE INDEX CONCURRENTLY broken ON {schema}.doubled (n)".encode())
    found = findings(queue)["indexes"]
    assert found.verdict is Verdict.FAIL
    assert f"REINDEX INDEX CONCURRENTLY {schema}.broken" in found.cure


def test_archive_partitions(cli: Cli, queue: SqlQueue, schema: str) -> None:
    with queue.database.connection() as connection:
        tomorrow = connection.execute("SELECT to_char(now() + interval '1 day', 'YYYY-MM-DD')").fetchone()[0]
        connection.execute(f"DROP TABLE {schema}.job_archive_{tomorrow.replace('-', '')}".encode())
        missing = findings(queue)["archive partitions"]
        assert missing.verdict is Verdict.WARN
        assert tomorrow in missing.found
        assert cli.run("migrate").exit_code == 0
        assert findings(queue)["archive partitions"].verdict is Verdict.OK
        _archive(connection, schema, "'2001-01-01'")
    strays = findings(queue)["archive default"]
    assert strays.verdict is Verdict.WARN
    assert "1 rows in the default partition" in strays.found


def test_jobs_kept_for_too_long(cli: Cli, queue: SqlQueue, schema: str) -> None:
    with queue.database.connection() as connection:
        for days in range(1, 10):
            _archive(connection, schema, f"now() - interval '{days} days'")
    assert findings(queue)["retention"].verdict is Verdict.OK
    cli.run("create", "work", "--retention-days", "8")
    assert findings(queue)["retention"].verdict is Verdict.OK
    cli.run("create", "work", "--retention-days", "6")
    found = findings(queue)["retention"]
    assert found.verdict is Verdict.WARN
    assert "queue work still holds jobs that finished on " in found.found


def test_when_the_schema_was_last_maintained(cli: Cli, queue: SqlQueue) -> None:
    assert findings(queue)["maintenance"].found == "never done yet"
    rows(queue, "UPDATE {s}.maintenance SET due_at = now() - interval '2 days'")
    late = findings(queue)["maintenance"]
    assert (late.verdict, late.found) == (Verdict.WARN, "never done yet; due for 2 d")
    assert "--no-maintain" in late.cure
    cli.run("maintain")
    done = findings(queue)["maintenance"]
    assert done.verdict is Verdict.OK
    assert re.fullmatch(r"last done \S+ \w+ ago by \S+/\d+", done.found)


def test_dead_rows_in_the_job_table(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(queue)["dead rows"].verdict is Verdict.OK
    monkeypatch.setattr(schema_checks, "_DEAD_ROWS", -1)
    found = findings(queue)["dead rows"]
    assert found.verdict is Verdict.WARN
    assert "VACUUM" in found.cure


@pytest.mark.parametrize(
    ("check", "changes", "verdict"),
    [
        (server_checks.version, {}, Verdict.OK),
        (server_checks.version, {"version_number": 140_000}, Verdict.WARN),
        (server_checks.version, {"version_number": 110_000}, Verdict.FAIL),
        (server_checks.version, {"read_only": True}, Verdict.FAIL),
        (server_checks.encoding, {}, Verdict.OK),
        (server_checks.encoding, {"encoding": "SQL_ASCII"}, Verdict.FAIL),
        (server_checks.isolation, {"isolation": "serializable"}, Verdict.WARN),
        (server_checks.isolation, {"default_isolation": "serializable"}, Verdict.WARN),
        (server_checks.transaction_ids, {}, Verdict.OK),
        (server_checks.transaction_ids, {"xid_age": 600_000_000}, Verdict.WARN),
        (server_checks.transaction_ids, {"xid_age": 1_600_000_000}, Verdict.FAIL),
        (server_checks.durability, {"synchronous_commit": "off"}, Verdict.WARN),
        (server_checks.durability, {"synchronous_commit": "remote_apply"}, Verdict.OK),
        (server_checks.clock, {}, Verdict.OK),
        (server_checks.clock, {"clock": 1_001.05}, Verdict.OK),
        (server_checks.clock, {"clock": 1_001.2}, Verdict.WARN),
        (server_checks.clock, {"clock": 900.0}, Verdict.WARN),
        (server_checks.connections, {"connections": 79}, Verdict.OK),
        (server_checks.connections, {"connections": 80}, Verdict.WARN),
        (server_checks.connections, {"connections": 95}, Verdict.FAIL),
    ],
)
def test_verdicts(check: Callable[[server_checks.Server], Check], changes: dict[str, Any], verdict: Verdict) -> None:
    found = check(_server(**changes))
    assert found.verdict is verdict
    assert bool(found.cure) is (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("recorded", "actual", "verdict"),
    [(None, None, Verdict.OK), ("2.36", "2.36", Verdict.OK), ("2.31", "2.36", Verdict.FAIL)],
)
def test_a_collation_that_changed(recorded: str | None, actual: str | None, verdict: Verdict) -> None:
    found = schema_checks.judge_collation("jobs", recorded, actual)
    assert found.verdict is verdict
    assert ("REINDEX DATABASE CONCURRENTLY jobs" in found.cure) is (verdict is Verdict.FAIL)


def test_functions_that_are_missing_or_of_another_package(cli: Cli, queue: SqlQueue, schema: str) -> None:
    assert cli.json("functions")["missing"] == []
    rows(queue, f"DROP FUNCTION {schema}_v1.claim")
    found = findings(queue)["functions"]
    assert (found.verdict, found.found, found.cure) == (
        Verdict.FAIL,
        f"missing: {schema}_v1.claim",
        "sqlqueue migrate",
    )
    refused = cli.run("functions")
    assert refused.exit_code == 1
    assert f"missing: {schema}_v1.claim" in " ".join(refused.output.split())
    cli.run("migrate")
    rows(queue, "UPDATE {s}.function_set SET digest = 'another'")
    assert findings(queue)["functions"].verdict is Verdict.WARN
    result = cli.run("functions", "--json")
    assert result.exit_code == 1
    assert '"current": false' in result.output
    cli.run("migrate")
    assert cli.json("functions")["current"] is True
