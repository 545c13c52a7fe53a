"""A sensor's tick as the daemon has it evaluated, with a million jobs queued in 64 buckets; and what it reads."""

import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from benchmarks.harness import Bench, Event, Figure, event, note
from dagster_sqlqueue import Job, NewJob, QueueSpec
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_sensor, queue_consumer

COMMAND = "python -m benchmarks sensor_tick"
_CAP = 1_000
_TICKS = QueueSpec("bench_ticks", Event, bucket_count=64)


def measure(bench: Bench) -> list[Figure]:
    """The figures of a tick."""
    jobs = 100_000 if bench.quick else 1_000_000
    note(f"sensor tick: queuing {jobs:,} jobs in 64 buckets, a quarter for later, priorities 0, 1, 5 and 9")
    bench.empty()
    bench.queue.create_queue(_TICKS)
    bench.queue.enqueue_many(_TICKS, _jobs(jobs))
    bench.settle()
    depth = bench.queue.depth(_TICKS.name, cap=_CAP)
    assert (depth.ready, depth.scheduled) == (_CAP, _CAP), depth
    assert len({head.bucket for head in bench.queue.peek_heads(_TICKS.name)}) == _TICKS.bucket_count

    def look() -> float:
        began = time.perf_counter()
        bench.queue.peek_heads(_TICKS.name)
        bench.queue.depth(_TICKS.name, cap=_CAP)
        return 1_000 * (time.perf_counter() - began)

    for _ in range(20):
        look()
    looks = [look() for _ in range(100 if bench.quick else 500)]
    ticks = _ticks(bench, 10 if bench.quick else 100)
    first = _ticks(bench, 10 if bench.quick else 100, alone=True)
    bench.empty()
    return [
        Figure(f"what a tick reads, 64 buckets, {jobs:,} jobs", "ms", looks, COMMAND, 10, at_most=True),
        Figure("the whole tick, runs at work", "ms", ticks, COMMAND, 50, at_most=True),
        Figure("the whole tick, asking for four runs", "ms", first, COMMAND),
    ]


def _ticks(bench: Bench, count: int, *, alone: bool = False) -> list[float]:
    """Milliseconds of whole ticks: opening the resource, looking, asking Dagster for the runs, reserving runs where there
    are none, reporting, closing. With `alone` there are none at each of them.
    """

    @queue_consumer(_TICKS)
    def handle(job: Job[Event]) -> None: ...

    sensor = build_sqlqueue_sensor(handle)
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
                    result = sensor.evaluate_tick(context)
                found.append(1_000 * (time.perf_counter() - began))
                cursor = result.cursor
                for request in result.run_requests or []:
                    instance.create_run_for_job(
                        handle.job,
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
