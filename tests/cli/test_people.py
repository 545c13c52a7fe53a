"""`sqlqueue people`: tasks on the command line, from the rule to the history."""

from typing import Annotated
from uuid import UUID

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import NewJob, QueueSpec, Sensitive, SqlQueue
from tests.cli.support import Cli
from tests.support import value

JOB = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
OTHER = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2c"


@pytest.fixture
def task(cli: Cli) -> str:
    """A job that is people's."""
    cli.run("enqueue", "work", '{"n": 1}', "--id", JOB)
    cli.run("people", "hand-over", "work", JOB, "--by", "boss", "--reason", "hard", "--four-eyes")
    return JOB


def test_a_task_is_done_and_approved(cli: Cli, queue: SqlQueue, task: str) -> None:
    (found,) = cli.json("people", "tasks", "work")
    assert (found["id"], found["stage"], found["payload"], found["four_eyes"]) == (JOB, "open", {"n": 1}, True)
    (taken,) = cli.json("people", "take", "work", "--operator", "anna")
    assert (taken["assignee"], taken["revision"]) == ("anna", 2)
    shown = cli.run("people", "my-jobs", "anna").stdout
    for word in (JOB, "assigned", "anna", "four eyes", '{"n": 1}'):
        assert word in shown
    (done,) = cli.json("people", "submit", JOB, "--operator", "anna", "--result", '{"paid": true}', "--revision", "2")
    assert (done["stage"], done["result"]) == ("in_review", {"paid": True})
    assert "it needs four eyes, and 'anna' did it" in cli.refused(2, "people", "approve", JOB, "--by", "anna")
    cli.run("people", "reject", JOB, "--by", "bert", "--reason", "wrong")
    assert "at revision 4, and this was decided at 3" in cli.refused(
        2, "people", "submit", JOB, "--operator", "anna", "--revision", "3"
    )
    cli.run("people", "submit", JOB, "--operator", "anna", "--result", '{"paid": false}')
    (ended,) = cli.json("people", "approve", JOB, "--by", "bert")
    assert ended["stage"] == "done"
    assert cli.json("show", JOB)["result"] == {"paid": False}
    events = cli.json("people", "history", JOB)
    assert [(event["no"], event["actor"], event["action"]) for event in events] == [
        (1, "boss", "hand over"),
        (2, "anna", "take"),
        (3, "anna", "submit"),
        (4, "bert", "reject"),
        (5, "anna", "submit"),
        (6, "bert", "approve"),
    ]
    shown = cli.run("people", "history", JOB).stdout
    for word in ("bert", "reject", "wrong", '{"assignee": "anna"}'):
        assert word in shown


def test_a_task_is_moved_about(cli: Cli, queue: SqlQueue, task: str) -> None:
    cli.run("people", "assign", JOB, "--to", "anna", "--by", "boss")
    cli.run("people", "hold", JOB, "--by", "anna")
    assert "on hold" in cli.run("people", "my-jobs", "anna", "--queue", "work").stdout
    cli.run("people", "resume", JOB, "--by", "anna")
    (later,) = cli.json("people", "reschedule", JOB, "--until", "2037-01-31T08:00:00Z", "--by", "anna")
    assert later["available_at"] == "2037-01-31T08:00:00+00:00"
    cli.run("people", "unassign", JOB, "--by", "anna")
    assert cli.run("people", "take", "work", "--operator", "bert").stdout == "there is no such task\n"
    cli.run("people", "reschedule", JOB, "--for", "0", "--by", "anna")
    assert [found["id"] for found in cli.json("people", "take", "work", "--operator", "bert")] == [JOB]
    cli.run("people", "give-back", JOB, "--by", "bert")
    assert queue.job(JOB).state == "queued"


