"""What commands show of sensitive fields, and `schema`."""

import json
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Consumer, Done, Job, QueueSpec, Reject, Sensitive, SqlQueue
from tests.cli.support import PROJECT, Cli
from tests.support import Work

SECRET = "correct horse"


class Login(BaseModel):
    user: str
    password: Annotated[str, Sensitive()]


logins = QueueSpec("work", Login, bucket_count=4, max_attempts=1)


@pytest.fixture
def ids(queue: SqlQueue) -> list[str]:
    """A job that waits, one that failed and one that succeeded."""
    queue.create_queue(logins)

    def handler(job: Job[Login]) -> Done | Reject:
        if job.payload.user == "bob":
            return Reject("no")
        return Done({"password": job.payload.password, "said": f"hello {job.payload.password}"})

    found = [queue.enqueue(logins, Login(user=user, password=SECRET)) for user in ("ada", "bob")]
    Consumer(queue, logins, handler).drain()
    # As an older release wrote it.
    with queue.database.connection() as connection:
        schema = queue.database.schema
        connection.execute(f"UPDATE {schema}.job_archive SET error = 'not {SECRET}' WHERE state = 'failed'".encode())
    found.append(queue.enqueue(logins, Login(user="eve", password=SECRET)))
    return [str(job) for job in found]


def test_no_command_shows_a_sensitive_value(cli: Cli, ids: list[str]) -> None:
    shown = 0
    for arguments in (
        ["peek", "work"],
        ["list", "work"],
        ["list", "work", "--archived"],
        *(["show", job] for job in ids),
        ["dead", "work"],
        ["dead", "work", "--full"],
        ["cancel", "work", "--all", "--dry-run"],
        ["retry", "work", "--all", "--dry-run"],
    ):
        for format_ in ([], ["--json"]):
            result = cli.run(*arguments, *format_)
            assert result.exit_code == 0
            assert SECRET not in result.output
            assert "horse" not in result.output
            shown += "***" in result.output
    assert shown >= 18  # a dry run under --json shows ids alone


def test_no_command_shows_a_sensitive_value_of_a_schedule(cli: Cli, queue: SqlQueue) -> None:
    queue.create_queue(logins)
    put = ["schedule", "put", "work", "nightly", json.dumps({"user": "ada", "password": SECRET}), "--cron", "0 3 * * *"]
    for arguments in (
        put,
        ["schedule", "list"],
        ["schedule", "pause", "work", "nightly"],
        ["schedule", "resume", "work", "nightly"],
    ):
        for form in ([], ["--json"]):
            shown = cli.run(*arguments, *form)
            assert shown.exit_code == 0, shown.output
            assert SECRET not in shown.output
            assert not form or "***" in shown.output


def test_the_rest_is_shown(cli: Cli, ids: list[str]) -> None:
    succeeded, failed, waiting = (cli.json("show", job) for job in ids)
    assert waiting["payload"] == {"user": "eve", "password": "***"}
    assert succeeded["result"] == {"password": "***", "said": "hello ***"}
    assert failed["error"] == "not ***"


def test_a_queue_without_sensitive_fields_is_shown_whole(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1, note=SECRET))
    assert cli.json("peek", "work")[0]["payload"] == {"n": 1, "note": SECRET}


def test_the_schema_of_a_queue(cli: Cli) -> None:
    found = json.loads(cli.run("schema", "tests.cli.test_redacting:logins").stdout)
    assert found["required"] == ["user", "password"]
    assert found["properties"]["password"]["x-sensitive"] is True
    assert json.loads(cli.run("schema", "deploy.handlers:send_email").stdout)["title"] == "Email"


def test_the_schema_of_what_has_none(cli: Cli) -> None:
    assert "'json:loads' is a function; name a QueueSpec" in cli.refused(2, "schema", "json:loads")
    assert "there is no module 'nothing' here" in cli.refused(2, "schema", "nothing:x")
    assert "has no 'x'" in cli.refused(2, "schema", "json:x")


def test_the_schema_needs_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    assert Cli({"SQLQUEUE_HOME": str(tmp_path)}).run("schema", "deploy.handlers:emails").exit_code == 0
    assert list(tmp_path.iterdir()) == []
    assert (PROJECT / "deploy" / "handlers.py").is_file()
