"""A sensor's tick: the heads of all buckets and a capped depth, with a million jobs queued."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from benchmarks.harness import SPEC, Bench, Event, Figure, event, note
from dagster_sqlqueue import NewJob

COMMAND = "python -m benchmarks sensor_tick"
_CAP = 1_000


def measure(bench: Bench) -> list[Figure]:
    """The figures of a tick."""
    jobs = 100_000 if bench.quick else 1_000_000
    note(f"sensor tick: queuing {jobs:,} jobs, a quarter for later, priorities 0, 1, 5 and 9")
    bench.empty()
    bench.queue.enqueue_many(SPEC, _jobs(jobs))
    bench.settle()
    depth = bench.queue.depth(SPEC.name, cap=_CAP)
    assert (depth.ready, depth.scheduled) == (_CAP, _CAP), depth
    assert len({head.bucket for head in bench.queue.peek_heads(SPEC.name)}) == SPEC.bucket_count

    def tick() -> float:
        began = time.perf_counter()
        bench.queue.peek_heads(SPEC.name)
        bench.queue.depth(SPEC.name, cap=_CAP)
        return 1_000 * (time.perf_counter() - began)

    for _ in range(20):
        tick()
    ticks = [tick() for _ in range(100 if bench.quick else 500)]
    bench.empty()
    return [Figure(f"sensor tick, {SPEC.bucket_count} buckets, {jobs:,} jobs", "ms", ticks, COMMAND, 10, at_most=True)]


def _jobs(jobs: int) -> Iterator[NewJob[Event]]:
    later = datetime.now(UTC) + timedelta(days=1)
    for number in range(jobs):
        scheduled = later + timedelta(seconds=number) if number % 4 == 0 else None
        yield NewJob(event(number), run_at=scheduled, priority=(0, 1, 5, 9)[number // 4 % 4])
