"""Wake: how long a single job waits until a consumer that has nothing to do holds it, notified or polling."""

import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.harness import SPEC, Bench, Figure, event, note
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.complete import Ending
from dagster_sqlqueue.queue.head_hints import HeadHints

COMMAND = "python -m benchmarks wake"
_POLL_SECONDS = 0.2


def measure(bench: Bench) -> list[Figure]:
    """The figures of picking up: from the call of `enqueue` until the job is in the consumer's hands."""
    jobs = 50 if bench.quick else 400
    note(f"wake: {jobs} single jobs, picked up by a consumer that is notified, then by one that polls every 200 ms")
    bench.empty()
    with ExitStack() as stack:
        waiter = stack.enter_context(Waiter(bench.queue.catalog, SPEC.name, "bench"))
        notified = _latencies(bench, jobs, lambda: waiter.wait(5.0))
    polling = _latencies(bench, jobs, lambda: time.sleep(_POLL_SECONDS))
    return [
        *_figures("pick-up, notified", notified),
        *_figures("pick-up, polling every 200 ms", polling),
    ]


def _figures(name: str, latencies: list[float]) -> list[Figure]:
    last = statistics.quantiles(latencies, n=100)[98]
    return [Figure(f"{name}, p50", "ms", latencies, COMMAND), Figure("  p99", "ms", [last], COMMAND)]


def _latencies(bench: Bench, jobs: int, wait: Callable[[], object]) -> list[float]:
    """Milliseconds of each job, after a tenth as many to warm up."""
    warm_up = jobs // 10
    sent: dict[int, float] = {}
    held: dict[int, float] = {}
    all_held = threading.Event()

    def consume() -> None:
        hints = HeadHints()
        while len(held) < jobs + warm_up:
            claimed = bench.queue.claim(SPEC.name, limit=100, worker="bench", hints=hints)
            now = time.perf_counter()
            for job in claimed:
                held[json.loads(job.payload)["number"]] = now
            if claimed:
                bench.queue.finish([Ending(job, ArchiveState.SUCCEEDED) for job in claimed])
            else:
                wait()
        all_held.set()

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    for number in range(jobs + warm_up):
        time.sleep(random.uniform(0.02, 0.06))
        sent[number] = time.perf_counter()
        bench.queue.enqueue(SPEC, event(number))
    if not all_held.wait(60):
        raise RuntimeError(f"{len(held)} of {jobs + warm_up} jobs were picked up")
    consumer.join()
    return [1_000 * (held[number] - sent[number]) for number in range(warm_up, jobs + warm_up)]
