"""What docs/cli.md says: every command, every exit code, and examples that work."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli import app
from dagster_sqlqueue.cli.exit_codes import MEANINGS, Code
from dagster_sqlqueue.doctor import examine, server_checks
from tests.cli.support import CALLBACKS, COMMANDS, PROJECT, Cli, command_of
from tests.gate.patience import sized

_PAGE = (PROJECT / "docs" / "cli.md").read_text(encoding="utf-8")
_EXAMPLES = [line for block in re.findall(r"```shell\n(.*?)```", _PAGE, re.DOTALL) for line in block.splitlines()]
_PIPE = re.compile(r"printf '(?P<stdin>[^']*)' \| (?P<command>.*)")
_ENDLESS = (["schedule", "run"], ["metrics", "--port", "9187"], ["up"])
"""They go on until they are stopped: tests/cli/test_schedules.py, tests/metrics/test_http.py, tests/cli/test_up.py."""
_MAY_FAIL = {"doctor": {Code.DONE, Code.FAILED}, "batch": {Code.DONE, Code.UNKNOWN}}
"""A batch is there only where Spark has sealed one: tests/cli/test_batches.py."""


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """For every command, also those that change the schema."""
    return fresh


def _words(example: str) -> tuple[list[str], str | None]:
    piped = _PIPE.fullmatch(example)
    program, *words = shlex.split(piped["command"] if piped else example)
    assert program == "sqlqueue"
    return words, piped["stdin"].replace("\\n", "\n") if piped else None


def test_every_command_is_in_the_tables_and_has_an_example() -> None:
    assert sorted(re.findall(r"^\| `([\w -]+)` \|", _PAGE, re.MULTILINE)) == sorted(COMMANDS)
    assert {command_of(_words(example)[0]) for example in _EXAMPLES} == set(COMMANDS)


def test_every_exit_code_is_there() -> None:
    assert set(MEANINGS) == set(Code)
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", _PAGE, re.MULTILINE))
    assert table == {str(int(code)): meaning for code, meaning in MEANINGS.items()}


def test_every_check_of_doctor_is_there(queue: SqlQueue) -> None:
    names = ", ".join(check.name for check in examine(queue.database))
    assert f"checks: {names}." in " ".join(_PAGE.split())
    for verdict in server_checks.Verdict:
        assert f"`{verdict}`" in _PAGE


def test_the_examples_work(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "deploy")
    for example in _EXAMPLES:
        words, stdin = _words(example)
        if words in _ENDLESS:
            continue
        result = bare.run(*words, stdin=stdin)
        assert result.exit_code in _MAY_FAIL.get(words[0], {Code.DONE}), (example, result.output)
        assert result.stderr == "" or result.exit_code == Code.UNKNOWN


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_there_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"TERMINAL_WIDTH": "200", "COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"sqlqueue {command}" in " ".join(shown.output.split("Example", 1)[1].split())
    for words in re.findall(r"sqlqueue (\w+ ?[\w-]*)", shown.output):
        assert command_of(words.split()) in COMMANDS


def test_every_example_of_the_help_is_understood(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "deploy")
    # Those of the page work, by the test above.
    known = sized([_words(example)[0] for example in _EXAMPLES], [])
    for callback in CALLBACKS.values():
        text = " ".join((callback.__doc__ or "").split())
        for example in re.findall(r"sqlqueue .*?(?= sqlqueue |$)", text.split("Example", 1)[-1]):
            words = shlex.split(example.partition(" < ")[0])[1:]
            if words in _ENDLESS or words in known or sized("--processes" in words, False):
                continue
            words += ["--count", "1"] if "--watch" in words else ["--drain"] if words[0] == "work" else []
            result = cli.run(*words, stdin='{"order": 1}\n')
            assert result.exit_code != Code.INPUT, (example, result.output)
