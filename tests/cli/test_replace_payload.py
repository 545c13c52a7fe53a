"""`replace-payload`: of jobs in every state; what it refuses, and what it says."""

import json
from typing import Annotated
from uuid import uuid4

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, Selection, Sensitive, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.cli.support import Cli
from tests.support import Work, claim, value


class Secret(Work):
    """A payload with something to hide."""

    token: Annotated[str, Sensitive()] = ""


SECRETS = QueueSpec("work", Secret, bucket_count=4)


def put(queue: SqlQueue, spec: QueueSpec[Work]) -> str:
    return str(queue.enqueue(spec, NewJob(Work(n=1), priority=3)))


def payload(queue: SqlQueue, job: str) -> object:
    return json.loads(queue.job(job).payload)


def everything(queue: SqlQueue) -> object:
    return value(queue, "SELECT jsonb_agg(to_jsonb(j) ORDER BY j.id) FROM {s}.job_all AS j")


def test_of_a_queued_job(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = put(queue, spec)
    done = cli.run("replace-payload", job, '{"n": 7}')
    assert (done.exit_code, done.stdout) == (0, "queue work: replaced the payload of 1 job\n")
    assert payload(queue, job) == {"n": 7}
    assert queue.job(job).priority == 3
    found = cli.json("replace-payload", job, '{"n": 8}')
    assert found == {"queue": "work", "changed": [job], "requested": [], "skipped": []}


def test_from_standard_input(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = put(queue, spec)
    cli.json("replace-payload", job, "-", stdin='{\n  "n": 7,\n  "note": "é"\n}\n')
    assert payload(queue, job) == {"n": 7, "note": "é"}
    assert "standard input is not a JSON object" in cli.refused(2, "replace-payload", job, "-", stdin="")


def test_of_a_held_job(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = put(queue, spec)
    queue.hold_queued("work", Selection(ids=[job]), "look")
    assert cli.json("replace-payload", job, '{"n": 7}')["changed"] == [job]
    assert queue.job(job).state == "held"
    assert cli.json("replace-payload", job, '{"n": 8}', "--release")["changed"] == [job]
    assert (queue.job(job).state, payload(queue, job)) == ("queued", {"n": 8})


def test_of_a_dead_letter(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = put(queue, spec)
    queue.finish([Ending(one, ArchiveState.FAILED, error="no") for one in claim(queue)])
    assert cli.json("replace-payload", job, '{"n": 7}')["changed"] == [job]
    assert (queue.job(job).state, payload(queue, job)) == ("queued", {"n": 7})


@pytest.mark.parametrize("state", ["queued", "held", "failed"])
def test_a_dry_run_shows_the_job_and_changes_nothing(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], state: str
) -> None:
    job = put(queue, spec)
    if state == "held":
        queue.hold_queued("work", Selection(ids=[job]), "look")
    elif state == "failed":
        queue.finish([Ending(one, ArchiveState.FAILED, error="no") for one in claim(queue)])
    before = everything(queue)
    preview = cli.run("replace-payload", job, '{"n": 7}', "--release", "--dry-run")
    assert preview.exit_code == 0
    assert preview.stdout.startswith("queue work: 1 job would be given the payload. Nothing was changed (--dry-run)\n")
    assert state in preview.stdout
    found = cli.json("replace-payload", job, "-", "--dry-run", stdin='{"n": 7}')
    assert found == {
        "queue": "work",
        "changed": [job],
        "requested": [],
        "skipped": [],
        "dry_run": True,
        "complete": True,
    }
    assert everything(queue) == before
    done = cli.json("replace-payload", job, '{"n": 7}', "--release")
    assert done["changed"] == found["changed"]


def test_a_dry_run_says_what_would_be_left(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = put(queue, spec)
    (running,) = claim(queue)
    for state in ("running", "succeeded"):
        left = cli.run("replace-payload", job, '{"n": 7}', "--dry-run")
        assert (left.exit_code, left.stdout.splitlines()[0]) == (
            6,
            "queue work: 0 jobs would be given the payload; 1 job left unchanged. Nothing was changed (--dry-run)",
        )
        assert f"it is {state}" in left.stdout
        if state == "running":
            queue.complete([running])


def test_what_is_left_is_said(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job = put(queue, spec)
    (running,) = claim(queue)
    before = everything(queue)
    left = cli.run("replace-payload", job, '{"n": 7}')
    assert (left.exit_code, left.stdout.splitlines()[0]) == (
        6,
        "queue work: replaced the payload of 0 jobs; left 1 job unchanged",
    )
    assert "it is running" in left.stdout
    assert everything(queue) == before
    queue.complete([running])
    assert "it ended as succeeded" in cli.run("replace-payload", job, '{"n": 7}').stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seven", "{}"], "the job 'seven' is not a job's id"),
        (["{job}", "[]"], "the payload is not a JSON object"),
        (["{job}", "no"], "the payload is not a JSON object"),
        (["{job}", '{"n": NaN}'], "the payload is not a JSON object"),
        (["{job}", '{"n": "\\u0000"}'], "holds a NUL character, which the database cannot store"),
        (["{job}", json.dumps({"n": "x" * 1_000_000})], "the limit is 1,000,000"),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=str)
def test_what_is_refused(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], words: list[str], said: str, more: list[str]
) -> None:
    job = put(queue, spec)
    before = everything(queue)
    refused = cli.refused(2, "replace-payload", *(word.replace("{job}", job) for word in words), *more)
    assert "row 0" not in refused
    assert said in refused
    assert words[0] == "seven" or refused.endswith("nothing was changed")
    assert everything(queue) == before


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=str)
def test_a_job_that_nobody_knows(cli: Cli, more: list[str]) -> None:
    assert "there is no job" in cli.refused(5, "replace-payload", str(uuid4()), "{}", *more)


@pytest.mark.parametrize(
    "shown", ['{"n": 1, "token": "***"}', '{"n": 1, "more": [{"token": "***"}]}'], ids=["a field", "further down"]
)
def test_what_is_displayed_of_a_secret_is_not_stored(cli: Cli, queue: SqlQueue, shown: str) -> None:
    """It comes from a copy of what `show` displays."""
    queue.create_queue(SECRETS)
    job = str(queue.enqueue(SECRETS, Secret(n=1, token="4711")))
    assert cli.json("show", job)["payload"] == {"n": 1, "note": "", "token": "***"}
    for more in ([], ["--dry-run"]):
        said = cli.refused(2, "replace-payload", job, shown, *more)
        assert "token contains '***', which is displayed in place of the value of a sensitive field" in said
    preview = cli.run("replace-payload", job, '{"n": 2, "token": "0815"}', "--dry-run")
    assert preview.exit_code == 0
    assert "4711" not in preview.stdout
    assert "0815" not in preview.stdout
    assert payload(queue, job) == {"n": 1, "note": "", "token": "4711"}
    cli.json("replace-payload", job, '{"n": 2, "note": "***", "token": "0815"}')
    assert payload(queue, job) == {"n": 2, "note": "***", "token": "0815"}
