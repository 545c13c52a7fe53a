"""What the library costs, as the README shows it."""

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.harness import Figure
from benchmarks.record import Group
from benchmarks.showing import number
from benchmarks.spark_tables import PROJECT

README = PROJECT / "README.md"


class _Figures:
    """The figures that were recorded, by group and name."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._groups: Mapping[str, list[Figure]] = {group.name: list(group.figures) for group in groups}

    def value(self, group: str, name: str, after: int = 0) -> str:
        """A median as people read it.

        Args:
            group: the group's name.
            name: of a figure.
            after: how many figures behind that one: those that belong to it have names that others have too.
        """
        median = self._median(group, name, after)
        return f"{median:.1f}" if 1 <= median < 10 else number(median)

    def percent(self, group: str, name: str, after: int = 0) -> str:
        """A median as a whole number; arguments as for `value`."""
        return f"{self._median(group, name, after):.0f}"

    def seconds(self, group: str, name: str) -> str:
        """A median of milliseconds, in seconds; arguments as for `value`."""
        return f"{self._median(group, name, 0) / 1_000:.1f}"

    def _median(self, group: str, name: str, after: int) -> float:
        figures = self._groups.get(group, [])
        places = [place for place, figure in enumerate(figures) if figure.name.strip() == name]
        if not places:
            raise SystemExit(f"no figure {name!r} is recorded: python -m benchmarks --record {group}")
        return figures[places[0] + after].median


def text_of(groups: Iterable[Group]) -> str:
    """The table.

    Raises:
        SystemExit: a figure was not recorded; the message names it and its group.
    """
    figures = _Figures(groups)
    lines = ["| | measured |", "| --- | --- |", *(f"| {what} | {found} |" for what, found in _rows(figures))]
    return "\n".join(["", *lines, "", ""])


def _rows(figures: _Figures) -> Iterator[tuple[str, str]]:
    value, percent = figures.value, figures.percent
    yield "bulk enqueue, payloads validated", f"{value('enqueue', 'enqueue, bulk')} jobs/s"
    yield (
        "one by one, against a bare psycopg `INSERT` and commit in the same run",
        f"{percent('enqueue', 'share of INSERT + commit()')} %",
    )
    one = "drain, no-op handler, one process"
    yield (
        "drain through the library, batches of 100, one process",
        f"{value('drain', one)} jobs/s, {percent('drain', one, 2)} % of the same SQL driven by pgbench",
    )
    leased, transactional, sized = "ours, leased, 100", "ours, transactional, 100", "ours, leased"
    same, large = "share of pgmq, archive, 100", "share of pgmq, archive, 1,000"
    small, any_size = "share of the best rival but pgmq by 1,000", "share of the best rival but pgmq deleting"
    yield (
        "a drain beside pgmq's read and archive, which have no fence, both in batches of 100: leased, and transactional",
        f"{percent('rivals', f'drain, 1: {leased}, {same}')} and"
        f" {percent('rivals', f'drain, 1: {transactional}, {same}')} %",
    )
    yield (
        "the same by four processes, beside the fastest of five queues, with pgmq in batches of 100; leased with no batch"
        " size given",
        f"{percent('rivals', f'drain, 4: {leased}, {small}')} and"
        f" {percent('rivals', f'drain, 4: {transactional}, {small}')} %;"
        f" {percent('rivals', f'drain, 4: {sized}, {small}')} %",
    )
    yield (
        "beside pgmq in batches of 1,000: leased with no batch size given, by one process and by four; transactional in"
        " batches of 100, by four",
        f"{percent('rivals', f'drain, 1: {sized}, {large}')} and {percent('rivals', f'drain, 4: {sized}, {any_size}')} %;"
        f" {percent('rivals', f'drain, 4: {transactional}, {any_size}')} %",
    )
    yield (
        "a drain in batches of 100 while an old snapshot keeps 200,000 dead rows, two processes",
        f"{percent('pinned', 'pinned, share of unpinned')} % of the rate without; where claims begin at the start,"
        f" {percent('pinned', 'without hints, share of unpinned')} %",
    )
    commit = "pick-up from the commit, notified, p50"
    yield (
        "from commit to the handler's first line, an idle consumer",
        f"{value('wake', commit)} ms, p99 {value('wake', commit, 1)} ms",
    )
    fewer, more = "250,000 jobs, delete and insert in SQL", "1,000,000 jobs, delete and insert in SQL"
    yield (
        "250,000 and 1,000,000 jobs consumed with Spark, against one SQL statement that moves them",
        f"{percent('spark_consume', fewer, 2)} and {percent('spark_consume', more, 2)} %",
    )
    with_sqlite, with_postgresql = (
        f"the whole tick in a real daemon, {storage}, runs at work" for storage in ("SQLite", "PostgreSQL")
    )
    yield (
        "a sensor's whole tick, with 1,000,000 jobs queued in 64 buckets",
        f"{value('sensor_tick', 'the whole tick in this process, runs at work')} ms, of which reading the heads is"
        f" {value('sensor_tick', 'what a tick reads, 64 buckets, 1,000,000 jobs')} ms; in a daemon with SQLite"
        f" {value('sensor_tick', with_sqlite)} ms, where a sensor that does nothing takes"
        f" {value('sensor_tick', with_sqlite, 1)} ms; with PostgreSQL as Dagster's storage"
        f" {value('sensor_tick', with_postgresql)} and {value('sensor_tick', with_postgresql, 1)} ms",
    )
    idle, lingering = "pick-up by an idle batch consumer, p50", "pick-up by an idle linger consumer, p50"
    yield (
        "a job that finds its queue idle, from commit to the handler's first line",
        f"{figures.seconds('dagster_runs', idle)} s with `batch` runs, {figures.seconds('dagster_runs', lingering)} s with"
        " `linger`: the daemon's interval, and a run's start",
    )
    standing, lingers = "pick-up by a standing run, p50", "pick-up by a lingering run, p50"
    yield (
        "the same with a standing run, or one that lingers",
        f"{value('dagster_runs', standing)} and {value('dagster_runs', lingers)} ms, p99"
        f" {value('dagster_runs', standing, 1)} and {value('dagster_runs', lingers, 1)} ms",
    )
    killed = "jobs of a killed run, from the lease's end to the handler"
    yield "the jobs of a run that was killed, from the end of their lease", f"{value('dagster_kills', killed)} s"
    yield (
        "a run of 50,000 jobs, from request to end",
        f"{value('dagster_runs', 'jobs per run-second, 50,000 jobs, one run')} jobs for each second of its life",
    )
