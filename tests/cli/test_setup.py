"""`migrate`, `create`, `queues`, and how the database is named."""

import subprocess
from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.cli.support import Cli
from tests.support import Work


def test_migrate_says_what_it_applied_and_can_be_repeated(bare: Cli, schema: str) -> None:
    first = bare.run("migrate")
    assert first.exit_code == 0
    assert "applied 0001_schema\n" in first.stdout
    assert f"schema {schema} of " in first.stdout
    again = bare.json("migrate")
    assert again["schema"] == schema
    assert again["applied"] == []


def test_options_stand_before_or_after_the_command(url: str, schema: str) -> None:
    naked = Cli({})
    assert naked.run("--url", url, "--schema", schema, "migrate").exit_code == 0
    assert naked.run("stats", "--schema", schema, "--url", url).exit_code == 0
    assert naked.run("--json", "--url", url, "stats", "--schema", schema).stdout.strip() == "[]"


_NEW = {
    "name": "orders",
    "bucket_count": 16,
    "claim_buckets": 16,
    "strategy": "round_robin",
    "ordered": False,
    "on_poison": "dead_letter",
    "lease_seconds": 60.0,
    "timeout_seconds": None,
    "max_attempts": 5,
    "backoff_seconds": 5.0,
    "backoff_factor": 2.0,
    "backoff_max_seconds": 3600.0,
    "backoff_jitter": 0.2,
    "max_running": None,
    "max_running_per_key": None,
    "rate": None,
    "retention_days": 30,
    "paused_at": None,
    "paused_until": None,
    "revision": 1,
    "regions": ["local"] * 16,
}


def test_create_makes_a_queue_and_then_changes_only_what_is_named(cli: Cli) -> None:
    assert cli.json("create", "orders") == _NEW
    options = {
        "strategy": "fanout",
        "on_poison": "stop",
        "max_attempts": 2,
        "max_running": 8,
        "max_running_per_key": 3,
        "retention_days": 90,
    }
    named = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    times = ["--lease", "5min", "--timeout", "1.5h", "--backoff", "500ms", "--backoff-max", "1d", "--rate", "100/60s"]
    changed = cli.json(
        "create", "orders", "--ordered", *named, *times, "--backoff-factor", "3", "--backoff-jitter", "0"
    )
    assert changed == {
        **_NEW,
        **options,
        "ordered": True,
        "lease_seconds": 300.0,
        "timeout_seconds": 5400.0,
        "backoff_seconds": 0.5,
        "backoff_factor": 3.0,
        "backoff_max_seconds": 86_400.0,
        "backoff_jitter": 0.0,
        "rate": {"starts": 100, "seconds": 60.0},
        "revision": 2,
    }
    assert cli.json("create", "orders") == changed
    assert cli.json("create", "orders", "--strategy", "fifo") == {**changed, "strategy": "fifo", "revision": 3}
    nothing = [text for name in ("max-running", "max-running-per-key", "rate") for text in (f"--{name}", "none")]
    limitless = cli.json("create", "orders", "--unordered", "--retention-days", "0", "--timeout", "none", *nothing)
    assert [limitless[name] for name in ("rate", "max_running", "max_running_per_key")] == [None] * 3
    assert (limitless["ordered"], limitless["retention_days"], limitless["timeout_seconds"]) == (False, 0, None)
    assert limitless["lease_seconds"] == 300.0


def test_create_says_what_the_queue_is_like_now(cli: Cli, queue: SqlQueue) -> None:
    made = cli.run("create", "orders", "--ordered", "--rate", "5/s", "--max-running", "1000").stdout
    for said in (
        "queue orders was created",
        "round_robin",
        "strict per ordering key",
        "1,000 running, 5 starts per 1 s",
    ):
        assert said in " ".join(made.split())
    assert "is unchanged" in cli.run("create", "orders").stdout
    changed = cli.run("create", "orders", "--max-attempts", "2", "--buckets", "8").stdout
    assert "was changed" in changed
    assert "keeps its 16 buckets; change them with: sqlqueue rebucket orders 8" in changed
    assert queue.settings("orders").bucket_count == 16


def test_queues(cli: Cli) -> None:
    cli.run("create", "orders", "--retention-days", "9", "--max-running-per-key", "2")
    assert [found["name"] for found in cli.json("queues")] == ["orders", "work"]
    assert [found["retention_days"] for found in cli.json("queues", "orders")] == [9]
    shown = " ".join(cli.run("queues").stdout.split())
    assert "2 running per key 9 days" in shown
    assert "kept 9 days" in cli.run("queues", "orders").stdout
    assert "there is no queue 'nosuch'" in cli.refused(5, "queues", "nosuch")


def test_no_queue_yet(bare: Cli) -> None:
    bare.run("migrate")
    assert "create one with: sqlqueue create NAME" in bare.run("queues").stdout
    assert bare.json("queues") == []


