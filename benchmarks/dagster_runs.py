"""A real daemon: how long a single job waits for its handler in each mode, what a run works off in its life, and how many
runs there are of idle queues and of one with a trickle of jobs.
"""

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from benchmarks.harness import Bench, Event, Figure, event, note
from benchmarks.location import CONSUMERS, LINGER_SECONDS, QUEUES, SCHEMA, TRICKLE, spec_of, trickle
from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.orchestration import DrainMode
from dagster_sqlqueue.orchestration.drain import PACES

COMMAND = "python -m benchmarks dagster_runs"
_PATIENCE_SECONDS = 120.0
_PROJECT = Path(__file__).resolve().parent.parent
_INSTANCE = """
run_coordinator:
  module: dagster._core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1, dequeue_use_threads: true, dequeue_num_workers: 2}
sensors: {use_threads: true, num_workers: 4, num_submit_workers: 2}
telemetry: {enabled: false}
"""
_STORAGE = "DAGSTER_STORAGE_URL"
_POSTGRES = """
storage:
  postgres:
    postgres_url: {{env: {name}}}
"""


def measure(bench: Bench) -> list[Figure]:
    """The figures of runs."""
    warm, cold, jobs, idle_seconds, drops = (20, 2, 5_000, 20, 1) if bench.quick else (200, 5, 50_000, 120, 5)
    with (
        tempfile.TemporaryDirectory(prefix="sqlqueue-bench-") as home,
        daemon(bench, Path(home), [*map(spec_of, DrainMode), TRICKLE]) as instance,
    ):
        note(f"dagster runs: {cold} jobs for idle batch and linger consumers, {warm} for live ones, one by one")
        idle = [_pick_up(bench, DrainMode.BATCH, settle=True) for _ in range(cold + 1)][1:]
        first = [_pick_up(bench, DrainMode.LINGER, settle=True) for _ in range(cold + 1)][1:]
        _pick_up(bench, DrainMode.LINGER)
        lingering = [_pick_up(bench, DrainMode.LINGER) for _ in range(warm)]
        _pick_up(bench, DrainMode.STANDING)
        standing = [_pick_up(bench, DrainMode.STANDING) for _ in range(warm)]
        note(f"dagster runs: {jobs:,} jobs for one run")
        _wait_for_idle(bench, DrainMode.BATCH)
        bench.queue.enqueue_many(spec_of(DrainMode.BATCH), (event(number) for number in range(jobs)))
        until(lambda: not bench.queue.depth(spec_of(DrainMode.BATCH).name).live)
        _wait_for_idle(bench, DrainMode.BATCH)
        _wait_for_idle(bench, DrainMode.LINGER)
        note(f"dagster runs: nothing to do for {idle_seconds} s, then {drops + 1} jobs, each when a run has ended")
        idle_runs = _idle_runs(instance, idle_seconds)
        trickled = _trickle(bench, instance, drops)
        rate, share = _life(instance, jobs)
    return [
        *_figures("pick-up by an idle batch consumer", idle),
        *_figures("pick-up by an idle linger consumer", first),
        *_figures("pick-up by a lingering run", lingering, floor=30),
        *_figures("pick-up by a standing run", standing, floor=20, last_floor=60),
        Figure("runs requested for idle queues", "runs", [idle_runs], COMMAND, 0, at_most=True),
        Figure("runs for a trickle, every default, at its worst pace", "runs/min", trickled, COMMAND, 1, at_most=True),
        Figure(f"jobs per run-second, {jobs:,} jobs, one run", "jobs/s", [rate], COMMAND),
        Figure("  of which the op takes", "%", [share], COMMAND),
    ]


def _figures(
    name: str, latencies: list[float], floor: float | None = None, last_floor: float | None = None
) -> list[Figure]:
    last = statistics.quantiles(latencies, n=100, method="inclusive")[98]
    return [
        Figure(f"{name}, p50", "ms", latencies, COMMAND, floor, at_most=True),
        Figure("  p99", "ms", [last], COMMAND, last_floor, at_most=True),
    ]


def _idle_runs(instance: dg.DagsterInstance, seconds: float) -> int:
    """How many runs come in that time for the batch and the linger consumer."""
    began = datetime.now(UTC)
    time.sleep(seconds)
    names = [CONSUMERS[mode].job.name for mode in (DrainMode.BATCH, DrainMode.LINGER)]
    return sum(instance.get_runs_count(dg.RunsFilter(job_name=name, created_after=began)) for name in names)


