"""Producers and consumers in processes, of one version or another, and what they said."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE


class Process:
    """One of them."""

    def __init__(self, *arguments: str) -> None:
        self._files = [Path(tempfile.mkstemp()[1]) for _ in range(2)]
        with self._files[0].open("w") as out, self._files[1].open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.upgrade.process", *arguments],
                stdout=out,
                stderr=err,
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
            )

    def said(self, what: str) -> list[tuple[str, str]]:
        """The jobs of which it said that, each with the last word about it."""
        text = self._files[0].read_text()
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(line[1], line[2]) for line in lines if line[0] == what]

    @property
    def errors(self) -> str:
        """Its standard error."""
        return self._files[1].read_text()

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(PATIENCE)

    def stopped(self) -> int:
        """Stop it; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def gone(self) -> None:
        """Leave nothing of it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        for file in self._files:
            file.unlink(missing_ok=True)


class Crowd:
    """All of them on one schema."""

    def __init__(self, url: str, schema: str) -> None:
        self._where = (url, schema)
        self.all: list[Process] = []

    def start(self, role: str, version: int) -> Process:
        """One more."""
        process = Process(role, str(version), *self._where)
        self.all.append(process)
        return process

    def said(self, what: str) -> list[tuple[str, str]]:
        """What all of them said, one after the other; fails if one of them died of an error that nobody expected."""
        assert not (died := [process.errors for process in self.all if process.process.poll() == 1]), died
        return [line for process in self.all for line in process.said(what)]

    def kill(self) -> None:
        """Leave none."""
        for process in self.all:
            process.gone()
