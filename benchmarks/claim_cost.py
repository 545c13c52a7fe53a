"""Claim cost: one claim of 100 jobs with 10 thousand, 1 million and 5 million jobs queued, in turns."""

import time
from contextlib import ExitStack

import psycopg

from benchmarks.harness import SPEC, Bench, Figure, note, rounds
from benchmarks.loading import load
from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.head_hints import HeadHints
from dagster_sqlqueue.schema.functions import pinned_schema

COMMAND = "python -m benchmarks claim_cost"
_BATCH = 100
_CLAIMS = 3 * SPEC.bucket_count


def measure(bench: Bench) -> list[Figure]:
    """The figures of a claim: milliseconds, the share of the smallest queue's, and pages touched."""
    sizes = (10_000, 100_000) if bench.quick else (10_000, 1_000_000, 5_000_000)
    with ExitStack() as stack:
        backlogs = [_Backlog(bench, size, stack) for size in sizes]
        note(f"claim cost: rounds of {_CLAIMS} claims of {_BATCH} jobs at each size, in turns")
        found = rounds(5 if bench.quick else 25, *(backlog.claims for backlog in backlogs))
        pages = [rounds(5, backlog.pages)[0] for backlog in backlogs]
    figures = []
    for size, times, touched in zip(sizes, found, pages, strict=True):
        label = f"{size:,} queued"
        figures.append(Figure(f"claim of {_BATCH}, {label}", "ms", times, COMMAND))
        if size != sizes[0]:
            shares = [100 * now / least for now, least in zip(times, found[0], strict=True)]
            figures.append(
                Figure(f"  of the time with {sizes[0]:,}", "%", shares, COMMAND, floor=130, at_most=True, aim=110)
            )
        figures.append(Figure("  pages touched", "pages", touched, COMMAND))
    return figures


class _Backlog:
    """A schema of its own with so many jobs queued, kept at that number."""

    def __init__(self, bench: Bench, size: int, stack: ExitStack) -> None:
        note(f"claim cost: queuing {size:,} jobs")
        self._bench = bench
        self._schema = f"{bench.queue.database.schema}_{size}"
        stack.callback(
            bench.execute, f'DROP SCHEMA IF EXISTS "{self._schema}", "{pinned_schema(self._schema)}" CASCADE'
        )
        self._queue = stack.enter_context(SqlQueue(bench.url, schema=self._schema))
        self._queue.migrate()
        self._queue.create_queue(SPEC)
        self._queued = 0
        self._hints = HeadHints()
        self._buckets = list(range(SPEC.bucket_count))
        self._put(size)
        bench.execute(f'VACUUM (ANALYZE, FREEZE) "{self._schema}".job')

    def claims(self) -> float:
        """The median milliseconds of a claim; what was claimed is ended, and put on the queue again at its end."""
        self._bench.checkpoint()
        times = []
        for _ in range(_CLAIMS):
            began = time.perf_counter()
            jobs = self._queue.claim(
                SPEC.name, limit=_BATCH, worker="bench", buckets=self._buckets, lease_seconds=60, hints=self._hints
            )
            times.append(time.perf_counter() - began)
            assert len(jobs) == _BATCH, f"{len(jobs)} jobs were claimed"
            self._queue.finish([Ending(job, ArchiveState.SUCCEEDED) for job in jobs])
            self._turn()
        self._put(_CLAIMS * _BATCH)
        return 1_000 * sorted(times)[len(times) // 2]

    def pages(self) -> float:
        """How many pages one claim touches, in memory or not; it is rolled back."""
        parameters = {
            "queue": SPEC.name,
            "revision": self._queue.settings(SPEC.name).revision,
            "buckets": self._buckets,
            "hints": self._hints.array(self._buckets),
            "limit": _BATCH,
            "lease_seconds": 60.0,
            "worker": "bench",
            "suspects": True,
            "single": True,
        }
        statement = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statements.load("claim_round_robin", self._schema)
        with psycopg.connect(self._bench.url) as connection:
            ((found,),) = connection.execute(statement.encode(), parameters)
            connection.rollback()
        plan = found[0]["Plan"]
        self._turn()
        return float(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def _turn(self) -> None:
        self._buckets = [*self._buckets[1:], self._buckets[0]]

    def _put(self, jobs: int) -> None:
        load(self._bench, jobs, schema=self._schema, first=self._queued + 1)
        self._queued += jobs
