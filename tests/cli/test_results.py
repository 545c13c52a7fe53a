"""`wait`, and the progress that `show` shows."""

import json
import os
import signal
import subprocess
import sys
import threading
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, rows, until, value


@pytest.fixture
def job(queue: SqlQueue, spec: QueueSpec[Work]) -> UUID:
    id = queue.enqueue(spec, NewJob(Work(n=1)))
    assert id
    return id


def _ends(queue: SqlQueue, state: ArchiveState, result: object = None, error: str | None = None) -> threading.Thread:
    """Ends the job as soon as somebody waits for it."""

    def end() -> None:
        until(lambda: value(queue, "SELECT count(*) FROM {s}.follower") == 1)
        queue.finish([Ending(job, state, result, error) for job in claim(queue)])

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def test_waiting_for_a_result(cli: Cli, queue: SqlQueue, job: UUID) -> None:
    thread = _ends(queue, ArchiveState.SUCCEEDED, {"sum": 3})
    result = cli.run("wait", str(job))
    thread.join()
    assert result.exit_code == Code.DONE
    first, rest = result.stdout.split("\n", 1)
    assert first.startswith(f"job {job} succeeded, ")
    assert json.loads(rest) == {"sum": 3}
    shown = cli.json("wait", str(job), "--timeout", "0s")
    assert (shown["state"], shown["result"], shown["archived"]) == ("succeeded", {"sum": 3}, True)


@pytest.mark.parametrize("state", [ArchiveState.FAILED, ArchiveState.CANCELLED])
def test_one_that_did_not_succeed(cli: Cli, queue: SqlQueue, job: UUID, state: ArchiveState) -> None:
    thread = _ends(queue, state, error="broken \x1b[2J")
    result = cli.run("wait", str(job), "--timeout", "1h")
    thread.join()
    assert result.exit_code == Code.NOT_SUCCEEDED == 8
    assert f"{state}, " in result.stdout
    assert "broken" in result.stdout
    assert "\x1b[2J" not in result.stdout
    shown = cli.run("wait", str(job), "--json")
    assert shown.exit_code == Code.NOT_SUCCEEDED
    assert json.loads(shown.stdout)["error"] == "broken \x1b[2J"


def test_when_the_time_is_up(cli: Cli, queue: SqlQueue, job: UUID) -> None:
    (claimed,) = claim(queue)
    queue.leases.note_progress(claimed, 40)
    message = cli.refused(Code.TIMED_OUT, "wait", str(job), "--timeout", "100ms")
    assert message == f"job {job} of queue 'work' has not ended within 0.1 seconds: it is running, 40 % done"
    assert Code.TIMED_OUT == 9
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0


def test_what_cannot_be_waited_for(cli: Cli) -> None:
    assert "no job" in cli.refused(Code.UNKNOWN, "wait", str(uuid4()))
    assert "not a job's id" in cli.refused(Code.INPUT, "wait", "x")
    assert "--timeout" in cli.refused(Code.INPUT, "wait", str(uuid4()), "--timeout", "soon")


def test_show_shows_how_far_a_job_is(cli: Cli, queue: SqlQueue, job: UUID) -> None:
    assert cli.json("show", str(job))["progress"] is None
    (claimed,) = claim(queue)
    assert cli.json("show", str(job))["progress"] is None
    queue.leases.note_progress(claimed, 33.5, "page 7 \x1b[2J")
    shown = cli.json("show", str(job))["progress"]
    assert (shown["percent"], shown["message"]) == (33.5, "page 7 \x1b[2J")
    text = cli.run("show", str(job)).stdout
    assert "33.5 % page 7" in text
    assert "\x1b[2J" not in text
    queue.complete([claimed])
    assert cli.json("show", str(job))["progress"] is None


def test_maintain_says_which_reply_queues_it_removed(cli: Cli, queue: SqlQueue) -> None:
    queue.database.run("reply_queue_put", {"queue": "reply_x", "seconds": 60.0})
    rows(queue, "UPDATE {s}.reply_queue SET expires_at = now() - interval '1 second'")
    assert "deleted expired reply queues: 1" in cli.run("maintain").stdout
    assert cli.json("maintain")["queues_removed"] == []


def test_an_interrupted_wait_leaves_nobody_to_be_notified(cli: Cli, queue: SqlQueue, job: UUID) -> None:
    command = [sys.executable, "-m", "dagster_sqlqueue.cli", "wait", str(job)]
    environment = {**os.environ, **cli.environment, "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        until(lambda: value(queue, "SELECT count(*) FROM {s}.follower") == 1)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(PATIENCE) == Code.INTERRUPTED
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0
