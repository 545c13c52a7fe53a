"""The demo as a newcomer runs it: its own process, a real daemon, a real Spark, one day of flights."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.core.support import rows, until

PROJECT = Path(__file__).resolve().parents[2]
DAY_FLIGHTS = 842  # of 2013-01-01, counted in the source file


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def environment(home: Path, **more: str) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if name not in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA")}
    return {
        **base,
        "SQLQUEUE_HOME": str(home),
        "FLIGHTS": "2013-01-01",
        "SQLQUEUE_FANOUT_CRON": "* * * * *",
        "COLUMNS": "160",
        **more,
    }


def start(home: Path, module: str = "definitions.demo", **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=PROJECT,
        env=environment(home, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: "subprocess.Popen[str]", seconds: float = 240) -> str:
    output, _ = process.communicate(timeout=seconds)
    return output


def left_over(home: Path) -> list[str]:
    """The processes that still work in the demo's directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        where = " ".join(process.info["cmdline"] or []) + str((process.info["environ"] or {}).get("SQLQUEUE_HOME"))
        if str(home) in where and process.info["pid"] != os.getpid():
            found.append(where)
    return found


@pytest.fixture
def tables(home: Path) -> Iterator[SqlQueue]:
    with EmbeddedPostgres(home / "postgres") as server, SqlQueue(server.url) as queue:
        yield queue


@pytest.mark.timeout(600)
def test_interrupted_and_run_again_and_once_more(home: Path) -> None:
    interrupted = start(home)
    log = home / "dagster" / "daemon.log"

    def ticked() -> bool:
        assert interrupted.poll() is None, finished(interrupted)
        return log.exists() and "events_sensor" in log.read_text(errors="replace")

    until(ticked, "the first tick", 120)
    interrupted.send_signal(signal.SIGINT)
    output = finished(interrupted)
    assert interrupted.returncode == 130, output
    assert "`make demo` goes on from there" in output
    assert "Traceback" not in output
    until(lambda: not left_over(home), "the end of every process", 30)

    second = start(home)
    output = finished(second)
    assert second.returncode == 0, output
    assert "equal to the source files" in output
    assert "reported no arrival" in " ".join(output.split())
    until(lambda: not left_over(home), "the end of every process", 30)

    third = start(home)
    output = finished(third, 60)
    assert third.returncode == 0, output
    assert "everything was worked off already" in " ".join(output.split())


def test_every_flight_was_one_job_that_ended_once(tables: SqlQueue) -> None:
    query = "SELECT state, count(*), count(DISTINCT id) FROM {s}.job_archive WHERE queue = 'events' GROUP BY state"
    assert {state: (count, ids) for state, count, ids in rows(tables, query)} == {
        "succeeded": (DAY_FLIGHTS - 1, DAY_FLIGHTS - 1),
        "failed": (1, 1),
    }
    assert rows(tables, "SELECT count(*) FROM {s}.job") == [(0,)]
    assert rows(tables, "SELECT count(*) FROM {s}.job_archive WHERE queue = 'daily_analytics'") == [(105,)]
    (letter,) = tables.dead_letters("events")
    assert letter.attempt == 3
    assert letter.error is not None
    assert "departed at" in letter.error
    retried = "SELECT count(*) FROM {s}.job_archive WHERE queue = 'events' AND state = 'succeeded' AND attempt = 2"
    assert rows(tables, retried) >= [(6,)]


def test_a_difference_is_a_failure(home: Path, tables: SqlQueue) -> None:
    rows(tables, "UPDATE public.airport_daily SET flights = flights + 1 WHERE account = 'ATL'")
    try:
        process = start(home)
        output = finished(process, 60)
        assert process.returncode == 1
        assert "the SQL table differs from the source files" in output
        assert "ATL" in output
    finally:
        rows(tables, "UPDATE public.airport_daily SET flights = flights - 1 WHERE account = 'ATL'")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"FLIGHTS": "2014-01"}, "2014-01"),
        ({"FLIGHTS": "soon"}, "soon"),
        ({"SQLQUEUE_URL": "postgresql://me:s3cret@127.0.0.1:1/nowhere"}, "cannot use the database 127.0.0.1:1/nowhere"),
        ({"SQLQUEUE_URL": "mysql://me:s3cret@127.0.0.1/db"}, "this release works with PostgreSQL"),
        ({"SQLQUEUE_SCHEMA": "drop table"}, "'drop table' is not usable"),
    ],
)
def test_bad_settings_get_one_clear_line(home: Path, settings: dict[str, str], expected: str) -> None:
    process = start(home, **settings)
    output = finished(process, 60)
    assert process.returncode == 1, output
    assert "error:" in output
    assert expected in output
    assert "Traceback" not in output
    assert "s3cret" not in output


def test_a_state_directory_that_cannot_be_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    process = start(file)
    output = finished(process, 60)
    assert process.returncode == 1, output
    assert f"{file} cannot be written to" in output
    assert "SQLQUEUE_HOME" in output


def test_the_ui_says_when_its_port_is_taken(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(home, "definitions.ui", SQLQUEUE_UI_PORT=str(port))
        output = finished(process, 60)
    assert process.returncode == 1, output
    assert f"port {port} cannot be used for the UI" in output
