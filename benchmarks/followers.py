"""Followers: what the trigger costs that notifies who follows a job, where nobody does, and where everybody does.

Only the statement that ends a batch is timed. Batch by batch, in the same table, two connections take turns: one as
everybody has it, and one for which no trigger fires.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.harness import SPEC, Bench, Figure, event, note
from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.followers import Callback, Followers, JobEnded
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending

COMMAND = "python -m benchmarks followers"
_BATCH = 100
_PAIRS = 20


def measure(bench: Bench) -> list[Figure]:
    """The figures of ending jobs: milliseconds for a batch of 100."""
    count = 3 if bench.quick else 11
    note(
        f"followers: {count} rounds of {_PAIRS} batches of {_BATCH}, ended with the trigger, without it, and with callbacks"
    )
    bench.queue.create_queue(QueueSpec("bench_ended", JobEnded))
    bench.empty()
    with ExitStack() as stack:
        plain, without = (stack.enter_context(bench.queue.database.connection()) for _ in range(2))
        without.execute("SET session_replication_role = replica")
        sides = [Transaction(connection, bench.queue.database) for connection in (plain, without)]
        jobs = (event(number) for number in range((count + 1) * 2 * _PAIRS * _BATCH))
        bench.queue.enqueue_many(SPEC, jobs)
        _round(bench, sides)
        ends = [_round(bench, sides) for _ in range(count)]
        without.execute("RESET session_replication_role")
        jobs = (event(number) for number in range((count + 1) * _PAIRS * _BATCH))
        Followers(bench.queue).enqueue_many(SPEC, jobs, callbacks=Callback("bench_ended"))
        _round(bench, sides[:1])
        followed = [_round(bench, sides[:1])[0] for _ in range(count)]
    bench.empty()
    return [
        Figure("end of 100 jobs, nobody follows", "ms", [with_it for with_it, _ in ends], COMMAND),
        Figure("  without the trigger", "ms", [bare for _, bare in ends], COMMAND),
        Figure("    share of it", "%", [100 * a / b for a, b in ends], COMMAND, floor=110, at_most=True),
        Figure("end of 100 jobs, each with a callback", "ms", followed, COMMAND),
    ]


def _round(bench: Bench, sides: Sequence[Transaction]) -> list[float]:
    """The median milliseconds of each side."""
    spent: list[list[float]] = [[] for _ in sides]
    for pair in range(_PAIRS):
        order = list(enumerate(sides))
        for side, transaction in order if pair % 2 else reversed(order):
            claimed = bench.queue.claim(SPEC.name, limit=_BATCH, worker="bench", lease_seconds=600)
            endings = [Ending(job, ArchiveState.SUCCEEDED) for job in claimed]
            began = time.perf_counter()
            bench.queue.finish(endings, executor=transaction)
            spent[side].append(1_000 * (time.perf_counter() - began))
    return [statistics.median(found) for found in spent]