def _trickle(bench: Bench, instance: dg.DagsterInstance, drops: int) -> list[float]:
    """Runs a minute, from each run to the next, while a job comes as soon as the run of the one before has ended."""
    for _ in range(drops + 1):
        bench.queue.enqueue(TRICKLE, event(1))
        until(lambda: not bench.queue.depth(TRICKLE.name).live)
        until(lambda: not _taken(bench, TRICKLE.name), PACES[DrainMode.LINGER].linger_seconds + _PATIENCE_SECONDS)
    records = instance.get_run_records(dg.RunsFilter(job_name=trickle.job.name), ascending=True)
    made = [record.create_timestamp.timestamp() for record in records]
    return [60 / (later - earlier) for earlier, later in itertools.pairwise(made)]


def _pick_up(bench: Bench, mode: DrainMode, *, settle: bool = False) -> float:
    """Milliseconds from the commit of an enqueue to the first line of the handler."""
    if settle:
        _wait_for_idle(bench, mode)
        # A tick comes every five seconds: any moment of them is as likely.
        time.sleep(random.uniform(0, 5))
    else:
        time.sleep(random.uniform(0.02, 0.06))
    job = bench.queue.enqueue(spec_of(mode), event(1))
    committed = time.time()
    found: list[tuple[float]] = []

    def ended() -> bool:
        query = f"SELECT (result->>'called_at')::float8 FROM {{s}}.job_archive WHERE id = '{job}'"
        found.extend(bench.execute(query))  # type: ignore[arg-type]
        return bool(found)

    until(ended)
    return 1_000 * (found[0][0] - committed)


def _wait_for_idle(bench: Bench, mode: DrainMode) -> None:
    """Until no run has a slot of the queue."""
    until(lambda: not _taken(bench, spec_of(mode).name), LINGER_SECONDS + _PATIENCE_SECONDS)


def _taken(bench: Bench, queue: str) -> bool:
    """Whether a run has a slot of the queue."""
    return bool(bench.execute(f"SELECT 1 FROM {{s}}.consumer_slot WHERE queue = '{queue}' AND expires_at > now()"))


def until(holds: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait for something of the daemon's doing."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {seconds:.0f} s; is the daemon alive?")
        time.sleep(0.005)


@contextmanager
def daemon(
    bench: Bench,
    home: Path,
    specs: Sequence[QueueSpec[Event]],
    more: Mapping[str, str] | None = None,
    storage: str | None = None,
) -> Iterator[dg.DagsterInstance]:
    """A daemon with the code location of the benchmarks, the sensors of these queues, and more of an environment for it.

    Dagster's storage is in the database with this URL, or in files (SQLite).
    """
    for spec in specs:
        bench.queue.create_queue(spec)
    if storage:
        os.environ[_STORAGE] = storage
    (home / "dagster.yaml").write_text(_INSTANCE + (_POSTGRES.format(name=_STORAGE) if storage else ""))
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "SQLQUEUE_URL": bench.url,
        SCHEMA: bench.queue.database.schema,
        QUEUES: " ".join(spec.name for spec in specs),
        "PYTHONPATH": str(_PROJECT),
        **(more or {}),
    }
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-m", "benchmarks.location"]
    # Two processes that make the same SQLite files at once spoil them.
    with dg.DagsterInstance.from_config(str(home)) as instance, (home / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=_PROJECT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield instance
        except RuntimeError:
            note((home / "daemon.log").read_text()[-2_000:])
            raise
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(20)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


def _life(instance: dg.DagsterInstance, jobs: int) -> tuple[float, float]:
    """Of the run that worked most jobs off: jobs for each second of its life, from request to end, and the op's share."""
    consumer = CONSUMERS[DrainMode.BATCH]
    (record,) = instance.get_run_records(dg.RunsFilter(job_name=consumer.job.name), limit=1)
    run = record.dagster_run
    (stats,) = [one for one in instance.get_run_step_stats(run.run_id) if one.step_key == consumer.op.name]
    assert record.end_time is not None
    assert stats.start_time is not None
    assert stats.end_time is not None
    life = record.end_time - record.create_timestamp.timestamp()
    return jobs / life, 100 * (stats.end_time - stats.start_time) / life
