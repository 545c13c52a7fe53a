"""`sqlqueue work` in processes of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import Work, until
from tests.support.shared_schema import queue, shared

__all__ = ["queue", "shared"]


class Worker:
    """One `sqlqueue work`, with what it says."""

    def __init__(self, environment: dict[str, str], directory: Path, number: int, arguments: tuple[str, ...]) -> None:
        self._out = directory / f"out-{number}"
        self._err = directory / f"err-{number}"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dagster_sqlqueue.cli", "work", *arguments, "--json"],
                env={**os.environ, **environment},
                cwd=PROJECT,
                stdout=out,
                stderr=err,
            )

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What it printed so far."""
        text = self._out.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if name in (None, line["event"])]

    def event(self, name: str, times: int = 1) -> dict[str, Any]:
        """Wait for an event; gives the last one."""

        def came() -> bool:
            assert self.process.poll() is None or len(self.events(name)) >= times, (self.events(), self.errors)
            return len(self.events(name)) >= times

        until(came, name)
        return self.events(name)[-1]

    @property
    def errors(self) -> str:
        """Its standard error."""
        return self._err.read_text()

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; gives the exit code."""
        return self.process.wait(PATIENCE)

    def stopped(self) -> int:
        """Stop it; gives the exit code."""
        self.signal()
        return self.ended()


class Shop:
    """Workers on the queues of one schema, and the history of their handlers."""

    def __init__(self, queue: SqlQueue, url: str, directory: Path) -> None:
        self.queue = queue
        self.go = directory / "go"
        self._directory = directory
        self._history = directory / "history"
        self._workers: list[Worker] = []
        self._environment = {
            "SQLQUEUE_URL": url,
            "SQLQUEUE_SCHEMA": queue.database.schema,
            "PYTHONPATH": str(PROJECT),
            "WORK_HISTORY": str(self._history),
            "WORK_GO": str(self.go),
        }

    def start(self, *arguments: str, handler: str = "tests.worker.jobs:handle") -> Worker:
        """Start a worker."""
        worker = Worker(self._environment, self._directory, len(self._workers), (handler, *arguments))
        self._workers.append(worker)
        return worker

    def drain(self, handler: str = "tests.worker.jobs:handle") -> list[dict[str, Any]]:
        """Work off what there is in this process; gives what that printed."""
        done = Cli(self._environment).run("work", handler, "--drain", "--json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def history(self, event: str) -> list[dict[str, Any]]:
        """What the handlers noted so far."""
        text = self._history.read_text() if self._history.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if line["event"] == event]

    def numbers(self, event: str) -> list[int]:
        """The jobs about which that was noted, by number, in order."""
        return sorted(line["n"] for line in self.history(event))

    def end(self) -> None:
        """Leave no process behind."""
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait(PATIENCE)


@pytest.fixture
def cli(url: str, queue: SqlQueue) -> Cli:
    """The command line in this process, in the schema of `queue`."""
    return Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": queue.database.schema})


@pytest.fixture
def spec() -> QueueSpec[Work]:
    """One bucket, so that a claim takes all there is."""
    return QueueSpec("work", Work, bucket_count=1)


@pytest.fixture
def shop(queue: SqlQueue, url: str, tmp_path: Path) -> Iterator[Shop]:
    """Workers on the schema of the test."""
    made = Shop(queue, url, tmp_path)
    yield made
    made.go.touch()
    made.end()
