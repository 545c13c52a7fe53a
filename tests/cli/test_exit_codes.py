"""What the table of exit codes says, by commands that end with them."""

import re
import socket
from uuid import uuid4

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli.exit_codes import MEANINGS, Code
from dagster_sqlqueue.followers import Groups
from tests.cli.support import ARGUMENTS, COMMANDS, Cli
from tests.support import rows

_UNKNOWN = {
    "queue": ("peek", "nosuch"),
    "job": ("show", str(uuid4())),
    "group": ("group", "show", str(uuid4())),
    "subscription": ("unsubscribe", "orders", "nosuch"),
    "schedule": ("schedule", "pause", "work", "nosuch"),
    "batch": ("batch", "show", "nosuch"),
}
_ENDLESS = {"up", "metrics", "schedule run", "work"}
"""They go on until they are stopped; none of them looks at the SQL functions."""


def _commands(meaning: str) -> set[str]:
    """The commands that a meaning names."""
    return {command for command in COMMANDS if re.search(rf"\b{command}\b", meaning)}


def test_5_is_for_whatever_can_be_named_and_is_not_there(cli: Cli) -> None:
    *most, last = _UNKNOWN
    assert MEANINGS[Code.UNKNOWN] == f"there is no such {', '.join(most)} or {last}"
    for what, arguments in _UNKNOWN.items():
        assert what in cli.refused(Code.UNKNOWN, *arguments)


def test_1_is_what_doctor_and_functions_found(bare: Cli, fresh: SqlQueue, schema: str) -> None:
    bare.run("create", "orders")
    rows(fresh, f"DROP FUNCTION {schema}_v1.claim")
    tried = [command for command in COMMANDS if command not in _ENDLESS and command != "migrate"]
    ended = {command: bare.run(*command.split(), *ARGUMENTS.get(command, [])) for command in tried}
    failed = {command for command, result in ended.items() if result.exit_code == Code.FAILED}
    assert failed == _commands(MEANINGS[Code.FAILED]) == {"doctor", "functions"}
    for command in failed:
        assert ended[command].stderr == ""
        assert f"{schema}_v1.claim" in " ".join(ended[command].stdout.split())
    bare.run("migrate")
    rows(fresh, "UPDATE {s}.function_set SET digest = 'another'")
    assert bare.run("functions").exit_code == Code.FAILED


def test_2_is_for_a_group_that_is_closed(cli: Cli, queue: SqlQueue) -> None:
    group = Groups(queue).open()
    Groups(queue).close(group)
    assert "is closed" in cli.refused(Code.INPUT, "enqueue", "work", "{}", "--group", str(group))
    assert queue.depth("work").live == 0


def test_2_changes_no_job_though_something_may_have_been_made(bare: Cli, fresh: SqlQueue) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = bare.run("work", "tests.worker.jobs:handle_other", "--drain", "--metrics-port", port)
    assert result.exit_code == Code.INPUT
    assert result.stderr.startswith(f"error: cannot listen on port {port} of address '127.0.0.1': ")
    assert MEANINGS[Code.INPUT].endswith("; no job was changed")
    assert fresh.settings("other").name == "other"