def test_create_refuses(cli: Cli) -> None:
    for arguments, said in (
        (["Orders"], "queue name 'Orders' is not usable"),
        (["a; drop table x"], "is not usable"),
        (["orders", "--buckets", "0"], "bucket_count of queue 'orders' is 0"),
        (["orders", "--buckets", "99999999999"], "--buckets is '99999999999'"),
        (["orders", "--buckets", "2000"], "it must be 1 to 1024"),
        (["orders", "--lease", "nan"], "--lease is 'nan'"),
        (["orders", "--lease", "inf"], "--lease is 'inf'"),
        (["orders", "--lease", "-1"], "--lease is '-1'; write a number of seconds"),
        (["orders", "--lease", "0"], "must be positive"),
        (["orders", "--lease", "none"], "--lease is 'none'"),
        (["orders", "--lease", "9" * 400], "--lease is too long"),
        (["orders", "--timeout", "200000d"], "at most a hundred years"),
        (["orders", "--max-attempts", "many"], "it must be a whole number"),
        (["orders", "--backoff-factor", "0.5"], "factor at least 1"),
        (["orders", "--backoff-factor", "nan"], "factor at least 1"),
        (["orders", "--strategy", "lifo"], "'fanout', 'fifo', 'assign', 'round_robin', 'token'"),
        (["orders", "--on-poison", "panic"], "'dead_letter', 'stop'"),
        (["orders", "--max-running", "0"], "at least 1"),
        (["orders", "--max-running-per-key", "1.5"], "must be a whole number"),
        (["orders", "--rate", "100"], "write starts/interval"),
        (["orders", "--rate", "100/"], "write starts/interval"),
        (["orders", "--rate", "0/s"], "starts must be a whole number of at least 1"),
        (["orders", "--rate", "1/0s"], "seconds positive"),
        (["orders", "--retention-days", "-3"], "or 0 for ever"),
        (["orders", "--retention-days", "none"], "must be a whole number"),
        (["orders", "--ordered", "--unordered"], "were both given"),
        (["orders", "--ordered", "--strategy", "token"], "choose another strategy"),
        ([], "Missing argument 'NAME|MODULE:SPEC'"),
    ):
        assert said in cli.refused(2, "create", *arguments)
    assert [found["name"] for found in cli.json("queues")] == ["work"]


def test_without_a_database_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    said = Cli({"SQLQUEUE_HOME": str(tmp_path)}).refused(2, "stats")
    assert "set SQLQUEUE_URL, or give --url postgresql://user:password@host" in said
    assert not (tmp_path / "postgres").exists()


def test_without_a_url_the_embedded_server_of_the_project_is_used(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    monkeypatch.setenv("SQLQUEUE_HOME", str(tmp_path))
    subprocess.run(["cp", "-a", str(template / "postgres"), str(tmp_path)], check=True)
    cli = Cli({})
    assert cli.json("migrate")["version"] >= 1
    assert cli.json("create", "orders")["name"] == "orders"
    assert [found["queue"] for found in cli.json("stats")] == ["orders"]


def test_schema_names_are_checked(cli: Cli) -> None:
    assert "schema 'pg_x' is not usable" in cli.refused(2, "stats", "--schema", "pg_x")
    assert "is not usable" in cli.refused(2, "stats", "--schema", 'a"; drop schema public; --')


def test_a_missing_schema_says_how_to_make_it(bare: Cli) -> None:
    assert "Make them with: sqlqueue migrate" in bare.refused(4, "stats")
    assert "sqlqueue migrate" in bare.refused(4, "enqueue", "work", "{}")


@pytest.mark.parametrize(
    ("statement", "cure"),
    [
        ("DELETE FROM {}.schema_version", "sqlqueue migrate"),
        ("INSERT INTO {}.schema_version VALUES (9999, 'later', 9999)", "pip install --upgrade"),
    ],
)
def test_another_version_of_the_schema_is_refused(
    bare: Cli, fresh: SqlQueue, schema: str, statement: str, cure: str
) -> None:
    with fresh.database.connection() as connection:
        connection.execute(statement.format(schema).encode())
    assert cure in bare.refused(4, "peek", "work")


def test_help_names_the_exit_codes_and_no_url(cli: Cli) -> None:
    for arguments in ([], ["--help"]):
        shown = cli.run(*arguments)
        assert shown.exit_code == 0
        assert "Exit codes" in shown.stdout
        assert cli.environment["SQLQUEUE_URL"] not in shown.stdout


def test_version(cli: Cli) -> None:
    assert cli.run("--version").stdout.startswith("sqlqueue 0.")


def test_a_queue_gets_the_settings_that_the_code_declares(cli: Cli, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("other", Work, bucket_count=3, lease_seconds=11, max_attempts=1))
    shown = cli.run("create", "tests.worker.jobs:other")
    assert shown.exit_code == 0
    assert "queue other was changed" in shown.stdout
    assert "(an existing queue keeps its 3 buckets; change them with: sqlqueue rebucket other 16)" in shown.stdout
    there = queue.settings("other")
    assert (there.lease_seconds, there.max_attempts, there.bucket_count) == (300, 5, 3)
    assert "queue other is unchanged" in cli.run("create", "tests.worker.jobs:handle_other").stdout


def test_what_create_refuses_of_a_queue_of_the_code(cli: Cli) -> None:
    message = cli.refused(2, "create", "tests.worker.jobs:other", "--lease", "30")
    assert "options cannot be combined with tests.worker.jobs:other; set them in the code" in message
    assert "has no 'nosuch'" in cli.refused(2, "create", "tests.worker.jobs:nosuch")
