"""The consumer as users run it: payloads parsed, a handler called, on tables that were never analysed. Rates and CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.cpu import own_and_server_seconds
from benchmarks.harness import SPEC, Bench, Event, Figure, event, note, rounds
from dagster_sqlqueue import Consumer, Job

COMMAND = "python -m benchmarks consumer"
_MOST_CPU = 25
"""Of a job under a lease, in microseconds."""


@dataclass(frozen=True)
class _Way:
    """How the queue is worked off."""

    name: str
    given: dict[str, Any]


_WAYS = (
    _Way("leased, batches of 100", {"batch_size": 100}),
    _Way("leased, no batch size given", {}),
    _Way("transactional, batches of 100", {"batch_size": 100, "mode": "transactional"}),
)


def measure(bench: Bench) -> list[Figure]:
    """The figures of draining, and of enqueuing what is drained."""
    jobs = 20_000 if bench.quick else 60_000
    note(f"consumer: rounds of {jobs:,} jobs through the Consumer in {len(_WAYS)} ways in turns, tables never analysed")
    cpu: dict[str, list[float]] = {way.name: [] for way in _WAYS}

    def drain(way: _Way) -> float:
        bench.empty()
        bench.queue.enqueue_many(SPEC, [event(number) for number in range(jobs)])
        bench.checkpoint()
        before, began = own_and_server_seconds(bench), time.perf_counter()
        summary = Consumer(bench.queue, SPEC, _nothing, **way.given).drain()
        seconds = time.perf_counter() - began
        cpu[way.name].append(1e6 * (own_and_server_seconds(bench) - before) / jobs)
        assert summary.succeeded == jobs, summary
        return jobs / seconds

    with _never_analysed(bench):
        rates = rounds(3 if bench.quick else 7, *(lambda way=way: drain(way) for way in _WAYS))  # type: ignore[misc]
    figures = []
    for way, found in zip(_WAYS, rates, strict=True):
        figures.append(Figure(f"consumer, {way.name}", "jobs/s", found, COMMAND))
        # The first round is the warm-up.
        aim = _MOST_CPU if "leased" in way.name else None
        figures.append(
            Figure("  CPU of consumer and server", "µs/job", cpu[way.name][1:], COMMAND, at_most=True, aim=aim)
        )
    return figures


def _nothing(job: Job[Event]) -> None:
    pass


@contextmanager
def _never_analysed(bench: Bench) -> Iterator[None]:
    """While the block runs, the server looks after the queue's table as little as it has had time to on a new queue."""
    bench.empty()
    bench.execute("ALTER TABLE {s}.job SET (autovacuum_enabled = false)")
    try:
        yield
    finally:
        bench.execute("ALTER TABLE {s}.job RESET (autovacuum_enabled)")
