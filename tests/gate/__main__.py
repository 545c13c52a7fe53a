"""Run the tests as `make test` and `make prove` do: all of them at once, then each that failed once more, alone.

Usage: python -m tests.gate [--title WORDS] [pytest's arguments]

A test that passes alone is *unsteady*: it is named at the end with its first failure in full, and more than five of them are
red. A verdict of a judge of histories (lost, ended twice, a stale write accepted, a limit or order broken) is red at once.
A run that takes too long, or is sent SIGTERM, is ended: the stacks of all its processes are printed, and which test each was
in.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gate import servers
from tests.gate.servers import DIRECTORY

WORKERS = "3"
"""Processes on two cores: much of a test is waiting."""

MOST_UNSTEADY = 5
MOST_TRIED_AGAIN = 25
"""With more failures than this, something is broken, and trying them again alone would only take long."""

RUN_SECONDS = float(os.environ.get("SQLQUEUE_TEST_RUN_SECONDS", "3600"))
"""How long one run may take before it is ended."""

_TESTS_FAILED = 1
_ENDED = -signal.SIGKILL


class Terminated(Exception):
    """SIGTERM came, from one with less patience than this, such as `timeout` or a CI."""


@dataclass
class Run:
    """One run of pytest: its exit code, and what became of each test."""

    code: int
    seconds: float
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, outcome: str) -> dict[str, dict[str, Any]]:
        return {name: test for name, test in self.tests.items() if test["outcome"] == outcome}


def run(arguments: list[str]) -> Run:
    """Run pytest in processes of its own; one that takes too long, or is terminated, is ended and says where it was."""
    with tempfile.TemporaryDirectory(prefix="sqlqueue-gate-", ignore_cleanup_errors=True) as directory:
        # A place of its own: whenever pytest starts it closes the usual one to others, and so to the embedded server.
        Path(directory).chmod(0o711)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", f"--basetemp={directory}/tmp", *arguments],
            env=_environment(directory),
            process_group=0,
        )
        try:
            code = process.wait(RUN_SECONDS)
        except (subprocess.TimeoutExpired, Terminated) as ended:
            why = "by SIGTERM" if isinstance(ended, Terminated) else f"after {RUN_SECONDS:.0f} s, which no run may take"
            print(f"\nENDED {why}. The stacks of its processes:", flush=True)
            _show_stacks(Path(directory), process.pid)
            code = _ENDED
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            code = process.wait()
        finally:
            _end_group(process)
            servers.end_all(Path(directory))
        reports = Path(directory) / "reports.json"
        tests = json.loads(reports.read_text()) if reports.exists() else {}
        return Run(code, time.monotonic() - began, tests)


def _environment(directory: str) -> dict[str, str]:
    """Without the database of whoever runs the tests. And with bytecode written, even where the machine says otherwise:
    hundreds of processes begin with the same imports.
    """
    left_out = {"PYTHONDONTWRITEBYTECODE", "SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"}
    return {**{name: value for name, value in os.environ.items() if name not in left_out}, DIRECTORY: directory}


def _show_stacks(directory: Path, controller: int) -> None:
    for file in sorted(directory.glob("*.test")):
        with contextlib.suppress(FileNotFoundError):  # that test has ended meanwhile
            pid, name = file.read_text().split(" ", 1)
            print(f"\nprocess {pid} was in {name}", file=sys.stderr, flush=True)
            _ask_for_stacks(int(pid))
    print(f"\nprocess {controller} collects the reports", file=sys.stderr, flush=True)
    _ask_for_stacks(controller)


def _ask_for_stacks(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        print("it is gone", file=sys.stderr, flush=True)
    time.sleep(1)  # it writes them by itself, and says nothing when it is done


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End what a run has left behind: a test process that ended itself had no time to end its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _part(name: str) -> str:
    parts = Path(name.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else parts[0]


def show_times(runs: list[Run]) -> None:
    """Print how long each part took, and the ten slowest tests."""
    parts: defaultdict[str, list[float]] = defaultdict(list)
    tests = [(test["seconds"], name) for run in runs for name, test in run.tests.items()]
    for seconds, name in tests:
        parts[_part(name)].append(seconds)
    print(f"\n{'part':<16}{'tests':>8}{'seconds':>10}   (of all processes)")
    for part, times in sorted(parts.items(), key=lambda found: -sum(found[1])):
        print(f"{part:<16}{len(times):>8}{sum(times):>10.1f}")
    print("\nthe ten slowest tests")
    for seconds, name in sorted(tests, reverse=True)[:10]:
        print(f"{seconds:>8.1f} s  {name}")


def show_figures(run: Run) -> None:
    """Print what tests noted of themselves."""
    noted = {name: test["figures"] for name, test in run.tests.items() if test["figures"]}
    if noted:
        print("\nfigures")
        for name, figures in sorted(noted.items()):
            print(f"  {name}")
            print("    " + ", ".join(f"{figure} {value}" for figure, value in figures.items()))


def show_skipped(run: Run) -> None:
    """Print what was not run, and why."""
    reasons: defaultdict[str, int] = defaultdict(int)
    for test in run.of("skipped").values():
        reasons[test["failure"]] += 1
    for reason, count in sorted(reasons.items()):
        print(f"\nskipped, {count} tests: {reason}")


def _terminate(*_: object) -> None:
    # A second one would interrupt the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def main() -> int:
    """Run, try again what failed, and say what came of it; returns the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    parser = argparse.ArgumentParser(prog="python -m tests.gate", add_help=False)
    parser.add_argument("--title", default="tests")
    ours, arguments = parser.parse_known_args()
    seed = random.SystemRandom().randrange(2**31)
    spread = ["-n", WORKERS, "--dist", "worksteal", "--max-worker-restart", str(MOST_UNSTEADY + 1)]
    first = run([*spread, f"--randomly-seed={seed}", *arguments])
    return conclude(ours.title, seed, first)


