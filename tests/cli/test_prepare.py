"""`init`, `create`, and how the database is named."""

from pathlib import Path

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.cli.support import Cli


def test_init_says_what_it_applied_and_can_be_repeated(bare: Cli, schema: str) -> None:
    first = bare.run("init")
    assert first.exit_code == 0
    assert "applied 0001_queue\n" in first.stdout
    assert f"schema {schema} of " in first.stdout
    again = bare.json("init")
    assert again["schema"] == schema
    assert again["applied"] == []


def test_options_stand_before_or_after_the_command(url: str, schema: str) -> None:
    naked = Cli({})
    assert naked.run("--url", url, "--schema", schema, "init").exit_code == 0
    assert naked.run("stats", "--schema", schema, "--url", url).exit_code == 0
    assert naked.run("--json", "--url", url, "stats", "--schema", schema).stdout.strip() == "[]"


def test_create_makes_a_queue_and_then_changes_only_what_is_named(cli: Cli, queue: SqlQueue) -> None:
    made = cli.json("create", "orders", "--buckets", "8", "--lease", "30", "--backoff", "1")
    assert made == {
        "name": "orders",
        "bucket_count": 8,
        "lease_seconds": 30.0,
        "max_attempts": 5,
        "backoff_seconds": 1.0,
        "backoff_factor": 2.0,
        "backoff_max_seconds": 3600.0,
    }
    changed = cli.run("create", "orders", "--max-attempts", "2", "--buckets", "16")
    assert "keeps its 8 buckets" in changed.stdout
    settings = queue.settings("orders")
    assert (settings.lease_seconds, settings.max_attempts, settings.backoff.seconds) == (30.0, 2, 1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Orders"], "queue name 'Orders' is not usable"),
        (["a; drop table x"], "is not usable"),
        (["orders", "--buckets", "0"], "bucket_count of queue 'orders' is 0"),
        (["orders", "--buckets", "99999999999"], "--buckets is 99999999999"),
        (["orders", "--lease", "nan"], "--lease is nan"),
        (["orders", "--lease", "inf"], "--lease is inf"),
        (["orders", "--lease", "-1"], "must be positive"),
        (["orders", "--max-attempts", "many"], "valid integer"),
        (["orders", "--backoff-factor", "0.5"], "factor at least 1"),
        ([], "Missing argument 'NAME'"),
    ],
)
def test_create_refuses(cli: Cli, arguments: list[str], said: str) -> None:
    assert said in cli.refused(2, "create", *arguments)


def test_without_a_database_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    said = Cli({"SQLQUEUE_HOME": str(tmp_path)}).refused(2, "stats")
    assert "set SQLQUEUE_URL, or give --url postgresql://user:password@host" in said
    assert not (tmp_path / "postgres").exists()


def test_without_a_url_the_embedded_server_of_the_project_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    monkeypatch.setenv("SQLQUEUE_HOME", str(tmp_path))
    with EmbeddedPostgres():
        pass
    cli = Cli({})
    assert cli.json("init")["version"] >= 3
    assert cli.json("create", "orders")["name"] == "orders"
    assert [found["queue"] for found in cli.json("stats")] == ["orders"]


def test_schema_names_are_checked(cli: Cli) -> None:
    assert "schema 'pg_x' is not usable" in cli.refused(2, "stats", "--schema", "pg_x")
    assert "is not usable" in cli.refused(2, "stats", "--schema", 'a"; drop schema public; --')


def test_a_missing_schema_says_how_to_make_it(bare: Cli) -> None:
    assert "Make them with: sqlqueue init" in bare.refused(4, "stats")
    assert "sqlqueue init" in bare.refused(4, "enqueue", "work", "{}")


@pytest.mark.parametrize(
    ("statement", "cure"),
    [
        ("DELETE FROM {}.schema_version WHERE version > 1", "sqlqueue init"),
        ("INSERT INTO {}.schema_version (version, name) VALUES (9999, 'later')", "pip install --upgrade"),
    ],
)
def test_another_version_of_the_schema_is_refused(
    cli: Cli, queue: SqlQueue, schema: str, statement: str, cure: str
) -> None:
    with queue.database.connection() as connection:
        connection.execute(statement.format(schema).encode())
    assert cure in cli.refused(4, "peek", "work")


def test_help_names_the_exit_codes_and_no_url(cli: Cli) -> None:
    for arguments in ([], ["--help"]):
        shown = cli.run(*arguments)
        assert shown.exit_code == 0
        assert "Exit codes" in shown.stdout
        assert cli.environment["SQLQUEUE_URL"] not in shown.stdout


def test_version(cli: Cli) -> None:
    assert cli.run("--version").stdout.startswith("sqlqueue 0.")
