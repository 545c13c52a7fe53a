"""Sealing and publishing a batch, in both modes, beside one SQL statement that deletes and inserts the same rows.

The statement is what a database does at best: it keeps nothing from others, resumes nothing and fences nobody.
"""

import sys
import time
from collections.abc import Callable

import psycopg

from benchmarks.harness import SPEC, Bench, Figure, note, opened, rounds
from benchmarks.showing import show
from dagster_sqlqueue import Mode
from dagster_sqlqueue.db.schema_name import quote_schema
from dagster_sqlqueue.spark import batches

COMMAND = "python -m benchmarks batches"
JOBS = 1_000_000

_PLAIN = """
WITH finished AS (DELETE FROM {s}.job WHERE queue = 'bench' AND available_at <= now() RETURNING *)
INSERT INTO {s}.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, batch_id, unique_key, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload, error
)
SELECT
    id, queue, bucket, priority, 'succeeded', lease_no, attempt, max_attempts, run_at, created_at, now(), now(),
    claimed_by, batch_id, unique_key, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload, error
FROM finished
"""


def measure(bench: Bench) -> list[Figure]:
    """The figures of the whole suite: fewer jobs there than in a run of its own."""
    return figures(bench, 20_000 if bench.quick else 100_000, 1 if bench.quick else 3)


def figures(bench: Bench, jobs: int, count: int) -> list[Figure]:
    """Jobs a second of each way, and the shares of the plain statement."""
    note(f"batches: rounds of {jobs:,} jobs, sealed and published in both modes, in turns with one SQL statement")
    logs: dict[str, list[float]] = {"held": [], "leased": [], "sql": []}
    held, leased, sql = rounds(
        count,
        lambda: _timed(bench, jobs, lambda: _batch(bench, jobs, Mode.TRANSACTIONAL), logs["held"]),
        lambda: _timed(bench, jobs, lambda: _batch(bench, jobs, Mode.LEASED), logs["leased"]),
        lambda: _timed(bench, jobs, lambda: plain(bench, jobs), logs["sql"]),
    )
    log = [100 * one / best for one, best in zip(logs["leased"][1:], logs["sql"][1:], strict=True)]
    shares = [100 * one / best for one, best in zip(held, sql, strict=True)]
    leases = [100 * one / best for one, best in zip(leased, sql, strict=True)]
    return [
        Figure(f"batch of {jobs:,}, delete and insert in SQL", "jobs/s", sql, COMMAND),
        Figure("  transactional", "jobs/s", held, COMMAND),
        Figure("    share of the SQL", "%", shares, COMMAND, floor=60),
        Figure("  leased", "jobs/s", leased, COMMAND),
        Figure("    share of the SQL", "%", leases, COMMAND, floor=50, aim=60),
        Figure("    log, share of the SQL's", "%", log, COMMAND, floor=130, at_most=True),
    ]


def _timed(bench: Bench, jobs: int, work: Callable[[], None], log: list[float]) -> float:
    bench.fill(jobs)
    position, began = bench.wal_position(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    log.append(bench.wal_position() - position)
    return jobs / seconds


def _batch(bench: Bench, jobs: int, mode: Mode) -> None:
    batch = batches.seal(bench.queue, SPEC.name, "bench", owner="bench", mode=mode, lease_seconds=600)
    assert (batch.job_count, batch.mode) == (jobs, mode)
    with batches.publication(bench.queue, batch, output={}):
        pass


def plain(bench: Bench, jobs: int) -> None:
    """Delete and insert so many jobs by one statement."""
    with psycopg.connect(bench.url) as connection:
        connection.execute("SET jit = off")
        moved = connection.execute(_PLAIN.format(s=quote_schema(bench.queue.database.schema)).encode())
        assert moved.rowcount == jobs


if __name__ == "__main__":
    with opened(quick=False) as single:
        show(figures(single, int(sys.argv[1]) if len(sys.argv) > 1 else JOBS, 1), single)