def try_alone(names: list[str]) -> Run:
    """Run each of these tests in a process that runs nothing else."""
    runs: list[Run] = []
    for name in names:
        runs.append(run(["-n", "0", "-p", "no:randomly", "-q", "--no-header", "--no-summary", name]))
        if runs[-1].code == _ENDED:
            break
    tests = {name: test for done in runs for name, test in done.tests.items()}
    return Run(max((done.code for done in runs), default=0), sum(done.seconds for done in runs), tests)


def conclude(title: str, seed: int, first: Run) -> int:
    """Try again what failed, and print the closing table."""
    failed = first.of("failed")
    judged = {name: test for name, test in failed.items() if test["verdict"]}
    chances = [name for name in failed if name not in judged]
    again = Run(0, 0.0)
    if 0 < len(chances) <= MOST_TRIED_AGAIN:
        print(f"\nOnce more, each alone: {len(chances)} tests that failed.", flush=True)
        again = try_alone(chances)
    unsteady = [name for name in chances if again.tests.get(name, {}).get("outcome") == "passed"]
    broken = [name for name in failed if name not in unsteady]

    print(f"\n{'=' * 20} {title} {'=' * 20}")
    show_figures(first)
    show_times([first])
    show_skipped(first)
    for name in unsteady:
        print(f"\nUNSTEADY: {name} failed, and passed alone. Its failure:\n{failed[name]['failure']}")
    for name, test in judged.items():
        print(f"\nVERDICT, not tried again: {name}")
        print("\n".join(f"  {found}" for found in test["verdict"]))
    for name in broken:
        print(f"\nFAILED: {name}")
    if unsteady:
        print(f"\n{len(unsteady)} unsteady, where at most {MOST_UNSTEADY} may be")
    skipped = len(first.of("skipped"))
    passed = len(first.tests) - skipped - len(broken)
    print(f"\nseed {seed}; {first.seconds / 60:.1f} min, and {again.seconds / 60:.1f} min for what was tried again")
    print(f"{passed} passed, {len(broken)} failed, {skipped} skipped")
    # Whatever pytest failed of must have a name here.
    ended_well = first.tests and (first.code == 0 or (first.code == _TESTS_FAILED and failed))
    if not ended_well:
        print(f"RED: the run itself ended with {first.code}")
    return 0 if ended_well and not broken and len(unsteady) <= MOST_UNSTEADY else 1


if __name__ == "__main__":
    sys.exit(main())
