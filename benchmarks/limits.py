"""Limits and strategies: what each costs, drained beside the unlimited round robin queue, in turns.

No limit binds: what is measured is the price of making sure. The keyed queues have 1,000 ordering keys; in the ordered
one the jobs of a key really wait for each other.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.crew import Crew, crew
from benchmarks.harness import SPEC, Bench, Event, Figure, note, rounds
from benchmarks.loading import load
from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.model.queue import RateLimit, Strategy

COMMAND = "python -m benchmarks limits"
_PROCESSES = 2
_KEYS = 1_000
# What each is called, its settings, and whether its share is held to anything.
_QUEUES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bench_running": ("max_running 10,000", {"max_running": 10_000}, True),
    "bench_rate": ("rate 1,000,000 a second", {"rate": RateLimit(1_000_000, 1.0)}, True),
    "bench_both": ("both", {"max_running": 10_000, "rate": RateLimit(1_000_000, 1.0)}, True),
    "bench_keyed": ("max_running_per_key 100, 1,000 keys", {"max_running_per_key": 100}, False),
    "bench_ordered": ("ordered, 1,000 keys", {"ordered": True}, False),
    "bench_fanout": ("strategy fanout", {"strategy": Strategy.FANOUT}, False),
    "bench_fifo": ("strategy fifo", {"strategy": Strategy.FIFO}, False),
    "bench_assign": ("strategy assign", {"strategy": Strategy.ASSIGN}, False),
    "bench_token": ("strategy token", {"strategy": Strategy.TOKEN}, False),
}


def measure(bench: Bench) -> list[Figure]:
    """The figures of limits and strategies: jobs a second, and the share of the unlimited round robin's."""
    jobs = 6_000 if bench.quick else 60_000
    for name, (_, settings, _) in _QUEUES.items():
        bench.queue.create_queue(QueueSpec(name, Event, bucket_count=SPEC.bucket_count, **settings))
    with crew(_PROCESSES, bench.url, bench.queue.database.schema) as workers:
        note(f"limits: rounds of {jobs:,} jobs for each of {1 + len(_QUEUES)} queues, {_PROCESSES} processes, in turns")
        names = [SPEC.name, *_QUEUES]
        plain, *others = rounds(2 if bench.quick else 5, *(_drain(bench, workers, name, jobs) for name in names))
        bench.empty()
    figures = [Figure("drain, no limit, round robin", "jobs/s", plain, COMMAND)]
    for (label, _, held), rates in zip(_QUEUES.values(), others, strict=True):
        shares = [100 * a / b for a, b in zip(rates, plain, strict=True)]
        figures += [
            Figure(f"  {label}", "jobs/s", rates, COMMAND),
            Figure("    share of no limit", "%", shares, COMMAND, 70 if held else None, aim=85 if held else None),
        ]
    return figures


def _drain(bench: Bench, workers: Crew, name: str, jobs: int) -> Callable[[], float]:
    keys = _KEYS if name in ("bench_keyed", "bench_ordered") else 0

    def drain() -> float:
        bench.empty()
        load(bench, jobs, queue=name, keys=keys)
        bench.settle()
        return workers.drain(jobs, name=name).rate

    return drain
