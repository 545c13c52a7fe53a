"""How the program starts: it imports what the command needs, and its help says what the commands say themselves."""

import os
import pkgutil
import subprocess
import sys

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.cli import commands
from dagster_sqlqueue.cli.catalog import ENTRIES, Entry
from tests.cli.support import COMMANDS, PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import Work

_HEAVY = {"sqlalchemy", "psycopg", "dagster", "pyspark", "prometheus_client"}

_IMPORTED = """
import atexit
import sys
from dagster_sqlqueue.cli import main
sys.argv = ["sqlqueue", *sys.argv[1:]]
atexit.register(lambda: sys.stderr.write(" ".join(sys.modules)))
main()
"""

_LOADED = """
import sys
from dagster_sqlqueue.cli.catalog import ENTRIES
for entry in ENTRIES:
    entry.load()
print(*sys.modules)
"""


def _imported(*arguments: str, **environment: str) -> set[str]:
    """The modules that a command line has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED, *arguments],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    # The doctor may find the tests' server wanting.
    assert not done.returncode or arguments[0] == "doctor", done.stderr
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_needs_no_command_imports_none(option: str) -> None:
    assert not _imported(option) & {*_HEAVY, "pydantic"}


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--show-completion", "zsh"], {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}),
        ([], {"_SQLQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": "sqlqueue re", "COMP_CWORD": "1"}),
    ],
    ids=["script", "names of commands"],
)
def test_completion_imports_no_command(arguments: list[str], environment: dict[str, str]) -> None:
    assert not _imported(*arguments, **environment) & _HEAVY  # Typer reads what it is given by Pydantic


def test_the_help_of_a_command_needs_no_driver() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=PROJECT, capture_output=True, timeout=PATIENCE, check=True
    )
    assert not set(done.stdout.decode().split()) & _HEAVY
    assert not _imported("list", "--help") & _HEAVY


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats"],
        ["queues"],
        ["list", "work"],
        ["doctor"],
        ["enqueue", "work", '{"n": 1}'],
        ["retry", "work", "--all"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_imports_what_it_needs(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], arguments: list[str]
) -> None:
    """Of SQLAlchemy neither its mapper nor its dialects, which import those of all drivers."""
    queue.create_queue(spec)
    needless = {
        *(_HEAVY - {"sqlalchemy", "psycopg"}),
        "sqlalchemy.orm",
        "sqlalchemy.dialects.postgresql",
        "dagster_sqlqueue.consumer.consumer",
        "dagster_sqlqueue.worker.worker",
    }
    assert not _imported(*arguments, **cli.environment) & needless


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_the_help_says_what_the_command_says(entry: Entry) -> None:
    assert (entry.load().help or "").split("\n\n")[0] == entry.summary


def test_every_module_and_every_command_is_in_the_help() -> None:
    named = {entry.module for entry in ENTRIES}
    assert {entry.name for entry in ENTRIES} == {command.split()[0] for command in COMMANDS}
    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        found = __import__(module.name, fromlist=["register"])
        assert (module.name.rpartition(".")[2] in named) == hasattr(found, "register")


@pytest.mark.parametrize(
    ("command", "closed", "code", "said"),
    [
        ("queues", ">&-", 0, ""),
        ("--help", ">&-", 0, ""),
        ("peek nosuch", ">&-", 5, "error: there is no queue 'nosuch' in "),
        ("peek nosuch", "2>&-", 5, ""),
        ("enqueue work -", "<&-", 2, "error: standard input contained no payload"),
        ("queues", "<&- >&- 2>&-", 0, ""),
    ],
)
def test_a_standard_stream_may_be_closed(cli: Cli, command: str, closed: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m dagster_sqlqueue.cli {command} {closed}', sys.executable],
        cwd=PROJECT,
        env={**os.environ, **cli.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert said or not done.stderr
