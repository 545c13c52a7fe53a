"""`stats`, once and again and again."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue import Ending
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import Work, rows

_RATES = ("in_per_minute", "in_per_minute_of_hour", "out_per_minute", "out_per_minute_of_hour")


def _claim(queue: SqlQueue, limit: int) -> list:
    return queue.claim("work", buckets=range(4), limit=limit, lease_seconds=300, worker="w")


def test_stats_of_every_state(cli: Cli, queue: SqlQueue) -> None:
    began = time.monotonic()
    assert cli.json("stats", "work")[0]["oldest_ready_seconds"] is None
    for n in range(4):
        cli.run("enqueue", "work", f'{{"n": {n}}}')
    done, dead = _claim(queue, 2)
    queue.finish([Ending(done, ArchiveState.SUCCEEDED), Ending(dead, ArchiveState.FAILED, error="no")])
    _claim(queue, 1)
    cli.run("enqueue", "work", "{}", "--run-at", "2037-01-31T08:00:00Z")
    before = datetime.now(UTC)
    (found,) = cli.json("stats")
    took, after = time.monotonic() - began, datetime.now(UTC)
    assert 0 < found.pop("oldest_ready_seconds") <= took
    due = datetime(2037, 1, 31, 8, tzinfo=UTC) - timedelta(seconds=found.pop("next_due_seconds"))
    assert before <= due <= after
    for name in (f"{what}_seconds_p{p}" for what in ("wait", "run") for p in (50, 95, 99)):
        assert 0 <= found.pop(name) <= took
    for name in _RATES:
        assert found.pop(name) > 0
    assert 0 < found.pop("payload_bytes_average") <= found.pop("payload_bytes_max") < 100
    assert found == {
        "queue": "work",
        "paused_at": None,
        "counted_up_to": 10_000,
        "ready": 1,
        "running": 1,
        "scheduled": 1,
        "held": 0,
        "parked": 0,
        "measured": 2,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 0,
        "dead_letters": 1,
        "stale_writes_today": 0,
    }
    assert "work" in cli.run("stats").stdout
    shown = " ".join(cli.run("stats", "work").stdout.split())
    for said in ("ready 1, the oldest for ", "2 ended: 1 succeeded, 1 failed", "waits p50 ", "dead letters 1"):
        assert said in shown


def test_a_paused_queue_is_marked(cli: Cli) -> None:
    cli.run("pause", "work")
    assert "work (paused)" in cli.run("stats").stdout
    assert "since 20" in cli.run("stats", "work").stdout


def test_stats_without_queues(bare: Cli) -> None:
    bare.run("migrate")
    assert bare.run("stats").stdout == "there is no queue yet; create one with: sqlqueue create NAME\n"
    assert bare.json("stats") == []


def test_counts_beyond_the_cap_say_so(cli: Cli) -> None:
    cli.run("enqueue", "work", "-", stdin='{"a": 1}\n' * 10_001)
    assert "10,000+" in cli.run("stats").stdout
    assert "10,000+, the oldest" in cli.run("stats", "work").stdout


def test_watch_repeats_so_many_times(cli: Cli) -> None:
    options = ["--watch", "--every", "100ms", "--count", "3"]
    lines = cli.run("stats", *options, "--json").stdout.splitlines()
    assert [[row["queue"] for row in json.loads(line)] for line in lines] == [["work"]] * 3
    shown = cli.run("stats", "work", *options)
    assert shown.exit_code == 0
    assert shown.stdout.count("queue work\n") == 3


def test_a_queue_that_goes_meanwhile_is_left_out(cli: Cli, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.create_queue(QueueSpec("replies", Work))
    queues = SqlQueue.queues

    def gone(source: SqlQueue) -> list[QueueSettings]:
        found = queues(source)
        rows(queue, "DELETE FROM {s}.bucket WHERE queue = 'replies'")
        rows(queue, "DELETE FROM {s}.queue WHERE name = 'replies'")
        return found

    monkeypatch.setattr(SqlQueue, "queues", gone)
    assert [row["queue"] for row in cli.json("stats")] == ["work"]


def test_watch_draws_a_terminal_anew(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    shown = cli.run("stats", "--watch", "--every", "0.1", "--count", "2").stdout
    assert "every 0.1 s, Ctrl-C ends" in shown
    assert "\x1b[1A" in shown


def test_watch_ends_by_an_interrupt(cli: Cli) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "dagster_sqlqueue.cli", "stats", "--watch", "--every", "1h", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **cli.environment, "PYTHONPATH": str(PROJECT)},
    )
    assert watching.stdout
    assert json.loads(watching.stdout.readline())[0]["queue"] == "work"
    watching.send_signal(signal.SIGINT)
    assert watching.communicate(timeout=PATIENCE) == (b"", b"")
    assert watching.returncode == 130


def test_what_is_refused(cli: Cli) -> None:
    for options, said in (
        (["--every", "5"], "go with --watch"),
        (["--count", "5"], "go with --watch"),
        (["--watch", "--every", "10ms"], "at least 0.1 seconds"),
        (["--watch", "--every", "-1"], "--every is '-1'"),
        (["--watch", "--count", "0"], "at least 1"),
        (["--watch", "--count", "x"], "--count is 'x'"),
    ):
        assert said in cli.refused(2, "stats", *options)
