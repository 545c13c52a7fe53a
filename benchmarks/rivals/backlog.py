"""A large backlog worked off by four processes: whether the rate of a drain lasts as long as its jobs do.

As the drains of `rivals`, with five times their jobs and without the queues that are not near the fastest there.
"""

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Bench, Figure, note
from benchmarks.rivals.arena import MANY, arena, share
from benchmarks.rivals.contenders import CONTENDERS, LEASED, PGMQ, PGMQ_LARGE, SIZED, TRANSACTIONAL
from benchmarks.rivals.node_packages import Packages

COMMAND = "python -m benchmarks backlog"
_JOBS = 400_000
_GRAPHILE, _PG_BOSS = "graphile-worker", "pg-boss"
_NAMES = (LEASED, SIZED, TRANSACTIONAL, PGMQ, PGMQ_LARGE, _GRAPHILE, _PG_BOSS)


def measure(bench: Bench) -> list[Figure]:
    """The rate of each, and the library's shares of the others'."""
    rounds, jobs = (1, 8_000) if bench.quick else (3, _JOBS)
    contenders = [contender for contender in CONTENDERS if contender.name in _NAMES]
    with tempfile.TemporaryDirectory(prefix="sqlqueue-backlog-") as directory:
        note("backlog: installing graphile-worker and pg-boss by npm")
        packages = Packages(Path(directory) / "node")
        with arena(bench, packages, contenders, jobs) as place:
            for number in range(1, rounds + 1):
                for contender in contenders:
                    note(f"backlog: round {number} of {rounds}, {MANY} processes, {jobs:,} jobs: {contender.name}")
                    place.work_off(contender)
        names = {contender.name: contender.shown(packages) for contender in contenders}
    drain = f"drain, {MANY}"
    figures = [
        Figure(f"{drain}: {shown}", "jobs/s", place.rates[drain][name], COMMAND) for name, shown in names.items()
    ]
    held = partial(share, place.rates, drain, command=COMMAND)
    small = [PGMQ, _GRAPHILE, _PG_BOSS]
    return [
        *figures,
        held(LEASED, small, 60, 100, but="pgmq by 1,000"),
        held(SIZED, small, 70, 100, but="pgmq by 1,000"),
        held(TRANSACTIONAL, small, 80, 100, but="pgmq by 1,000"),
        held(SIZED, [PGMQ_LARGE], 40, 100),
    ]
