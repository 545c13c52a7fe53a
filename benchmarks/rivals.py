"""Rivals: the library in both of its modes, pgmq's SQL functions and a bare table, drained by the same Python loop.

pgmq is not part of this repository: `SQLQUEUE_BENCH_PGMQ` names its `pgmq.sql`, which is loaded into the server for the
time of the measurement. Without it that column is left out, and with it the floors.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.crew import Crew, crew
from benchmarks.harness import Bench, Figure, note, rounds
from benchmarks.loading import load, load_bare, load_pgmq
from dagster_sqlqueue.errors import InvalidInput

COMMAND = "python -m benchmarks rivals"
PGMQ = "SQLQUEUE_BENCH_PGMQ"
_PROCESSES = 2


def measure(bench: Bench) -> list[Figure]:
    """The figures of the library and its rivals: jobs a second, and bytes of WAL a job."""
    jobs = 10_000 if bench.quick else 40_000
    with _pgmq(bench) as with_pgmq, crew(_PROCESSES, bench.url, bench.queue.database.schema) as workers:
        note(f"rivals: rounds of {jobs:,} jobs, {_PROCESSES} processes, batches of 100, in turns")
        bench.execute(
            "CREATE TABLE IF NOT EXISTS {s}.bare"
            " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL)"
        )
        names = ["leased", "transactional", *(["pgmq"] if with_pgmq else []), "bare"]
        wal: dict[str, list[float]] = {name: [] for name in names}
        drains = [_drain(bench, workers, name, jobs, wal[name]) for name in names]
        rates = dict(zip(names, rounds(3 if bench.quick else 7, *drains), strict=True))
    figures = [
        Figure("drain, leased", "jobs/s", rates["leased"], COMMAND),
        Figure("drain, transactional", "jobs/s", rates["transactional"], COMMAND),
    ]
    if with_pgmq:
        figures += [
            Figure("  pgmq, read and archive", "jobs/s", rates["pgmq"], COMMAND),
            Figure("  leased, share of pgmq", "%", _shares(rates, "leased", "pgmq"), COMMAND, floor=100),
            Figure("  transactional, share of pgmq", "%", _shares(rates, "transactional", "pgmq"), COMMAND, floor=150),
        ]
    figures += [
        Figure("  bare DELETE … SKIP LOCKED, no archive", "jobs/s", rates["bare"], COMMAND),
        Figure("  leased, share of the bare table", "%", _shares(rates, "leased", "bare"), COMMAND),
        Figure("  transactional, share of the bare table", "%", _shares(rates, "transactional", "bare"), COMMAND),
    ]
    return figures + [Figure(f"  WAL, {name}", "bytes/job", wal[name][1:], COMMAND) for name in names]


def _drain(bench: Bench, workers: Crew, name: str, jobs: int, wal: list[float]) -> Callable[[], float]:
    def fill() -> None:
        # The checkpoint first: what the drain writes to the log is then its own, without images of untouched pages.
        bench.checkpoint()
        if name == "pgmq":
            load_pgmq(bench, jobs)
        elif name == "bare":
            load_bare(bench, jobs)
        else:
            bench.empty()
            load(bench, jobs)
            bench.execute("VACUUM (ANALYZE) {s}.job")

    def drain() -> float:
        fill()
        before = bench.wal_position()
        done = workers.drain(name, jobs)
        wal.append((bench.wal_position() - before) / jobs)
        return done.rate

    return drain


def _shares(rates: dict[str, list[float]], ours: str, theirs: str) -> list[float]:
    return [100 * a / b for a, b in zip(rates[ours], rates[theirs], strict=True)]


@contextmanager
def _pgmq(bench: Bench) -> Iterator[bool]:
    """Load pgmq for the time of the block, if its SQL was given."""
    given = os.environ.get(PGMQ)
    if not given:
        note(f"rivals: without pgmq; to have it beside, let {PGMQ} name its pgmq.sql")
        yield False
        return
    if not Path(given).is_file():
        raise InvalidInput(f"{PGMQ} is {given!r}, which is not a file; let it name pgmq-extension/sql/pgmq.sql of pgmq")
    if bench.execute("SELECT FROM pg_namespace WHERE nspname = 'pgmq'"):
        raise InvalidInput(
            f"{PGMQ} is set, and the server has a schema pgmq already; measure on a server without it, or unset {PGMQ}"
        )
    try:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(Path(given).read_bytes())
            connection.execute("SELECT pgmq.create('bench')")
        yield True
    finally:
        bench.execute("DROP SCHEMA IF EXISTS pgmq CASCADE")
