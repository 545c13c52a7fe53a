"""Drains with one process and with four, bulk and single enqueues, an old snapshot, and the way from commit to handler.

Each contender has a database of its own on the same server, whose tables are never analysed, and puts its jobs there by its
own verb. Every measurement begins with processes just started that have enqueued, and worked off, 2,000 jobs. The contenders
take turns, round by round.
"""

import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from benchmarks.harness import Bench, Figure, note
from benchmarks.rivals.contenders import CONTENDERS, Contender
from benchmarks.rivals.crew import Crew, crew
from benchmarks.rivals.node_packages import Packages

COMMAND = "python -m benchmarks rivals"
_WARM_UP = 2_000
_MANY = 4
_LEASED, _TRANSACTIONAL, _SIZED = "ours, leased, 100", "ours, transactional, 100", "ours, leased"
_PGMQ, _PGMQ_LARGE, _PGMQ_DELETING = "pgmq, archive, 100", "pgmq, archive, 1,000", "pgmq, delete, 1,000"

Rates = dict[str, dict[str, list[float]]]
"""The rounds' values by what was measured, and by contender."""


class _Arena:
    """Databases of contenders, and what was measured."""

    def __init__(self, bench: Bench, packages: Packages, urls: dict[str, str], jobs: int) -> None:
        self._bench = bench
        self._packages = packages
        self._urls = urls
        self._jobs = jobs
        self.rates: Rates = defaultdict(lambda: defaultdict(list))

    def work(self, contender: Contender, processes: int) -> None:
        """One round of enqueuing and working off."""
        jobs = self._of(contender)
        with self._warm(contender, processes) as workers:
            single = 200
            self._note("one by one", contender, single / workers.first("single", jobs=single)["seconds"])
            workers.first("clear")
            self._note("bulk", contender, jobs / workers.first("bulk", jobs=jobs)["seconds"])
            self._bench.checkpoint()
            before = self._bench.wal_position()
            self._note(f"drain, {processes}", contender, workers.drain(jobs))
            self._note("WAL", contender, (self._bench.wal_position() - before) / jobs)

    def pin(self, contender: Contender) -> None:
        """The rate after as many jobs were worked off under the eyes of an old snapshot, in percent of the rate without."""
        free = self._after(contender)
        with psycopg.connect(self._urls[contender.name]) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM pg_class")
            pinned = self._after(contender)
            connection.rollback()
        self._note("pinned", contender, 100 * pinned / free)

    def pick_up(self, contender: Contender, jobs: int) -> None:
        """Milliseconds from the return of the commit to the first line of the handler, of single jobs."""
        with self._warm(contender, 2) as workers:
            workers.one(0, "serve")
            time.sleep(1)
            # The first ones warm up.
            pauses = [random.uniform(0.02, 0.06) for _ in range(jobs + 20)]
            sent = workers.one(1, "send", pauses=pauses)["times"]
            time.sleep(2)
            seen = workers.one(0, "served")["times"]
            assert sent.keys() == seen.keys(), f"{contender.name}: {len(seen)} of {len(sent)} jobs were picked up"
            times = [1_000 * (seen[number] - moment) for number, moment in sent.items()][20:]
            self._note("pick-up p50", contender, statistics.median(times))
            self._note("pick-up p99", contender, statistics.quantiles(times, n=100)[98])

    def _after(self, contender: Contender) -> float:
        """Jobs a second, behind as many dead rows as jobs, and half as many again."""
        jobs = self._of(contender)
        with self._warm(contender, 1) as workers:
            workers.first("bulk", jobs=jobs * 2)
            workers.drain(jobs * 2)
            workers.first("bulk", jobs=jobs)
            self._bench.checkpoint()
            return workers.drain(jobs)

    @contextmanager
    def _warm(self, contender: Contender, processes: int) -> Iterator[Crew]:
        with crew(contender, self._urls[contender.name], processes, self._packages) as workers:
            jobs = max(100, int(_WARM_UP * contender.jobs))
            workers.first("clear")
            workers.first("bulk", jobs=jobs)
            workers.drain(jobs)
            yield workers

    def _of(self, contender: Contender) -> int:
        return max(200, int(self._jobs * contender.jobs))

    def _note(self, what: str, contender: Contender, value: float) -> None:
        self.rates[what][contender.name].append(value)


