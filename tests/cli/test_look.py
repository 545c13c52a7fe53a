"""`peek`, `stats`, `dead`."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.model import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.cli.support import PROJECT, Cli
from tests.core.support import Work

_HOSTILE = "[bold red]x[/] \x1b[2J\x9b31m\u202e\r"


def _claim(queue: SqlQueue, limit: int = 10) -> list:
    return queue.claim("work", buckets=range(4), limit=limit, lease_seconds=30, worker="w")


def _fail(queue: SqlQueue, error: str) -> None:
    jobs = _claim(queue)
    queue.finish([Ending(job, ArchiveState.FAILED, error=error) for job in jobs])


def test_peek(cli: Cli, queue: SqlQueue) -> None:
    cli.run("enqueue", "work", '{"first": 1}')
    cli.run("enqueue", "work", '{"urgent": 1}', "--priority", "9")
    assert [job["payload"] for job in cli.json("peek", "work")] == [{"urgent": 1}, {"first": 1}]
    assert [job["payload"] for job in cli.json("peek", "work", "--limit", "1")] == [{"urgent": 1}]
    assert '{"urgent": 1}' in cli.run("peek", "work").stdout
    assert queue.depth("work").ready == 2


def test_an_empty_queue(cli: Cli) -> None:
    assert cli.run("peek", "work").stdout == "queue work is empty\n"
    assert cli.json("peek", "work") == []
    assert cli.run("dead", "work").stdout == "queue work has no dead letters\n"
    assert cli.json("dead", "work") == []


def test_what_is_in_the_database_steers_no_terminal(cli: Cli, queue: SqlQueue) -> None:
    cli.run("enqueue", "work", '{"a": "[red]\\u001b[2J\\u009b1m\\u202e"}', "--unique-key", _HOSTILE)
    for arguments in (["peek", "work"], ["stats"]):
        _is_calm(cli.run(*arguments).stdout)
    assert "[bold red]x[/]" in cli.run("peek", "work").stdout
    _fail(queue, f"{_HOSTILE}\nsecond line {_HOSTILE}")
    for arguments in (["dead", "work"], ["dead", "work", "--full"], ["dead", "work", "--json"]):
        shown = cli.run(*arguments).stdout
        _is_calm(shown)
        assert "[bold red]x[/]" in shown


def _is_calm(shown: str) -> None:
    assert not [character for character in shown if not character.isprintable() and character != "\n"]


def test_stats_of_every_state(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert cli.json("stats", "work")[0]["oldest_ready_seconds"] is None
    for n in range(4):
        cli.run("enqueue", "work", f'{{"n": {n}}}')
    done, dead = _claim(queue, 2)
    queue.finish([Ending(done, ArchiveState.SUCCEEDED), Ending(dead, ArchiveState.FAILED, error="no")])
    _claim(queue, 1)
    cli.run("enqueue", "work", "{}", "--run-at", "2037-01-31T08:00:00Z")
    (found,) = cli.json("stats")
    assert 0 < found.pop("oldest_ready_seconds") < 60
    until = (datetime(2037, 1, 31, 8, tzinfo=UTC) - datetime.now(UTC)).total_seconds()
    assert abs(found.pop("next_due_seconds") - until) < 60
    assert found == {
        "queue": "work",
        "ready": 1,
        "running": 1,
        "scheduled": 1,
        "held": 0,
        "counted_up_to": 10_000,
        "last_hour": {"succeeded": 1, "failed": 1, "cancelled": 0},
        "dead_letters": 1,
    }
    shown = cli.run("stats").stdout
    assert "oldest ready" in shown
    assert "work" in shown


def test_stats_without_queues(bare: Cli) -> None:
    bare.run("init")
    assert bare.run("stats").stdout == "there is no queue yet; make one with: sqlqueue create NAME\n"
    assert bare.json("stats") == []


def test_figures_beyond_the_cap_say_so(cli: Cli) -> None:
    cli.run("enqueue", "work", "-", stdin='{"a": 1}\n' * 10_001)
    assert "10,000+" in cli.run("stats").stdout


def test_dead_letters(cli: Cli, queue: SqlQueue) -> None:
    queue.enqueue(QueueSpec("work", Work), NewJob(Work(n=1), unique_key="k"))
    _fail(queue, "ValueError: too late\n\nTraceback (most recent call last):\n  last line")
    short = cli.run("dead", "work").stdout
    assert "ValueError: too late …" in short
    assert "last line" not in short
    assert "unique k" in short
    assert "last line" in cli.run("dead", "work", "--full").stdout
    (letter,) = cli.json("dead", "work")
    assert letter["error"].endswith("last line")
    assert letter["payload"]["n"] == 1


def test_limits_are_checked(cli: Cli) -> None:
    for limit in ("0", "-1", "10001", "all"):
        cli.refused(2, "peek", "work", "--limit", limit)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_goes_away(cli: Cli, form: list[str]) -> None:
    cli.run("enqueue", "work", "-", stdin='{"a": 1}\n' * 2_000)
    peek = subprocess.Popen(
        [sys.executable, "-m", "dagster_sqlqueue.cli", "peek", "work", "--limit", "2000", *form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **cli.environment, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": ""},
    )
    assert peek.stdout
    assert peek.stderr
    peek.stdout.read(10)
    peek.stdout.close()
    with peek.stderr as stderr:
        assert stderr.read() == b""
    assert peek.wait(60) == 141


def test_an_ascii_terminal(cli: Cli) -> None:
    cli.run("enqueue", "work", '{"a": "é"}')
    ascii_only = cli.process("peek", "work", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert ascii_only.returncode == 0
    assert rb"\xe9" in ascii_only.stdout
