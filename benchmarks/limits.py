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
_QUEUES: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "bench_running": ("max_running 10,000", {"max_running": 10_000}, 85),
    "bench_rate": ("rate 1,000,000 a second", {"rate": RateLimit(1_000_000, 1.0)}, 85),
    "bench_both": ("both", {"max_running": 10_000, "rate": RateLimit(1_000_000, 1.0)}, 85),
    "bench_keyed": ("max_running_per_key 100, 1,000 keys", {"max_running_per_key": 100}, None),
    "bench_ordered": ("ordered, 1,000 keys", {"ordered": True}, None),
    "bench_fanout": ("strategy fanout", {"strategy": Strategy.FANOUT}, None),
    "bench_fifo": ("strategy fifo", {"strategy": Strategy.FIFO}, None),
    "bench_assign": ("strategy assign", {"strategy": Strategy.ASSIGN}, None),
    "bench_token": ("strategy token", {"strategy": Strategy.TOKEN}, None),
}


def measure(bench: Bench) -> list[Figure]:
    """The figures of limits and strategies: jobs a second, and the share of the unlimited round robin's."""
    jobs = 6_000 if bench.quick else 20_000
    for name, (_, settings, _) in _QUEUES.items():
        bench.queue.create_queue(QueueSpec(name, Event, bucket_count=SPEC.bucket_count, **settings))
    with crew(_PROCESSES, bench.url, bench.queue.database.schema) as workers:
        note(f"limits: rounds of {jobs:,} jobs for each of {1 + len(_QUEUES)} queues, {_PROCESSES} processes, in turns")
        names = [SPEC.name, *_QUEUES]
        plain, *others = rounds(2 if bench.quick else 5, *(_drain(bench, workers, name, jobs) for name in names))
        bench.empty()
    figures = [Figure("drain, no limit, round robin", "jobs/s", plain, COMMAND)]
    for (label, _, floor), rates in zip(_QUEUES.values(), others, strict=True):
        shares = [100 * a / b for a, b in zip(rates, plain, strict=True)]
        figures += [
            Figure(f"  {label}", "jobs/s", rates, COMMAND),
            Figure("    share of no limit", "%", shares, COMMAND, floor=floor),
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
