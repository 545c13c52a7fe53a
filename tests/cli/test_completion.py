"""What the shell completes: commands, options, and the queues of the database."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli import app
from tests.cli.support import Cli
from tests.gate.patience import PATIENCE

_PROGRAMS = Path(sys.executable).parent


def _completed(cli: Cli, line: str) -> list[str]:
    """What bash is given for the last word of a line."""
    words = {"_SQLQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = CliRunner().invoke(app, [], env={**cli.environment, **words}, prog_name="sqlqueue")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.split()


def _bash(script: str, home: Path) -> str:
    """What bash says, which has the program on its path."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script],
        env={"PATH": f"{_PROGRAMS}:{os.environ['PATH']}", "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_commands_of_the_program_and_of_a_group(bare: Cli) -> None:
    assert _completed(bare, "sqlqueue sta") == ["stats"]
    assert _completed(bare, "sqlqueue people my") == ["my-jobs"]


def test_options_of_a_command(bare: Cli) -> None:
    assert _completed(bare, "sqlqueue enqueue orders --uni") == ["--unique-key", "--unique-until"]


@pytest.mark.parametrize("command", ["peek", "list", "enqueue", "stats", "retry", "pause", "trim", "queues"])
def test_queues_of_the_database(cli: Cli, command: str) -> None:
    assert _completed(cli, f"sqlqueue {command} wo") == ["work"]
    assert _completed(cli, f"sqlqueue {command} ze") == []


def test_queues_of_the_schema_that_the_line_names(cli: Cli, queue: SqlQueue) -> None:
    there = Cli({**cli.environment, "SQLQUEUE_SCHEMA": "elsewhere"})
    assert _completed(there, "sqlqueue peek wo") == []
    assert _completed(there, f"sqlqueue peek --schema {queue.database.schema} wo") == ["work"]


def test_no_word_where_the_database_cannot_be_asked(bare: Cli, tmp_path: Path) -> None:
    for url in (f"postgresql:///sqlqueue?host={tmp_path}", "no url"):
        assert _completed(Cli({**bare.environment, "SQLQUEUE_URL": url}), "sqlqueue peek wo") == []


def test_no_server_is_started(bare: Cli, tmp_path: Path) -> None:
    data = tmp_path / "postgres"
    data.mkdir()
    (data / "PG_VERSION").write_text("18\n")
    assert _completed(Cli({"SQLQUEUE_HOME": str(tmp_path)}), "sqlqueue peek wo") == []
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]


def test_bash_completes_by_the_script_that_is_shown(tmp_path: Path) -> None:
    script = 'eval "$(sqlqueue --show-completion)"; complete -p sqlqueue; COMP_WORDS=(sqlqueue sta); COMP_CWORD=1;'
    said = _bash(script + ' _sqlqueue_completion sqlqueue; echo "${COMPREPLY[@]}"', tmp_path)
    assert "-F _sqlqueue_completion sqlqueue" in said
    assert said.splitlines()[-1] == "stats"


@pytest.mark.prove
def test_bash_completes_once_it_is_installed(tmp_path: Path) -> None:
    installed = _bash("sqlqueue --install-completion; true", tmp_path)
    assert installed.startswith("bash completion installed")
    script = "source ~/.bashrc; COMP_WORDS=(sqlqueue sta); COMP_CWORD=1;"
    assert _bash(script + ' _sqlqueue_completion sqlqueue; echo "${COMPREPLY[@]}"', tmp_path) == "stats\n"


@pytest.mark.parametrize(("shell", "said"), [("zsh", "#compdef sqlqueue"), ("fish", "complete --command sqlqueue")])
def test_the_scripts_of_other_shells(bare: Cli, shell: str, said: str) -> None:
    shown = CliRunner().invoke(app, [], env={"_SQLQUEUE_COMPLETE": f"source_{shell}"}, prog_name="sqlqueue")
    assert shown.exit_code == 0
    assert said in shown.stdout
