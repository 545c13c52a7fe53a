"""A sensor's tick with a million jobs queued in 64 buckets: in a real daemon, in this process, and what it reads."""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from sqlalchemy.engine import make_url

from benchmarks.dagster_runs import daemon, until
from benchmarks.harness import Bench, Event, Figure, event, note
from benchmarks.location import TICKS, nothing, tick
from dagster_sqlqueue import NewJob
from dagster_sqlqueue.orchestration import SensorSettings, SqlQueueResource, slots
from dagster_sqlqueue.orchestration.slot_runs import TOKEN_TAG

COMMAND = "python -m benchmarks sensor_tick"
_CAP = 1_000
_FIRST = 3
"""Ticks that load code, and connect."""


def measure(bench: Bench) -> list[Figure]:
    """The figures of a tick."""
    jobs = 100_000 if bench.quick else 1_000_000
    note(f"sensor tick: queuing {jobs:,} jobs in 64 buckets, a quarter for later, priorities 0, 1, 5 and 9")
    bench.empty()
    bench.queue.create_queue(TICKS)
    bench.queue.enqueue_many(TICKS, _jobs(jobs))
    bench.settle()
    depth = bench.queue.depth(TICKS.name, cap=_CAP)
    assert (depth.ready, depth.scheduled) == (_CAP, _CAP), depth
    assert len({head.bucket for head in bench.queue.peek_heads(TICKS.name)}) == TICKS.bucket_count

    def read() -> float:
        began = time.perf_counter()
        bench.queue.peek_heads(TICKS.name)
        bench.queue.depth(TICKS.name, cap=_CAP)
        return 1_000 * (time.perf_counter() - began)

    for _ in range(20):
        read()
    reads = [read() for _ in range(100 if bench.quick else 500)]
    ticks = _ticks(bench, 10 if bench.quick else 100)
    first = _ticks(bench, 10 if bench.quick else 100, alone=True)
    count = 3 if bench.quick else 30
    note(f"sensor tick: {count} ticks in a real daemon, one every five seconds, for each storage of Dagster")
    in_files, idle_in_files = _ticks_of_a_daemon(bench, count, None)
    with _database(bench) as url:
        in_database, idle_in_database = _ticks_of_a_daemon(bench, count, url)
    bench.empty()
    return [
        Figure(f"what a tick reads, 64 buckets, {jobs:,} jobs", "ms", reads, COMMAND, 8, at_most=True, aim=5),
        _in_daemon("the whole tick in a real daemon, PostgreSQL, runs at work", in_database),
        Figure("  a sensor that does nothing, in the same daemon", "ms", idle_in_database, COMMAND),
        _in_daemon("the whole tick in a real daemon, SQLite, runs at work", in_files),
        Figure("  a sensor that does nothing, in the same daemon", "ms", idle_in_files, COMMAND),
        Figure("the whole tick in this process, runs at work", "ms", ticks, COMMAND, 50, at_most=True),
        Figure("the whole tick in this process, asking for four runs", "ms", first, COMMAND),
    ]


def _in_daemon(name: str, ticks: list[float]) -> Figure:
    # Most of it is Dagster's: see the sensor that does nothing.
    return Figure(name, "ms", ticks, COMMAND, 300, at_most=True, aim=50)


@contextmanager
def _database(bench: Bench) -> Iterator[str]:
    """The URL of an empty database for Dagster's storage, on the queue's server."""
    name = f"dagster_bench_{os.getpid()}"
    bench.execute(f"CREATE DATABASE {name}")
    try:
        yield (
            make_url(bench.url)
            .set(drivername="postgresql+psycopg2", database=name)
            .render_as_string(hide_password=False)
        )
    finally:
        bench.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _ticks_of_a_daemon(bench: Bench, count: int, storage: str | None) -> tuple[list[float], list[float]]:
    """Milliseconds from the beginning of each tick to its end, as the daemon recorded them: its own reads and writes of
    Dagster's storage, and the call of the code server, included. Of the queue's sensor, and of one that does nothing, for
    which the code server opens the storages each time.
    """
    bench.execute("TRUNCATE {s}.consumer_slot")
    with (
        tempfile.TemporaryDirectory(prefix="sqlqueue-bench-") as home,
        daemon(bench, Path(home), [TICKS], storage=storage) as instance,
    ):
        for number in range(SensorSettings().max_runs):
            buckets = range(number, TICKS.bucket_count, SensorSettings().max_runs)
            slot = slots.acquire(
                bench.queue, TICKS.name, number, buckets, seconds=86_400, sensor=tick.sensor.name, due=[]
            )
            assert slot is not None
            instance.create_run_for_job(tick.job, tags={TOKEN_TAG: str(slot.token)}, status=dg.DagsterRunStatus.STARTED)

        def ended(sensor: dg.SensorDefinition) -> list[float]:
            found = [
                one
                for state in instance.all_instigator_state()
                if state.instigator_name == sensor.name
                for one in instance.get_ticks(state.instigator_origin_id, state.selector_id)
            ]
            assert not [one for one in found if one.status.value == "FAILURE"], found
            return [1_000 * (one.end_timestamp - one.timestamp) for one in reversed(found) if one.end_timestamp]

        both = (tick.sensor, nothing)
        until(lambda: all(len(ended(sensor)) >= _FIRST + count for sensor in both), 60 + 10 * count)
        queued, idle = ([*itertools.islice(ended(sensor), _FIRST, None)] for sensor in both)
        return queued, idle


def _ticks(bench: Bench, count: int, *, alone: bool = False) -> list[float]:
    """Milliseconds of whole ticks: opening the resource, reading, asking Dagster for the runs, reserving runs where there
    are none, reporting, closing. With `alone` there are none at each of them.
    """
    resource = SqlQueueResource(url=bench.url, schema_name=bench.queue.database.schema)
    cursor: str | None = None
    found = []
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        with dg.DagsterInstance.from_config(home) as instance:
            for _ in range(count + 5):
                if alone:
                    bench.execute("TRUNCATE {s}.consumer_slot")
                    bench.execute("UPDATE {s}.bucket SET starts = 0")
                began = time.perf_counter()
                with dg.build_sensor_context(
                    instance=instance, cursor=cursor, resources={"sqlqueue": resource}
                ) as context:
                    result = tick.sensor.evaluate_tick(context)
                found.append(1_000 * (time.perf_counter() - began))
                cursor = result.cursor
                for request in result.run_requests or []:
                    instance.create_run_for_job(
                        tick.job,
                        run_config=request.run_config,
                        tags=dict(request.tags),
                        status=dg.DagsterRunStatus.STARTED,
                    )
    return found[5:]


def _jobs(jobs: int) -> Iterator[NewJob[Event]]:
    later = datetime.now(UTC) + timedelta(days=1)
    for number in range(jobs):
        scheduled = later + timedelta(seconds=number) if number % 4 == 0 else None
        yield NewJob(event(number), run_at=scheduled, priority=(0, 1, 5, 9)[number // 4 % 4])
