"""The SQL functions beside the library's verbs: the same jobs on the same server, in turns."""

import json
import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.harness import SPEC, Bench, Event, Figure, event, note, rounds
from dagster_sqlqueue.schema.functions import pinned_schema

COMMAND = "python -m benchmarks functions"


def measure(bench: Bench) -> list[Figure]:
    """The figures of both kinds of callers."""
    v1 = pinned_schema(bench.queue.database.schema)
    with psycopg.connect(bench.url, autocommit=True) as connection:
        return [*_one_by_one(bench, connection, v1), *_bulk(bench, connection, v1), *_drain(bench, connection, v1)]


def _beside(name: str, unit: str, values: list[list[float]]) -> list[Figure]:
    functions, verbs = values
    shares = [100 * a / b for a, b in zip(functions, verbs, strict=True)]
    return [
        Figure(f"{name}, SQL functions", unit, functions, COMMAND),
        Figure("  the library", unit, verbs, COMMAND),
        Figure("  share of the library", "%", shares, COMMAND),
    ]


def _timed(jobs: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - began)


def _one_by_one(bench: Bench, connection: "psycopg.Connection[Any]", v1: str) -> list[Figure]:
    jobs = 200
    note(f"functions: rounds of {jobs:,} single enqueues, in turns with the library")
    bench.empty()
    payload = Event.model_validate(event(1))
    call, text = f'SELECT "{v1}".enqueue(%s, %s)'.encode(), payload.model_dump_json()

    def by_function() -> None:
        for _ in range(jobs):
            connection.execute(call, ("bench", text))

    def by_library() -> None:
        for _ in range(jobs):
            bench.queue.enqueue(SPEC, payload)

    return _beside(
        "enqueue, one by one",
        "jobs/s",
        rounds(9 if bench.quick else 31, lambda: _timed(jobs, by_function), lambda: _timed(jobs, by_library)),
    )


def _bulk(bench: Bench, connection: "psycopg.Connection[Any]", v1: str) -> list[Figure]:
    jobs = 10_000
    note(f"functions: rounds of {jobs:,} jobs in one enqueue_many, in turns with the library")
    payloads = [event(number) for number in range(jobs)]
    call = f'SELECT cardinality("{v1}".enqueue_many(%s, %s::jsonb[]))'.encode()

    def by_function() -> float:
        bench.empty()
        return _timed(jobs, lambda: connection.execute(call, ("bench", [json.dumps(payload) for payload in payloads])))

    def by_library() -> float:
        bench.empty()
        return _timed(jobs, lambda: bench.queue.enqueue_many(SPEC, payloads))

    return _beside("enqueue_many", "jobs/s", rounds(3 if bench.quick else 9, by_function, by_library))


def _drain(bench: Bench, connection: "psycopg.Connection[Any]", v1: str) -> list[Figure]:
    batches, size = (20, 100) if bench.quick else (60, 100)
    note(f"functions: rounds of {batches} batches of {size}, claimed and completed, in turns with the library")
    claim = f'SELECT job_id, lease_no, payload FROM "{v1}".claim(%s, %s, %s)'.encode()
    complete = f'SELECT "{v1}".complete_many(%s, %s::bigint[])'.encode()

    def by_function() -> None:
        for _ in range(batches):
            jobs = connection.execute(claim, ("bench", "w", size)).fetchall()
            assert len(jobs) == size
            connection.execute(complete, ([job[0] for job in jobs], [job[1] for job in jobs]))

    def by_library() -> None:
        for _ in range(batches):
            jobs = bench.queue.claim("bench", limit=size, worker="w")
            assert len(jobs) == size
            bench.queue.complete(jobs)

    def filled(work: Callable[[], object]) -> float:
        bench.fill(2 * batches * size)
        return _timed(batches * size, work)

    return _beside(
        "claim and complete, batches of 100",
        "jobs/s",
        rounds(3 if bench.quick else 9, lambda: filled(by_function), lambda: filled(by_library)),
    )
