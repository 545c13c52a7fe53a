"""Drains with one process and with four, bulk and single enqueues, an old snapshot, and the way from commit to handler.

Each contender has a database of its own on the same server, whose tables are never analysed, and puts its jobs there by its
own verb. Every measurement begins with processes just started that have enqueued, and worked off, 2,000 jobs. The contenders
take turns, round by round.
"""

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Bench, Figure, note
from benchmarks.rivals.arena import MANY, Rates, arena, share
from benchmarks.rivals.contenders import (
    BUT_PGMQ_DELETING,
    BUT_PGMQ_LARGE,
    CONTENDERS,
    LEASED,
    PGMQ,
    PGMQ_LARGE,
    RIVALS,
    SIZED,
    TRANSACTIONAL,
)
from benchmarks.rivals.node_packages import Packages

COMMAND = "python -m benchmarks rivals"


def measure(bench: Bench) -> list[Figure]:
    """The figures of all contenders, and the library's shares of them."""
    rounds, jobs, singles = (1, 4_000, 30) if bench.quick else (5, 80_000, 300)
    with tempfile.TemporaryDirectory(prefix="sqlqueue-rivals-") as directory:
        note("rivals: installing graphile-worker and pg-boss by npm")
        packages = Packages(Path(directory) / "node")
        with arena(bench, packages, CONTENDERS, jobs) as place:
            for number in range(1, rounds + 1):
                for processes in (1, MANY):
                    for contender in CONTENDERS:
                        what = f"round {number} of {rounds}, {processes} processes, {jobs:,} jobs"
                        note(f"rivals: {what}: {contender.name}")
                        place.work(contender, processes)
            for number in range(1, (1 if bench.quick else 3) + 1):
                for contender in CONTENDERS:
                    if contender.jobs == 1:
                        note(f"rivals: an old snapshot, round {number}: {contender.name}")
                        place.pin(contender)
            for contender in CONTENDERS:
                note(f"rivals: {singles} single jobs, from commit to handler: {contender.name}")
                place.pick_up(contender, singles)
        names = {contender.name: contender.shown(packages) for contender in CONTENDERS}
    return [*_figures(place.rates, names), *_shares(place.rates)]


_MOST_LOG = 1_000
"""What a leased job is to write to the log, in bytes."""

_UNITS = {
    "drain, 1": "jobs/s",
    f"drain, {MANY}": "jobs/s",
    "bulk": "jobs/s",
    "one by one": "jobs/s",
    "pinned": "% of unpinned",
    "pick-up p50": "ms",
    "pick-up p99": "ms",
    "WAL": "bytes/job",
}


def _figures(rates: Rates, names: dict[str, str]) -> list[Figure]:
    figures = []
    for what, unit in _UNITS.items():
        for contender in CONTENDERS:
            values = rates[what].get(contender.name)
            if values and (contender.bulk or what not in ("bulk", "one by one")):
                aim = _MOST_LOG if what == "WAL" and contender.name == LEASED else None
                at_most = what in ("WAL", "pick-up p50", "pick-up p99")
                figures.append(
                    Figure(f"{what}: {names[contender.name]}", unit, values, COMMAND, at_most=at_most, aim=aim)
                )
    return figures


def _shares(rates: Rates) -> list[Figure]:
    """The library's figures as percent of a rival's, round by round, with their floors and aims."""
    held = partial(share, rates, command=COMMAND)
    many = f"drain, {MANY}"
    return [
        held("drain, 1", LEASED, [PGMQ], 70, 100),
        held("drain, 1", LEASED, ["graphile-worker"], 85, 100),
        held("drain, 1", TRANSACTIONAL, [PGMQ], 120, 150),
        held(many, LEASED, BUT_PGMQ_LARGE, 50, 100, but="pgmq by 1,000"),
        held(many, TRANSACTIONAL, BUT_PGMQ_LARGE, 80, 100, but="pgmq by 1,000"),
        # Where the library chooses the size of its batches, up to 500 jobs.
        held(many, SIZED, BUT_PGMQ_LARGE, 60, 100, but="pgmq by 1,000"),
        held("drain, 1", SIZED, [PGMQ_LARGE], 50, 100),
        held(many, SIZED, BUT_PGMQ_DELETING, 40, 100, but="pgmq deleting"),
        held(many, TRANSACTIONAL, BUT_PGMQ_DELETING, 55, 100, but="pgmq deleting"),
        held("bulk", LEASED, RIVALS, 150),
        held("bulk", LEASED, ["bare table, 1,000"], 30, 50),
        held("one by one", LEASED, [PGMQ], 55, 100),
    ]
