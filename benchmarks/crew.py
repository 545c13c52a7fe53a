"""Processes that drain one queue together, all by the same loop: take a batch, end it, until nothing is left.

They are started once and then sent what to drain, so that no round pays for a start.
"""

import multiprocessing
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.leased_loop import Place, leased
from dagster_sqlqueue import SqlQueue

_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Drained:
    """What a crew did together."""

    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds


class Crew:
    """So many processes, connected and waiting: see `crew`."""

    def __init__(self, ends: "list[Connection[Any, Any]]") -> None:
        self._ends = ends

    def drain(self, jobs: int, **options: Any) -> Drained:
        """Have all of them drain at the same time, until each finds nothing more.

        Args:
            jobs: how many there are; another number is an error.
            options: of the loop.
        """
        self._send(options)
        self._hear()
        self._send("go")
        parts = self._hear()
        done = Drained(sum(part[2] for part in parts), max(part[1] for part in parts) - min(part[0] for part in parts))
        assert done.jobs == jobs, f"{done.jobs} jobs of {jobs} were drained"
        return done

    def _send(self, what: object) -> None:
        for end in self._ends:
            end.send(what)

    def _hear(self) -> list[Any]:
        answers = []
        for end in self._ends:
            if not end.poll(_LONGEST_SECONDS):
                raise RuntimeError(f"a draining process said nothing for {_LONGEST_SECONDS:.0f} s")
            answer = end.recv()
            if isinstance(answer, str):
                raise RuntimeError(f"a draining process failed: {answer}")
            answers.append(answer)
        return answers


@contextmanager
def crew(size: int, url: str, schema: str) -> Iterator[Crew]:
    """So many processes that drain together, ended with the block."""
    start = multiprocessing.get_context("spawn")
    ends: list[Connection[Any, Any]] = []
    processes = []
    try:
        for number in range(size):
            ours, theirs = start.Pipe()
            process = start.Process(target=_work, args=(theirs, url, schema, number, size), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(ours)
        yield Crew(ends)
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join(10)
            process.kill()


def _work(orders: "Connection[Any, Any]", url: str, schema: str, number: int, size: int) -> None:
    with SqlQueue(url, schema=schema) as queue:
        place = Place(queue, number, size)
        try:
            while True:
                options = orders.recv()
                take = leased(place, **options)
                orders.send(None)
                orders.recv()
                began = time.monotonic()
                jobs = 0
                while taken := take():
                    jobs += taken
                orders.send((began, time.monotonic(), jobs))
        except (EOFError, KeyboardInterrupt):
            return
        except Exception:
            orders.send(traceback.format_exc())
