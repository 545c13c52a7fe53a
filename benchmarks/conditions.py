"""Conditions: one drain in batches of 100 where it has it harder, each beside the usual one, in turns.

A consumer that idled on an empty table has its claim planned for that one, and gets all jobs at once; a queue of 64 buckets
is searched in four times as many places as one of 16; five million queued jobs are gigabytes of table and indexes, in which
the dead rows of the rounds before lie too.
"""

import threading
import time
from contextlib import ExitStack

from benchmarks.harness import SPEC, Bench, Event, Figure, note, rounds
from benchmarks.loading import load
from dagster_sqlqueue import Consumer, DrainSummary, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.schema.functions import pinned_schema

COMMAND = "python -m benchmarks conditions"
_BATCH = 100
_MANY_BUCKETS = QueueSpec("many_buckets", Event, bucket_count=64)
_IDLE_CLAIMS = 10
"""On the empty table, by the same sessions: psycopg prepares a statement, whose plan is kept, when it has run some times."""
_IDLE_SECONDS = 3.0
_LINGER_SECONDS = 60.0
_AIM = 95


def measure(bench: Bench) -> list[Figure]:
    """The figures of each condition, with its share of the usual rate."""
    return [*_idled(bench), *_buckets(bench), *_backlog(bench)]


def _idled(bench: Bench) -> list[Figure]:
    jobs = 20_000 if bench.quick else 120_000
    note(f"conditions: {jobs:,} jobs for a consumer that claimed {_IDLE_CLAIMS} times on an empty table, and waits")

    def warm() -> float:
        bench.empty()
        load(bench, jobs)
        bench.checkpoint()
        with SqlQueue(bench.url, schema=bench.queue.database.schema) as queue:
            return _rate(queue, SPEC)

    def idled() -> float:
        bench.empty()
        bench.execute("VACUUM (ANALYZE) {s}.job")
        ended: list[float] = []

        def note_end(summary: DrainSummary) -> None:
            if summary.succeeded == jobs:
                ended.append(time.perf_counter())
                consumer.stop()

        with SqlQueue(bench.url, schema=bench.queue.database.schema) as queue:
            for _ in range(_IDLE_CLAIMS):
                Consumer(queue, SPEC, _nothing, batch_size=_BATCH).drain()
            _check_planned(queue)
            consumer = Consumer(queue, SPEC, _nothing, batch_size=_BATCH)
            working = threading.Thread(
                target=consumer.drain, kwargs={"linger_seconds": _LINGER_SECONDS, "after_batch": note_end}
            )
            working.start()
            time.sleep(_IDLE_SECONDS)
            load(bench, jobs)
            began = time.perf_counter()
            working.join()
        assert consumer.summary.succeeded == jobs, consumer.summary
        return jobs / (ended[0] - began)

    usual, found = rounds(2 if bench.quick else 5, warm, idled)
    bench.empty()
    return _figures("drain of a full queue", usual, "by a consumer that had claimed on the empty table", found)


def _check_planned(queue: SqlQueue) -> None:
    """Make sure that the session at hand has a claim prepared."""
    with queue.database.connection() as connection:
        found = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert any("SKIP LOCKED" in statement for (statement,) in found), f"no claim is prepared: {found}"


def _buckets(bench: Bench) -> list[Figure]:
    jobs = 20_000 if bench.quick else 120_000
    note(f"conditions: {jobs:,} jobs in 16 and in 64 buckets")
    bench.queue.create_queue(_MANY_BUCKETS)

    def drain(spec: QueueSpec[Event]) -> float:
        bench.fill(jobs, spec)
        return _rate(bench.queue, spec)

    usual, found = rounds(2 if bench.quick else 5, lambda: drain(SPEC), lambda: drain(_MANY_BUCKETS))
    bench.empty()
    return _figures("drain, 16 buckets", usual, "64 buckets", found)


def _backlog(bench: Bench) -> list[Figure]:
    few, many = (50_000, 200_000) if bench.quick else (400_000, 5_000_000)
    seconds = 0.5 if bench.quick else 4.0
    schema = f"{bench.queue.database.schema}_{many}"
    with ExitStack() as stack:
        note(f"conditions: queuing {many:,} jobs")
        stack.callback(bench.execute, f'DROP SCHEMA IF EXISTS "{schema}", "{pinned_schema(schema)}" CASCADE')
        full = stack.enter_context(SqlQueue(bench.url, schema=schema))
        full.migrate()
        full.create_queue(SPEC)
        load(bench, many, schema=schema)
        bench.execute(f'VACUUM (ANALYZE, FREEZE) "{schema}".job')
        note(f"conditions: drains of {seconds:.0f} s with {few:,} and {many:,} jobs queued")

        def usual() -> float:
            bench.empty()
            load(bench, few)
            bench.settle()
            return _rate(bench.queue, SPEC, seconds=seconds)

        def behind() -> float:
            bench.checkpoint()
            return _rate(full, SPEC, seconds=seconds)

        found = rounds(2 if bench.quick else 5, usual, behind)
    bench.empty()
    return _figures(f"drain of {few:,} jobs", found[0], f"behind {many:,}", found[1])


def _figures(usual: str, usual_rates: list[float], harder: str, rates: list[float]) -> list[Figure]:
    shares = [100 * rate / beside for rate, beside in zip(rates, usual_rates, strict=True)]
    return [
        Figure(usual, "jobs/s", usual_rates, COMMAND),
        Figure(f"  {harder}", "jobs/s", rates, COMMAND),
        Figure(f"    share, {harder}", "%", shares, COMMAND, floor=75, aim=_AIM),
    ]


def _rate(queue: SqlQueue, spec: QueueSpec[Event], *, seconds: float | None = None) -> float:
    """Jobs a second of a drain; `seconds`: of as many as are ended in this time."""
    began = time.perf_counter()
    summary = Consumer(queue, spec, _nothing, batch_size=_BATCH).drain(budget_seconds=seconds)
    return summary.succeeded / (time.perf_counter() - began)


def _nothing(job: Job[Event]) -> None:
    pass
