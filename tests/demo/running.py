"""`make demo` on a state directory of its own, as a process or as a call, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.support import until

PROJECT = Path(__file__).resolve().parents[2]
DAYS = "2013-01-01..2013-01-02"

Refusal = Callable[..., str]
"""Gives what the demo says that ends with 1."""


def settings(home: Path, **more: str) -> dict[str, str]:
    """The demo's settings in its environment: two days of flights."""
    given = {"SQLQUEUE_HOME": str(home), "FLIGHTS": DAYS, "SQLQUEUE_FANOUT_CRON": "* * * * *", "COLUMNS": "160"}
    return {**given, **more}


def start(home: Path, module: str = "definitions.demo", **more: str) -> "subprocess.Popen[str]":
    """The demo, or the UI, as a process of its own."""
    base = {name: value for name, value in os.environ.items() if name not in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA")}
    return subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=PROJECT,
        env={**base, **settings(home, **more)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: "subprocess.Popen[str]") -> str:
    """What it said, once it has ended."""
    output, _ = process.communicate()
    return output


def interrupted(home: Path) -> str:
    """What a demo says that is interrupted when its sensor has ticked."""
    process = start(home)
    log = home / "dagster" / "daemon.log"

    def ticked() -> bool:
        assert process.poll() is None, finished(process)
        return log.exists() and "events_sensor" in log.read_text(errors="replace")

    try:
        until(ticked, "the first tick")
        process.send_signal(signal.SIGINT)
        output = finished(process)
    finally:
        process.kill()
    assert process.returncode == 130, output
    return output


def succeeded(home: Path) -> str:
    """What a demo says that reaches its end, as one line."""
    process = start(home)
    output = finished(process)
    assert process.returncode == 0, output
    return " ".join(output.split())


def nothing_left_over(home: Path) -> None:
    """Wait until no process works in the demo's directory."""
    until(lambda: not _left_over(home), "the end of every process")


def _left_over(home: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        where = " ".join(process.info["cmdline"] or []) + str((process.info["environ"] or {}).get("SQLQUEUE_HOME"))
        if str(home) in where and process.info["pid"] != os.getpid():
            found.append(where)
    return found


@contextmanager
def tables(home: Path) -> Iterator[SqlQueue]:
    """The demo's database."""
    with EmbeddedPostgres(home / "postgres") as server, SqlQueue(server.url) as queue:
        yield queue
