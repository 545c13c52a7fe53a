"""A real daemon, and what is killed before, at and after the start of a run: how long the jobs wait."""

import os
import signal
import tempfile
import time
from pathlib import Path

import dagster as dg

from benchmarks.dagster_runs import daemon, until
from benchmarks.harness import Bench, Figure, event, note
from benchmarks.location import KILLED, PID_FILE, killed
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.slot_runs import TOKEN_TAG, instance_id

COMMAND = "python -m benchmarks dagster_kills"
_JOBS = 20
_TWO_TICKS_SECONDS = 10.0


def measure(bench: Bench) -> list[Figure]:
    """The figures of kills."""
    rounds = 1 if bench.quick else 3
    lease = KILLED.lease_seconds
    note(f"dagster kills: {rounds} times {_JOBS} jobs under a lease of {lease:.0f} s, whose run is killed")
    with tempfile.TemporaryDirectory(prefix="sqlqueue-bench-") as home:
        pid_file = Path(home) / "pid"
        with daemon(bench, Path(home), [KILLED], {PID_FILE: str(pid_file)}) as instance:
            waits = [_wait(bench, pid_file) for _ in range(rounds)]
            note(f"dagster kills: {rounds} times a tick that dies with its run unrecorded, and a run that never starts")
            pid_file.touch()
            ticks = [_wait_for_slot(bench, instance) for _ in range(rounds)]
            starts = [_wait_for_slot(bench, instance, starting=True) for _ in range(rounds)]
    longest = max(*ticks, *starts, *(lease + wait for wait in waits))
    bound = lease + _TWO_TICKS_SECONDS
    return [
        Figure(
            "jobs of a killed run, from the lease's end to the handler",
            "s",
            waits,
            COMMAND,
            _TWO_TICKS_SECONDS,
            at_most=True,
        ),
        Figure("jobs whose tick died, from when they are due to the handler", "s", ticks, COMMAND),
        Figure("jobs whose run never starts, from when they are due to the handler", "s", starts, COMMAND),
        Figure(
            f"the longest wait of a due job, beside a lease of {lease:.0f} s and two ticks",
            "s",
            [longest],
            COMMAND,
            bound,
            at_most=True,
        ),
    ]


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
    return _last_call(bench) - float(ends)


def _wait_for_slot(bench: Bench, instance: dg.DagsterInstance, *, starting: bool = False) -> float:
    """Seconds from the enqueue of jobs to the first line of the handler of the last one, while a slot has all buckets: that
    of a tick that died before Dagster recorded its run, or of a run whose launcher died.
    """
    sensor = killed.sensor.name
    until(lambda: not slots.taken(bench.queue, KILLED.name, sensor=sensor))
    slot = slots.acquire(
        bench.queue,
        KILLED.name,
        0,
        range(KILLED.bucket_count),
        seconds=KILLED.lease_seconds,
        sensor=sensor,
        instance=instance_id(instance),
    )
    assert slot is not None
    if starting:
        tags = {TOKEN_TAG: str(slot.token)}
        instance.create_run_for_job(killed.job, tags=tags, status=dg.DagsterRunStatus.STARTING)
    bench.queue.enqueue_many(KILLED, (event(number) for number in range(_JOBS)))
    due = time.time()
    until(lambda: not bench.queue.depth(KILLED.name).live, KILLED.lease_seconds + 120)
    return _last_call(bench) - due


def _last_call(bench: Bench) -> float:
    called = f"SELECT max((result->>'called_at')::float8) FROM {{s}}.job_archive WHERE queue = '{KILLED.name}'"
    ((last,),) = bench.execute(called)
    return float(last)
