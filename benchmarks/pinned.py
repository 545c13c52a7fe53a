"""Pinned: the rate of a drain after 200,000 jobs were finished under the eyes of an old snapshot, beside the rate without.

The snapshot keeps every dead row, as a backup or a long report does. Beside it stands what becomes of a consumer that
has no head hints, and looks from the very beginning at every claim. All jobs of a round are due at one moment, as a
transaction leaves them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.crew import Crew, crew
from benchmarks.harness import Bench, Figure, note, rounds
from benchmarks.loading import load

COMMAND = "python -m benchmarks pinned"
_PROCESSES = 2
_ALWAYS = 0.0


def measure(bench: Bench) -> list[Figure]:
    """The figures of draining under a pinned snapshot."""
    finished, jobs = (20_000, 10_000) if bench.quick else (200_000, 120_000)
    note(f"pinned: rounds of {jobs:,} jobs after {finished:,} were finished, {_PROCESSES} processes, in turns")
    with crew(_PROCESSES, bench.url, bench.queue.database.schema) as workers:

        def free() -> float:
            _finish(bench, workers, finished)
            return _rate(bench, workers, finished, jobs)

        def pinned() -> float:
            with _snapshot(bench):
                _finish(bench, workers, finished)
                return _rate(bench, workers, finished, jobs)

        def sweeping() -> float:
            with _snapshot(bench):
                _finish(bench, workers, finished)
                return _rate(bench, workers, finished, jobs, sweep_seconds=_ALWAYS)

        found = rounds(2 if bench.quick else 7, free, pinned, sweeping)
        bench.empty()
    free_rates, pinned_rates, sweeping_rates = found
    shares = [100 * a / b for a, b in zip(pinned_rates, free_rates, strict=True)]
    without = [100 * a / b for a, b in zip(sweeping_rates, free_rates, strict=True)]
    return [
        Figure(f"drain after {finished:,} finished jobs", "jobs/s", free_rates, COMMAND),
        Figure("  the same under a pinned snapshot", "jobs/s", pinned_rates, COMMAND),
        Figure("  the same, head hints not used", "jobs/s", sweeping_rates, COMMAND),
        Figure("  pinned, share of unpinned", "%", shares, COMMAND, floor=65, aim=95),
        Figure("  without hints, share of unpinned", "%", without, COMMAND),
    ]


def _finish(bench: Bench, workers: Crew, jobs: int) -> None:
    bench.empty()
    load(bench, jobs, at_once=True)
    bench.execute("VACUUM (ANALYZE) {s}.job")
    workers.drain(jobs, batch=1_000)


def _rate(bench: Bench, workers: Crew, finished: int, jobs: int, **options: float) -> float:
    load(bench, jobs, first=finished + 1, at_once=True)
    bench.settle()
    return workers.drain(jobs, **options).rate


@contextmanager
def _snapshot(bench: Bench) -> Iterator[None]:
    """Keep an old snapshot for the time of the block."""
    with psycopg.connect(bench.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()
