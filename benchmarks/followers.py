"""Followers: what the trigger costs that tells who follows a job, where nobody does, and where everybody does.

Only the statement that ends a batch is timed. The rounds with the trigger and without it take turns, in the same table.
"""

import time
from collections.abc import Callable

from benchmarks.harness import SPEC, Bench, Figure, event, note, rounds
from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.followers import Callback, Followers, JobEnded
from dagster_sqlqueue.model import ArchiveState

COMMAND = "python -m benchmarks followers"
_BATCH = 100


def measure(bench: Bench) -> list[Figure]:
    """The figures of ending jobs: milliseconds for a batch of 100."""
    batches = 5 if bench.quick else 20
    note(
        f"followers: rounds of {batches} batches of {_BATCH}, ended with the trigger, without it, and with a callback each"
    )
    bench.queue.create_queue(QueueSpec("bench_ended", JobEnded))
    measures = (_ending(bench, batches), _ending(bench, batches, trigger=False), _ending(bench, batches, followed=True))
    plain, without, followed = rounds(3 if bench.quick else 11, *measures)
    bench.empty()
    shares = [100 * a / b for a, b in zip(plain, without, strict=True)]
    return [
        Figure("end of 100 jobs, nobody follows", "ms", plain, COMMAND),
        Figure("  without the trigger", "ms", without, COMMAND),
        Figure("    share of it", "%", shares, COMMAND, floor=110, at_most=True),
        Figure("end of 100 jobs, each with a callback", "ms", followed, COMMAND),
    ]


def _ending(bench: Bench, batches: int, *, trigger: bool = True, followed: bool = False) -> Callable[[], float]:
    def run() -> float:
        bench.empty()
        bench.execute("TRUNCATE {s}.follower")
        bench.execute(f"ALTER TABLE {{s}}.job {'ENABLE' if trigger else 'DISABLE'} TRIGGER job_ended")
        jobs = (event(number) for number in range(batches * _BATCH))
        if followed:
            Followers(bench.queue).enqueue_many(SPEC, jobs, callbacks=Callback("bench_ended"))
        else:
            bench.queue.enqueue_many(SPEC, jobs)
        spent: list[float] = []
        while claimed := bench.queue.claim(SPEC.name, limit=_BATCH, worker="bench", lease_seconds=600):
            endings = [Ending(job, ArchiveState.SUCCEEDED) for job in claimed]
            began = time.perf_counter()
            bench.queue.finish(endings)
            spent.append(time.perf_counter() - began)
        bench.execute("ALTER TABLE {s}.job ENABLE TRIGGER job_ended")
        return 1_000 * sorted(spent)[len(spent) // 2]

    return run