def test_the_rule_and_what_follows(cli: Cli, queue: SqlQueue) -> None:
    assert cli.run("people", "rule", "work").stdout == "queue work: 100 % of its jobs are automatic\n"
    said = cli.run("people", "rule", "work", "--automatic", "0", "--always", '{"n": 1}', "--four-eyes").stdout
    assert said == (
        'queue work: 0 % of its jobs are automatic; those that contain {"n": 1} always go to people; results are reviewed'
        " by another person\n"
    )
    kept = cli.json("people", "rule", "work", "--automatic", "12.5")
    assert kept == {
        "queue": "work",
        "automatic_percent": 12.5,
        "always_people": {"n": 1},
        "review": True,
        "four_eyes": True,
    }
    assert cli.json("people", "rule", "work", "--always", "none", "--no-four-eyes")["always_people"] is None
    assert cli.json("people", "rule", "work", "--no-review")["review"] is False
    cli.run("people", "rule", "work", "--automatic", "0")
    cli.run("enqueue", "work", '{"n": 1}', "--id", JOB)
    dry = cli.json("people", "hand-over", "work", "--all", "--by", "boss", "--reason", "hard", "--dry-run")
    assert (dry["changed"], dry["dry_run"]) == ([JOB], True)
    assert queue.job(JOB).state == "queued"
    assert cli.json("people", "route", "work", "--by", "router")["changed"] == [JOB]
    cli.run("enqueue", "work", '{"n": 2}', "--id", OTHER)
    cli.run("hold", "work", OTHER)
    assert cli.run("people", "adopt", "work", "--by", "clerk").stdout == "queue work: 1 held job is a task now\n"
    assert cli.json("people", "adopt", "work", "--by", "clerk") == {"queue": "work", "adopted": []}


def test_what_is_refused(cli: Cli, queue: SqlQueue, task: str) -> None:
    before = value(queue, "SELECT count(*) FROM {s}.job_event")
    for arguments, said in (
        (["assign", JOB, "--to", "", "--by", "boss"], "operator is ''"),
        (["assign", JOB, "--to", "anna"], "Missing option '--by'"),
        (["assign", "1", "--to", "anna", "--by", "boss"], "the job '1' is not a job's id"),
        (["approve", JOB, "--by", "bert"], "it is open, and approve is for tasks that are in review"),
        (["submit", JOB, "--operator", "anna", "--result", "{paid}"], "--result '{paid}' is not JSON"),
        (["reschedule", JOB, "--by", "anna"], "give one of --until and --for"),
        (["reschedule", JOB, "--by", "anna", "--until", "soon"], "'soon' is not a time"),
        (["reject", JOB, "--by", "bert"], "Missing option '--reason'"),
        (["take", "work", "--operator", "anna", "--limit", "0"], "limit is 0"),
        (["tasks", "work", "--stage", "done"], "stage is 'done'"),
        (["rule", "work", "--automatic", "101"], "--automatic is '101'; it must be a number from 0 to 100"),
        (["hand-over", "work", "--by", "boss", "--reason", "hard"], "no jobs are selected"),
    ):
        assert said in cli.refused(2, "people", *arguments), arguments
    assert "there is no job" in cli.refused(5, "people", "approve", OTHER, "--by", "bert")
    assert "there is no job" in cli.refused(5, "people", "history", OTHER)
    assert "there is no queue 'nosuch'" in cli.refused(5, "people", "take", "nosuch", "--operator", "anna")
    assert value(queue, "SELECT count(*) FROM {s}.job_event") == before


def test_the_group_shows_its_commands(cli: Cli) -> None:
    shown = cli.run("people")
    assert shown.exit_code == 0
    for name in ("hand-over", "my-jobs", "history"):
        assert name in shown.stdout


class Account(BaseModel):
    n: int
    token: Annotated[str, Sensitive()]


def test_what_a_payload_hides_is_not_shown(cli: Cli, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("accounts", Account))
    queue.enqueue(QueueSpec("accounts", Account), NewJob(Account(n=1, token="s3cr3t-hunter2"), id=UUID(JOB)))
    reason = ["--reason", "s3cr3t-hunter2 is wrong"]
    result = ["--result", '{"token": "other-s3cr3t", "said": "s3cr3t-hunter2"}']
    said = ""
    for arguments in (
        ["hand-over", "accounts", "--all", "--by", "boss", *reason, "--review"],
        ["tasks", "accounts"],
        ["take", "accounts", "--operator", "anna"],
        ["my-jobs", "anna"],
        ["submit", JOB, "--operator", "anna", *result],
        ["tasks", "accounts", "--stage", "in_review"],
        ["history", JOB],
        ["approve", JOB, "--by", "bert"],
        ["history", JOB],
    ):
        read = arguments[0] in ("tasks", "my-jobs", "history")
        for more in (["--json"], []) if read else (["--json"],):
            done = cli.run("people", *arguments, *more)
            assert done.exit_code == 0, done.stderr
            said += done.stdout
    assert "s3cr3t" not in said
    assert "***" in said
