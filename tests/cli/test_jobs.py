"""`peek`, `list`, `show`, `explain`, `dead`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import NewJob, QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import Work

_HOSTILE = "[bold red]x[/] \x1b[2J\x9b31m\u202e\r"
_FULL = Path("/dev/full")


class Login(BaseModel):
    password: Annotated[str, Sensitive()]


def _claim(queue: SqlQueue, limit: int = 10) -> list:
    return queue.claim("work", buckets=range(4), limit=limit, lease_seconds=300, worker="w")


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
    assert cli.run("peek", "work").stdout == "no job of queue work waits to be claimed\n"
    assert cli.json("peek", "work") == []
    assert cli.run("dead", "work").stdout == "queue work has no dead letters\n"
    assert cli.json("dead", "work") == []
    assert cli.run("list", "work").stdout.startswith("queue work has no live jobs")
    assert cli.run("list", "work", "--tag", "x", "--archived").stdout == "queue work has no matching ended jobs\n"
    assert cli.json("list", "work") == []


def test_what_is_in_the_database_steers_no_terminal(cli: Cli, queue: SqlQueue) -> None:
    cli.run("enqueue", "work", '{"a": "[red]\\u001b[2J\\u009b1m\\u202e"}', "--unique-key", _HOSTILE)
    (job,) = queue.peek("work")
    for arguments in (["peek", "work"], ["stats"], ["stats", "work"], ["list", "work"], ["show", str(job.id)]):
        _is_calm(cli.run(*arguments).stdout)
    assert "[bold red]x[/]" in cli.run("peek", "work").stdout
    _fail(queue, f"{_HOSTILE}\nsecond line {_HOSTILE}")
    for arguments in (
        ["dead", "work"],
        ["dead", "work", "--full"],
        ["dead", "work", "--json"],
        ["list", "work", "--archived"],
        ["show", str(job.id)],
    ):
        shown = cli.run(*arguments).stdout
        _is_calm(shown)
        assert "[bold red]x[/]" in shown


def _is_calm(shown: str) -> None:
    assert not [character for character in shown if not character.isprintable() and character != "\n"]


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


def _five(cli: Cli, queue: SqlQueue) -> list[str]:
    """A failed job, a cancelled one, one under a lease, one that is due and one that is scheduled."""
    options: list[list[str]] = [
        ["--tag", "a"],
        ["--tag", "a", "--tag", "b"],
        ["--priority", "9"],
        ["--ordering-key", "k"],
    ]
    made = [cli.json("enqueue", "work", f'{{"n": {n}}}', *more)["id"] for n, more in enumerate(options)]
    later = cli.json("enqueue", "work", '{"n": 4, "to": "NZ"}', "--run-at", "2037-01-31T08:00:00Z")["id"]
    jobs = {str(job.id): job for job in _claim(queue)}
    queue.finish([Ending(jobs[made[0]], ArchiveState.FAILED, error="Refused: no")])
    queue.finish([Ending(jobs[made[1]], ArchiveState.CANCELLED, error="not wanted")])
    queue.release([jobs[made[3]]])
    return [*made, later]


def test_list(cli: Cli, queue: SqlQueue) -> None:
    failed, cancelled, running, due, later = _five(cli, queue)

    def listed(*options: str) -> list[str]:
        return [job["id"] for job in cli.json("list", "work", *options)]

    assert set(listed()) == {running, due, later}
    assert listed("--archived") == [cancelled, failed]
    assert listed("--state", "failed") == [failed]
    assert listed("--state", "cancelled", "--archived") == [cancelled]
    assert listed("--state", "queued", "--payload", '{"to": "NZ"}') == [later]
    assert listed("--state", "running") == [running]
    assert listed("--ordering-key", "k") == [due]
    assert listed("--archived", "--tag", "a", "--tag", "b") == [cancelled]
    assert listed("--archived", "--error", "Refused") == [failed]
    assert listed("--since", "2020-01-31T08:00:00Z", "--state", "running") == [running]
    assert listed("--before", "2020-01-31T08:00:00+01:00") == []
    assert len(listed("--limit", "2")) == 2
    assert "(the first 2; --limit shows more)" in cli.run("list", "work", "--limit", "2").stdout
    shown = " ".join(cli.run("list", "work", "--archived").stdout.split())
    assert "#a #b" in shown
    assert "Refused: no" in shown


def test_what_list_refuses(cli: Cli) -> None:
    for options, said in (
        (["--state", "lost"], "must be one of queued, running, held, succeeded, failed, cancelled"),
        (["--state", "held", "--archived"], "give one of them"),
        (["--payload", "[1]"], "is not a JSON object"),
        (["--payload", "{"], "is not JSON"),
        (["--since", "today"], "--since 'today' is not a time"),
        (["--before", "2026-01-31"], "has no time zone"),
        (["--tag", ""], "not empty"),
        (["--error", ""], "--error is empty"),
        (["--state", ""], "state is ''"),
        (["--limit", "0"], "--limit is 0; it must be 1 to 10,000"),
    ):
        assert said in cli.refused(2, "list", "work", *options)


_EVERYTHING = {
    "archived", "attempt", "available_at", "backoff", "batch_id", "bucket", "cancel_requested_at", "claimed_by",
    "created_at", "error", "finished_at", "id", "lease_no", "max_attempts", "order_no", "ordering_key", "payload",
    "priority", "queue", "region", "result", "run_at", "started_at", "state", "tags", "timeout_seconds", "unique_key",
    "unique_until_claim",
}  # fmt: skip


def test_show(cli: Cli, queue: SqlQueue) -> None:
    failed, _, running, due, later = _five(cli, queue)
    for id_, state in ((failed, "failed"), (running, "running"), (due, "queued"), (later, "queued")):
        job = cli.json("show", id_)
        assert set(job) == {*_EVERYTHING, "followers", "progress"}
        assert (job["id"], job["state"], job["archived"]) == (id_, state, state == "failed")
    assert cli.json("show", later.upper())["payload"] == {"n": 4, "to": "NZ"}
    shown = " ".join(cli.run("show", failed).stdout.split())
    for said in ("state failed", "attempt 1 of 3", "tags a", "error Refused: no", '{ "n": 0 }', "by w"):
        assert said in shown
    assert "due 2037-01-31 08:00:00Z" in cli.run("show", later).stdout
    assert "lease ends" in cli.run("show", running).stdout
    assert "there is no job 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b" in cli.refused(
        5, "show", "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
    )
    assert "the job '17' is not a job's id" in cli.refused(2, "show", "17")


def test_explain(cli: Cli, queue: SqlQueue) -> None:
    failed, _, running, due, later = _five(cli, queue)
    explained = {id_: cli.json("explain", id_) for id_ in (failed, running, later)}
    assert {id_: one["state"] for id_, one in explained.items()} == {
        failed: "failed",
        running: "running",
        later: "queued",
    }
    whys = {id_: [reason["why"] for reason in one["reasons"]] for id_, one in explained.items()}
    assert (whys[failed], whys[running]) == (["ended"], ["leased"])
    assert "scheduled" in whys[later]
    assert not any(one["claimable"] for one in explained.values())
    assert cli.json("explain", due)["claimable"]
    shown = cli.run("explain", failed).stdout
    assert shown.startswith(f"job {failed} of queue work is failed\nIt ended as failed; redrive brings it back.\n")
    assert "Refused: no" in shown
    assert "It is leased by w for another" in cli.run("explain", running).stdout
    assert "the job '17' is not a job's id" in cli.refused(2, "explain", "17")
    assert "there is no job 0199a1b2" in cli.refused(5, "explain", "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b")


def test_what_explain_says_hides_what_is_sensitive(cli: Cli, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("logins", Login))
    job_id = queue.enqueue(QueueSpec("logins", Login), Login(password="correct horse"))
    (job,) = queue.claim("logins", limit=1, worker="w")
    queue.fail(job, "refused: correct horse")
    shown = cli.run("explain", str(job_id)).stdout
    assert "refused: ***" in shown
    assert "correct horse" not in shown + str(cli.json("explain", str(job_id)))


def test_the_result_of_a_job(cli: Cli, queue: SqlQueue) -> None:
    id_ = cli.json("enqueue", "work", "{}")["id"]
    (job,) = _claim(queue)
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, result={"sent": True})])
    assert cli.json("show", id_)["result"] == {"sent": True}
    assert '"sent": true' in cli.run("show", id_).stdout


def test_limits_are_checked(cli: Cli) -> None:
    for limit in ("0", "-1", "10001", "all"):
        cli.refused(2, "peek", "work", "--limit", limit)


@pytest.mark.parametrize("form", [[], pytest.param(["--json"], marks=pytest.mark.prove)], ids=["text", "JSON"])
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
    assert peek.wait(PATIENCE) == 141


@pytest.mark.parametrize("arguments", [["--help"], ["peek", "--help"], ["--version"]], ids=" ".join)
def test_a_reader_that_went_away_before_the_help(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dagster_sqlqueue.cli", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not _FULL.exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["stats"], ["--help"]], ids=["a command", "the help"])
def test_a_full_disk_is_one_line(cli: Cli, arguments: list[str]) -> None:
    with _FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dagster_sqlqueue.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, **cli.environment, "PYTHONPATH": str(PROJECT)},
            timeout=PATIENCE,
        )
    assert done.stderr.splitlines() == [b"error: the output cannot be written: No space left on device"]
    assert done.returncode == 1


def test_an_ascii_terminal(cli: Cli) -> None:
    cli.run("enqueue", "work", '{"a": "é"}')
    ascii_only = cli.process("peek", "work", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert ascii_only.returncode == 0
    assert rb"\xe9" in ascii_only.stdout
