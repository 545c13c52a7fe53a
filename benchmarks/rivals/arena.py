"""Where contenders are measured: a database for each, and processes that are started for each measurement."""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from benchmarks.harness import Bench, Figure
from benchmarks.rivals.contenders import CONTENDERS, Contender
from benchmarks.rivals.crew import Crew, crew
from benchmarks.rivals.node_packages import Packages

MANY = 4
_WARM_UP = 2_000

Rates = dict[str, dict[str, list[float]]]
"""The rounds' values by what was measured, and by contender."""


class Arena:
    """Databases of contenders, and what was measured.

    Attributes:
        rates: what was measured.
    """

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

    def work_off(self, contender: Contender) -> None:
        """One round of working off what was enqueued, by several processes."""
        jobs = self._of(contender)
        with self._warm(contender, MANY) as workers:
            workers.first("clear")
            workers.first("bulk", jobs=jobs)
            self._bench.checkpoint()
            self._note(f"drain, {MANY}", contender, workers.drain(jobs))
            # Nobody else's round is beside the vacuum of so many rows.
            workers.first("clear")

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


@contextmanager
def arena(bench: Bench, packages: Packages, contenders: Sequence[Contender], jobs: int) -> Iterator[Arena]:
    """An arena of so many jobs a round, in which the tables of each contender are there."""
    with ExitStack() as stack:
        urls = {contender.name: stack.enter_context(_database(bench, contender)) for contender in contenders}
        for contender in contenders:
            with crew(contender, urls[contender.name], 1, packages) as workers:
                workers.first("setup")
        yield Arena(bench, packages, urls, jobs)


def share(
    rates: Rates,
    what: str,
    ours: str,
    theirs: Sequence[str],
    floor: float,
    aim: float | None = None,
    *,
    command: str,
    but: str = "",
) -> Figure:
    """The library's share of the fastest of some contenders in each round.

    Args:
        but: the rivals that are not among them, in words.
    """
    others = [rates[what][name] for name in theirs]
    best = [max(values) for values in zip(*others, strict=True)]
    shares = [100 * mine / other for mine, other in zip(rates[what][ours], best, strict=True)]
    name = theirs[0] if len(theirs) == 1 else f"the best rival but {but}" if but else "the best rival"
    return Figure(f"{what}: {ours}, share of {name}", "%", shares, command, floor, aim=aim)


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