def measure(bench: Bench) -> list[Figure]:
    """The figures of all contenders, and the library's shares of them."""
    rounds, jobs, singles = (1, 4_000, 30) if bench.quick else (5, 80_000, 300)
    with tempfile.TemporaryDirectory(prefix="sqlqueue-rivals-") as directory, ExitStack() as stack:
        note("rivals: installing graphile-worker and pg-boss by npm")
        packages = Packages(Path(directory) / "node")
        urls = {contender.name: stack.enter_context(_database(bench, contender)) for contender in CONTENDERS}
        for contender in CONTENDERS:
            with crew(contender, urls[contender.name], 1, packages) as workers:
                workers.first("setup")
        arena = _Arena(bench, packages, urls, jobs)
        for number in range(1, rounds + 1):
            for processes in (1, _MANY):
                for contender in CONTENDERS:
                    note(f"rivals: round {number} of {rounds}, {processes} processes, {jobs:,} jobs: {contender.name}")
                    arena.work(contender, processes)
        for number in range(1, (1 if bench.quick else 3) + 1):
            for contender in CONTENDERS:
                if contender.jobs == 1:
                    note(f"rivals: an old snapshot, round {number}: {contender.name}")
                    arena.pin(contender)
        for contender in CONTENDERS:
            note(f"rivals: {singles} single jobs, from commit to handler: {contender.name}")
            arena.pick_up(contender, singles)
        versions = {contender.name: contender.version(packages) for contender in CONTENDERS}
    return [*_figures(arena.rates, versions), *_shares(arena.rates)]


_MOST_LOG = 1_000
"""What a leased job is to write to the log, in bytes."""

_UNITS = {
    "drain, 1": "jobs/s",
    f"drain, {_MANY}": "jobs/s",
    "bulk": "jobs/s",
    "one by one": "jobs/s",
    "pinned": "% of unpinned",
    "pick-up p50": "ms",
    "pick-up p99": "ms",
    "WAL": "bytes/job",
}


def _figures(rates: Rates, versions: dict[str, str]) -> list[Figure]:
    figures = []
    for what, unit in _UNITS.items():
        for contender in CONTENDERS:
            values = rates[what].get(contender.name)
            if values and (contender.bulk or what not in ("bulk", "one by one")):
                name = contender.name if contender.ours else f"{contender.name} ({versions[contender.name]})"
                aim = _MOST_LOG if what == "WAL" and contender.name == _LEASED else None
                at_most = what in ("WAL", "pick-up p50", "pick-up p99")
                figures.append(Figure(f"{what}: {name}", unit, values, COMMAND, at_most=at_most, aim=aim))
    return figures


def _shares(rates: Rates) -> list[Figure]:
    """The library's figures as percent of a rival's, round by round, with their floors and aims."""
    rows = [contender.name for contender in CONTENDERS if not contender.ours and not contender.name.startswith("bare")]
    figures = [
        _share(rates, "drain, 1", _LEASED, [_PGMQ], 70, 100),
        _share(rates, "drain, 1", _LEASED, ["graphile-worker"], 85, 100),
        _share(rates, "drain, 1", _TRANSACTIONAL, [_PGMQ], 120, 150),
    ]
    many = f"drain, {_MANY}"
    archiving = [name for name in rows if name != _PGMQ_DELETING]
    smaller = [name for name in archiving if name != _PGMQ_LARGE]
    figures += [
        _share(rates, many, _LEASED, smaller, 50, 100, but="pgmq by 1,000"),
        _share(rates, many, _TRANSACTIONAL, smaller, 80, 100, but="pgmq by 1,000"),
        # Where the library chooses the size of its batches, up to 500 jobs.
        _share(rates, many, _SIZED, smaller, 60, 100, but="pgmq by 1,000"),
        _share(rates, "drain, 1", _SIZED, [_PGMQ_LARGE], 50, 100),
        _share(rates, many, _SIZED, archiving, 40, 100, but="pgmq deleting"),
        _share(rates, many, _TRANSACTIONAL, archiving, 55, 100, but="pgmq deleting"),
    ]
    figures += [
        _share(rates, "bulk", _LEASED, rows, 150),
        _share(rates, "bulk", _LEASED, ["bare table, 1,000"], 30, 50),
        _share(rates, "one by one", _LEASED, [_PGMQ], 55, 100),
    ]
    return figures


def _share(
    rates: Rates, what: str, ours: str, theirs: list[str], floor: float, aim: float | None = None, *, but: str = ""
) -> Figure:
    """The library's share of the fastest of some contenders in each round.

    Args:
        but: the rivals that are not among them, in words.
    """
    others = [rates[what][name] for name in theirs]
    best = [max(values) for values in zip(*others, strict=True)]
    shares = [100 * mine / other for mine, other in zip(rates[what][ours], best, strict=True)]
    name = theirs[0] if len(theirs) == 1 else f"the best rival but {but}" if but else "the best rival"
    return Figure(f"{what}: {ours}, share of {name}", "%", shares, COMMAND, floor, aim=aim)


@contextmanager
def _database(bench: Bench, contender: Contender) -> Iterator[str]:
    """An empty database for a contender; gives its URL."""
    name = f"{bench.queue.database.schema}_{CONTENDERS.index(contender)}"
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_url(bench.url).set(database=name).render_as_string(hide_password=False)
    try:
        # Nothing is analysed or vacuumed: a queue that has just been filled is not, either.
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET client_min_messages = warning").format(sql.Identifier(name))
            )
        yield url
    finally:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
