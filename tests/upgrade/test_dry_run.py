"""What `sqlqueue migrate --dry-run` says, and that it does nothing."""

import pytest

from dagster_sqlqueue import SqlQueue
from tests.cli.support import Cli
from tests.support import rows
from tests.upgrade.made_up import become


def test_it_prints_what_would_be_applied_and_its_locks(
    queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": queue.database.schema})
    assert "migrations to apply: 0" in cli.run("migrate", "--dry-run").stdout
    become(monkeypatch, 4)
    lines = cli.run("migrate", "--dry-run").stdout.splitlines()
    assert "migrations to apply: 3; nothing was changed" in lines[0]
    assert lines[1:6] == [
        "0002_label: in a transaction",
        "  serves code from version 1 on",
        "  locks job: ACCESS EXCLUSIVE",
        "    blocks: reading and writing",
        f"  SQL: {lines[5].removeprefix('  SQL: ')}",
    ]
    assert "0003_label_index: outside of a transaction, CONCURRENTLY" in "".join(lines)
    assert all(len(line) <= 80 for line in lines[1:] if "SQL: " not in line)
    found = cli.json("migrate", "--dry-run")["pending"]
    assert [(one["version"], one["transaction"]) for one in found] == [(2, True), (3, False), (4, True)]
    assert f'ALTER TABLE "{queue.database.schema}".job ADD COLUMN label' in found[0]["sql"]
    assert found[0]["locks"] == [{"table": "job", "mode": "ACCESS EXCLUSIVE", "stops": "reading and writing"}]
    assert rows(queue, "SELECT version FROM {s}.schema_version") == [(1,)]


def test_where_there_is_no_schema_it_makes_none(url: str, schema: str) -> None:
    cli = Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema})
    assert [one["name"] for one in cli.json("migrate", "--dry-run")["pending"]] == ["schema"]
    with SqlQueue(url, schema=schema) as queue:
        assert rows(queue, "SELECT to_regnamespace(%s)", schema) == [(None,)]
