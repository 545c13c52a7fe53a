"""A real daemon, and a run that is killed over its jobs: how long they wait after the lease."""

import os
import signal
import tempfile
from pathlib import Path

from benchmarks.dagster_runs import daemon, until
from benchmarks.harness import Bench, Figure, event, note
from benchmarks.location import KILLED, PID_FILE

COMMAND = "python -m benchmarks dagster_kills"
_JOBS = 20


def measure(bench: Bench) -> list[Figure]:
    """The figures of kills."""
    rounds = 1 if bench.quick else 3
    lease = KILLED.lease_seconds
    note(f"dagster kills: {rounds} times {_JOBS} jobs under a lease of {lease:.0f} s, whose run is killed")
    bench.queue.create_queue(KILLED)
    with tempfile.TemporaryDirectory(prefix="sqlqueue-bench-") as home:
        pid_file = Path(home) / "pid"
        with daemon(bench, Path(home), {PID_FILE: str(pid_file)}):
            waits = [_wait(bench, pid_file) for _ in range(rounds)]
    return [Figure("jobs of a killed run, from the lease's end to the handler", "s", waits, COMMAND, 10, at_most=True)]


def _wait(bench: Bench, pid_file: Path) -> float:
    """Seconds from the end of the leases of a run that was killed to the first line of the handler of the last job."""
    bench.queue.enqueue_many(KILLED, (event(number) for number in range(_JOBS)))
    until(pid_file.exists)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    ((ends,),) = bench.execute(
        f"SELECT max(extract(epoch FROM available_at))::float8 FROM {{s}}.job WHERE queue = '{KILLED.name}'"
    )
    until(lambda: not bench.queue.depth(KILLED.name).live, KILLED.lease_seconds + 120)
    pid_file.unlink()
    called = f"SELECT max((result->>'called_at')::float8) FROM {{s}}.job_archive WHERE queue = '{KILLED.name}'"
    ((last,),) = bench.execute(called)
    return float(last - ends)
