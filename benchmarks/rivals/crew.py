"""Processes of one contender, controlled by lines of JSON."""

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rivals.contenders import Contender
from benchmarks.rivals.node_packages import Packages

_PROJECT = Path(__file__).resolve().parents[2]
_LONGEST_SECONDS = 600.0


class Crew:
    """So many processes, started and waiting; see `crew`."""

    def __init__(self, contender: Contender, processes: "Sequence[subprocess.Popen[str]]") -> None:
        self._contender = contender
        self._processes = processes

    def first(self, order: str, **given: Any) -> dict[str, Any]:
        """Have the first one do something; gives its answer."""
        return self.one(0, order, **given)

    def one(self, number: int, order: str, **given: Any) -> dict[str, Any]:
        """Have one of them do something; gives its answer."""
        self._send(self._processes[number], order, given)
        return self._hear(self._processes[number])

    def all(self, order: str, **given: Any) -> list[dict[str, Any]]:
        """Have all of them do the same at the same time; gives their answers."""
        for process in self._processes:
            self._send(process, order, given)
        return [self._hear(process) for process in self._processes]

    def drain(self, jobs: int) -> float:
        """Have all of them drain; gives jobs a second, from the first's beginning to the last's end."""
        parts = self.all("drain")
        done = sum(part["jobs"] for part in parts)
        assert done == jobs, f"{self._contender.name}: {done} jobs of {jobs} were worked off"
        return jobs / (max(part["ended"] for part in parts) - min(part["began"] for part in parts))

    def _send(self, process: "subprocess.Popen[str]", order: str, given: dict[str, Any]) -> None:
        assert process.stdin
        process.stdin.write(json.dumps({"do": order, **given}) + "\n")
        process.stdin.flush()

    def _hear(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout
        if not select.select([process.stdout], [], [], _LONGEST_SECONDS)[0]:
            raise RuntimeError(f"{self._contender.name} said nothing for {_LONGEST_SECONDS:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._contender.name} ended with exit code {process.wait()}; its reason stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def crew(contender: Contender, url: str, size: int, packages: Packages) -> Iterator[Crew]:
    """So many processes of a contender, ended with the block."""
    # pg of Node takes no URL without a host, even where the socket's directory follows.
    given = url.replace("@/", "@localhost/") if contender.of_node else url
    with ExitStack() as stack:
        processes = []
        for _ in range(size):
            process = subprocess.Popen(
                contender.command(packages),
                env={**os.environ, "RIVAL_URL": given},
                cwd=_PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, process)
            processes.append(process)
        yield Crew(contender, processes)


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
