"""What a worker shows, and how it ends by itself."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, rows, until
from tests.worker import jobs
from tests.worker.conftest import Shop

BOTH = ("tests.worker.jobs:handle=3", "tests.worker.jobs:handle_other=1")


@pytest.fixture
def two(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    queue.create_queue(QueueSpec("other", Work, bucket_count=1))
    return queue


def failing_once(count: int) -> list[NewJob[Work]]:
    """Jobs of which one fails, and does not come again within this test."""
    return [NewJob(Work(n=n, note="fail" if n == 3 else ""), backoff=Backoff.fixed(3_600)) for n in range(count)]


@pytest.mark.prove
def test_several_handlers_each_have_their_share(shop: Shop, two: SqlQueue) -> None:
    each = sized(200, 400)
    for spec in (jobs.work, jobs.other):
        two.enqueue_many(spec, [Work(n=n) for n in range(each)])
    worker = shop.start(BOTH[1], "--drain", "--batch", "10", handler=BOTH[0])
    assert worker.ended() == 0
    shown = {line["queue"]: line["succeeded"] for line in worker.events("stats")}
    assert shown == {"work": each, "other": each}
    order = [line["queue"] for line in shop.history("done")]
    assert len(order) == 2 * each
    # A batch of each more or less, in any stretch in which both had jobs.
    for at in range(each // 4, each + 1, each // 4):
        assert abs(order[:at].count("work") - at * 3 / 4) <= 20


def test_a_budget_ends_it(shop: Shop, cli: Cli, two: SqlQueue) -> None:
    several = shop.start("--budget", "1500ms", "--processes", "2")
    assert cli.run("work", *BOTH, "--budget", "300ms").exit_code == 0
    assert several.ended() == 0
    assert len(several.events("process_ended")) == 2


def test_a_queue_that_is_removed_ends_every_process_with_its_code(shop: Shop, queue: SqlQueue) -> None:
    worker = shop.start("--processes", "2")
    worker.event("process_started", times=2)
    rows(queue, "DELETE FROM {s}.bucket; DELETE FROM {s}.queue")
    assert worker.ended() == 5
    assert worker.errors.startswith("error: there is no queue 'work'")
    assert "Traceback" not in worker.errors


def test_stats_and_the_last_error_are_shown(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, failing_once(10))
    worker = shop.start("--every", "100ms")

    def shown() -> list[dict[str, Any]]:
        wanted = {"queue": "work", "succeeded": 9, "retried": 1, "ready": 0}
        return [stats for stats in worker.events("stats") if wanted.items() <= stats.items()]

    assert until(shown, "the stats")[0]["last_error"] == "ValueError: no such address"
    assert worker.stopped() == 0


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("no outcome", "the handler returned a dict; return Done(…)"),
        ("no JSON", "the result cannot be written as JSON"),
    ],
)
@pytest.mark.parametrize("handler", ["answer", "answer_async"])
def test_what_is_no_outcome_is_the_last_error_too(
    cli: Cli, queue: SqlQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: str, said: str, handler: str
) -> None:
    monkeypatch.setenv("WORK_HISTORY", str(tmp_path / "history"))
    queue.enqueue(jobs.work, Work(n=1, note=note))
    shown = cli.run("work", f"tests.worker.jobs:{handler}", "--drain").stdout
    assert f"last error: {said}" in shown
    assert rows(queue, "SELECT state FROM {s}.job_archive") == [("failed",)]


def test_lines_for_people(cli: Cli, queue: SqlQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORK_HISTORY", str(tmp_path / "history"))
    queue.enqueue_many(jobs.work, failing_once(4))
    shown = cli.run("work", "tests.worker.jobs:handle", "--drain").stdout.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", line) for line in shown)
    assert [line[21:] for line in (shown[0], shown[-1])] == ["started", "stopped with exit code 0"]
    (stats,) = (line for line in shown if " work: " in line)
    assert re.search(
        r"work: 3 succeeded, 1 retried, [\d.,]+/s; \d ready; last error: ValueError: no such address$", stats
    )


def test_a_terminal_is_drawn_anew(shop: Shop, url: str, queue: SqlQueue, spec: QueueSpec[Work], tmp_path: Path) -> None:
    queue.enqueue_many(spec, failing_once(50))
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "SQLQUEUE_URL": url,
        "SQLQUEUE_SCHEMA": queue.database.schema,
        "WORK_HISTORY": str(tmp_path / "history"),
        "COLUMNS": "120",
        "TERM": "xterm",
    }
    words = [sys.executable, "-m", "dagster_sqlqueue.cli", "work", "tests.worker.jobs:handle"]
    process = subprocess.Popen(words, env=environment, cwd=PROJECT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = ""
    try:
        while not re.search(r"\b49\b.*\b1\b", seen):
            assert process.poll() is None, seen
            seen += os.read(ours, 10_000).decode(errors="replace")
        os.write(ours, b"\n")
        process.send_signal(2)
        # All of it, for whoever draws waits where nobody reads; at the end the terminal is gone.
        with contextlib.suppress(OSError):
            while more := os.read(ours, 10_000):
                seen += more.decode(errors="replace")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)
    assert "succeeded" in seen
    assert "work: ValueError: no such address" in seen
    assert "Ctrl-C finishes running jobs" in seen
    assert seen.rfind("\x1b[?25h") > seen.rfind("\x1b[?25l")  # the cursor is back
