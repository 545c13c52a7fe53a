"""Enqueue: in bulk, and one by one beside a bare INSERT and commit."""

import time
from typing import Any

import psycopg
from psycopg import sql
from uuid_utils.compat import uuid7

from benchmarks.harness import SPEC, Bench, Event, Figure, event, note, rounds

COMMAND = "python -m benchmarks enqueue"


def measure(bench: Bench) -> list[Figure]:
    """The figures of enqueuing."""
    return [*_bulk(bench), *_one_by_one(bench)]


def _bulk(bench: Bench) -> list[Figure]:
    jobs = 20_000 if bench.quick else 60_000
    note(f"enqueue in bulk: rounds of {jobs:,} jobs, each validated, one transaction, into an empty table")

    def bulk() -> float:
        bench.empty()
        bench.checkpoint()
        payloads = [event(number) for number in range(jobs)]
        began = time.perf_counter()
        done = bench.queue.enqueue_many(SPEC, payloads)
        seconds = time.perf_counter() - began
        assert done.inserted == jobs
        return jobs / seconds

    (values,) = rounds(3 if bench.quick else 7, bulk)
    return [Figure("enqueue, bulk", "jobs/s", values, COMMAND, floor=80_000)]


def _one_by_one(bench: Bench) -> list[Figure]:
    jobs = 200
    note(f"enqueue one by one: rounds of {jobs:,} jobs, in turns with a bare psycopg INSERT and commit")
    bench.empty()
    insert = sql.SQL(
        "INSERT INTO {}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " VALUES (%s, 'bench', %s, 0, now(), now(), 5, %s)"
    ).format(sql.Identifier(bench.queue.database.schema))
    payload = Event.model_validate(event(1))
    text = payload.model_dump_json()

    def library() -> float:
        began = time.perf_counter()
        for _ in range(jobs):
            bench.queue.enqueue(SPEC, payload)
        return jobs / (time.perf_counter() - began)

    def bare(connection: "psycopg.Connection[Any]") -> float:
        began = time.perf_counter()
        for number in range(jobs):
            connection.execute(insert, (uuid7(), number % 16, text))
            if not connection.autocommit:
                connection.commit()
        return jobs / (time.perf_counter() - began)

    with psycopg.connect(bench.url) as explicit, psycopg.connect(bench.url, autocommit=True) as single:
        ours, committed, autocommitted = rounds(
            9 if bench.quick else 51, library, lambda: bare(explicit), lambda: bare(single)
        )
    shares = [100 * a / b for a, b in zip(ours, committed, strict=True)]
    harder = [100 * a / b for a, b in zip(ours, autocommitted, strict=True)]
    return [
        Figure("enqueue, one by one", "jobs/s", ours, COMMAND),
        Figure("  bare psycopg INSERT + commit()", "jobs/s", committed, COMMAND),
        Figure("  bare psycopg INSERT, autocommit", "jobs/s", autocommitted, COMMAND),
        Figure("  share of INSERT + commit()", "%", shares, COMMAND, floor=65, aim=80),
        Figure("  share of INSERT, autocommit", "%", harder, COMMAND),
    ]
