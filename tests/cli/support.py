"""Runs the command line in this process, or in one of its own."""

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer import testing
from typer.testing import CliRunner, Result

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli import app
from dagster_sqlqueue.cli.catalog import ENTRIES, Entry
from tests.gate.patience import PATIENCE

# Building commands takes longer than most of them run.
testing._get_command = functools.cache(testing._get_command)
Entry.load = functools.cache(Entry.load)  # type: ignore[method-assign]


def _named(program: typer.Typer, *groups: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for info in program.registered_commands:
        assert info.callback
        yield " ".join([*groups, info.name or info.callback.__name__]), info.callback
    for group in program.registered_groups:
        assert group.typer_instance
        yield from _named(group.typer_instance, *groups, str(group.typer_instance.info.name))


def _everything() -> typer.Typer:
    program = typer.Typer()
    for module in dict.fromkeys(entry.module for entry in ENTRIES):
        importlib.import_module(f"dagster_sqlqueue.cli.commands.{module}").register(program)
    return program


CALLBACKS = dict(_named(_everything()))
"""What each command runs; a command of a group by both names."""

COMMANDS = list(CALLBACKS)

_JOB = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
ARGUMENTS = {
    "batch show": ["sizes/2013-07-04"],
    "batch abandon": ["sizes/2013-07-04"],
    "batch forget": ["sizes/2013-07-04"],
    "create": ["orders"],
    "enqueue": ["orders", "{}"],
    "publish": ["orders", "{}"],
    "subscribe": ["orders", "billing", "invoices"],
    "unsubscribe": ["orders", "billing"],
    "work": ["deploy.handlers:send_email"],
    "peek": ["orders"],
    "list": ["orders"],
    "show": [_JOB],
    "explain": [_JOB],
    "wait": [_JOB],
    "follow": [_JOB, "--callback", "invoices"],
    "group add": [_JOB, _JOB],
    "group close": [_JOB],
    "group show": [_JOB],
    "dead": ["orders"],
    "retry": ["orders", "--all"],
    "cancel": ["orders", "--all"],
    "hold": ["orders", "--all"],
    "release": ["orders", "--all"],
    "reschedule": ["orders", "--all", "--for", "5"],
    "reprioritise": ["orders", "--all", "--priority", "5"],
    "replace-payload": [_JOB, "{}"],
    "delete": ["orders", "--all"],
    "purge": ["orders"],
    "pause": ["orders"],
    "resume": ["orders"],
    "rebucket": ["orders", "8"],
    "region": ["orders"],
    "delete-queue": ["orders"],
    "schedule put": ["orders", "nightly", "{}", "--every", "5"],
    "schedule next": ["orders", "nightly"],
    "schedule pause": ["orders", "nightly"],
    "schedule resume": ["orders", "nightly"],
    "schedule remove": ["orders", "nightly"],
    "people rule": ["orders"],
    "people hand-over": ["orders", "--all", "--by", "boss", "--reason", "hard"],
    "people route": ["orders", "--by", "boss"],
    "people adopt": ["orders", "--by", "boss"],
    "people tasks": ["orders"],
    "people take": ["orders", "--operator", "anna"],
    "people my-jobs": ["anna"],
    "people assign": [_JOB, "--to", "anna", "--by", "boss"],
    "people unassign": [_JOB, "--by", "boss"],
    "people hold": [_JOB, "--by", "boss"],
    "people resume": [_JOB, "--by", "boss"],
    "people reschedule": [_JOB, "--for", "5", "--by", "boss"],
    "people submit": [_JOB, "--operator", "anna"],
    "people approve": [_JOB, "--by", "boss"],
    "people reject": [_JOB, "--by", "boss", "--reason", "no"],
    "people give-back": [_JOB, "--by", "boss"],
    "people history": [_JOB],
}
"""With which each command is understood, whatever is there; a command that is none of these needs none."""

PROJECT = Path(__file__).resolve().parents[2]


def command_of(words: Sequence[str]) -> str:
    """The command that a command line names."""
    two = " ".join(words[:2])
    return two if two in CALLBACKS else words[0]


@dataclass
class Cli:
    """`sqlqueue` with an environment."""

    environment: dict[str, str]

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """The result of a command; an exception that is no exit is raised."""
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=self.environment, prog_name="sqlqueue")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """What a command that succeeds prints under `--json`."""
        result = self.run(*arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def refused(self, code: int, *arguments: str, stdin: str | bytes | None = None) -> str:
        """The one line of a command that ends with an error."""
        result = self.run(*arguments, stdin=stdin)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr
        return result.stderr.removeprefix("error: ").strip()

    def process(self, *arguments: str, stdin: bytes = b"", **extra: str) -> "subprocess.CompletedProcess[bytes]":
        """A command in a process of its own."""
        environment = {**os.environ, **self.environment, **extra, "PYTHONPATH": str(PROJECT)}
        return subprocess.run(
            [sys.executable, "-m", "dagster_sqlqueue.cli", *arguments],
            input=stdin,
            capture_output=True,
            env=environment,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture
def bare(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """In a schema where nothing was made yet."""
    for name in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema})


@pytest.fixture
def cli(bare: Cli, queue: SqlQueue) -> Cli:
    """In the schema of `queue`, with its queue `work`."""
    return Cli({**bare.environment, "SQLQUEUE_SCHEMA": queue.database.schema})
