"""Profile: where the CPU of a drain and of a bulk enqueue goes: Python or server, and the five largest costs in Python.

py-spy samples the process that works, while it holds the interpreter's lock; a function's cost is the share of samples in
which it was running itself, and C code counts for the function that calls it.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.cpu import server_seconds
from benchmarks.harness import Bench, Figure, note
from benchmarks.loading import load

COMMAND = "python -m benchmarks profile"
_HZ = 250
_LARGEST = 5
# One frame of py-spy's: function (file:line).
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>.+?)(?::\d+)?\)$")
_IMPORTING = "<frozen importlib"


def measure(bench: Bench) -> list[Figure]:
    """The figures of both."""
    jobs = 20_000 if bench.quick else 200_000
    figures = []
    for what in ("drain", "enqueue"):
        note(f"profile: {what} of {jobs:,} jobs, sampled {_HZ} times a second")
        bench.empty()
        if what == "drain":
            load(bench, jobs)
        figures += _profiled(bench, what, jobs)
    bench.empty()
    return figures


def _profiled(bench: Bench, what: str, jobs: int) -> list[Figure]:
    before = server_seconds(bench)
    with tempfile.TemporaryDirectory(prefix="sqlqueue-profile-") as directory:
        stacks = Path(directory) / "stacks"
        command = [_py_spy(), "record", "--gil", "--rate", str(_HZ), "--format", "raw", "--output", str(stacks), "--"]
        command += [sys.executable, "-m", "benchmarks.profiled", what, str(jobs)]
        done = subprocess.run(
            command,
            env={**os.environ, "BENCH_URL": bench.url, "BENCH_SCHEMA": bench.queue.database.schema},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"py-spy, which needs the right to look into a process, failed: {done.stderr[-500:]}")
        # py-spy talks as well.
        (answer,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
        mine: dict[str, Any] = json.loads(answer)
        costs, samples = _costs(stacks)
    server = server_seconds(bench) - before
    figures = [
        Figure(f"{what}: CPU in Python", "µs/job", [1e6 * mine["cpu"] / jobs], COMMAND),
        Figure(f"{what}: CPU of the server", "µs/job", [1e6 * server / jobs], COMMAND),
    ]
    for place, count in costs.most_common(_LARGEST):
        figures.append(Figure(f"{what}: {place}", "% of Python's", [100 * count / samples], COMMAND))
    return figures


def _costs(stacks: Path) -> tuple[Counter[str], int]:
    """Samples of each function in which it ran itself, and of all; imports are left out."""
    costs: Counter[str] = Counter()
    samples = 0
    for line in stacks.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        if _IMPORTING in stack or not stack:
            continue
        samples += int(count)
        costs[_place(stack.split(";")[-1])] += int(count)
    return costs, max(1, samples)


def _place(frame: str) -> str:
    found = _FRAME.match(frame)
    if not found:
        return frame
    path = found["file"].split("site-packages/")[-1]
    return f"{found['function']} ({'/'.join(Path(path).parts[-2:])})"


def _py_spy() -> str:
    return str(Path(sys.executable).parent / "py-spy")
