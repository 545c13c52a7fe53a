"""A queue consumed by Spark: seal, read, aggregate, publish, beside one SQL statement that deletes and inserts the rows.

The statement reads nothing for anybody, aggregates nothing and fences nobody: it is what the database needs at least.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks.batches import plain
from benchmarks.harness import SPEC, Bench, Figure, note, opened, rounds
from benchmarks.loading import load
from benchmarks.memory import peak
from benchmarks.showing import show
from dagster_sqlqueue import Mode
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.session import SparkSettings, open_spark

COMMAND = "python -m benchmarks spark_consume"
JOBS = (250_000, 1_000_000)
_COLUMNS = {
    "account": {"path": "payload.account"},
    "amount": {"path": "payload.amount", "type": "double"},
}


def measure(bench: Bench) -> list[Figure]:
    """The figures of each number of jobs: of few, a second or less is Spark's, whatever the queue does."""
    if bench.quick:
        return figures(bench, 20_000, 1)
    return [figure for jobs in JOBS for figure in figures(bench, jobs, 3)]


def figures(bench: Bench, jobs: int, count: int) -> list[Figure]:
    """Jobs a second of each way, and the shares of the plain statement."""
    note(f"spark_consume: rounds of {jobs:,} jobs, in both modes, in turns with one SQL statement")
    peaks: list[float] = []
    logs: dict[Mode | str | None, list[float]] = defaultdict(list)

    def timed(way: Mode | str | None, work: Callable[[], None]) -> float:
        bench.empty()
        load(bench, jobs)
        bench.settle()
        log, began = bench.wal_position(), time.perf_counter()
        work()
        rate = jobs / (time.perf_counter() - began)
        logs[way].append((bench.wal_position() - log) / jobs)
        return rate

    with open_spark(SparkSettings(app_name="benchmarks")) as spark:

        def consumed(mode: Mode | None) -> float:
            with peak() as most:
                rate = timed(mode, lambda: _consume(bench, spark, jobs, mode))
            peaks.append(most())
            return rate

        beside, held, leased, sql = rounds(
            count,
            lambda: consumed(None),
            lambda: consumed(Mode.TRANSACTIONAL),
            lambda: consumed(Mode.LEASED),
            lambda: timed("sql", lambda: plain(bench, jobs)),
        )
    found = [Figure(f"{jobs:,} jobs, delete and insert in SQL", "jobs/s", sql, COMMAND)]
    for name, mode, rates in (
        ("no mode given: transactional, moved while Spark reads", None, beside),
        ("transactional", Mode.TRANSACTIONAL, held),
        ("leased", Mode.LEASED, leased),
    ):
        # The default is what the library is held to.
        floor, aim, most = (50.0, 60.0, 130.0) if mode is None else (None, None, None)
        shares = [100 * one / best for one, best in zip(rates, sql, strict=True)]
        found.append(Figure(f"  consumed by Spark, {name}", "jobs/s", rates, COMMAND))
        found.append(Figure("    share of the SQL", "%", shares, COMMAND, floor, aim=aim))
        written = [100 * one / least for one, least in zip(logs[mode], logs["sql"], strict=True)]
        found.append(Figure("    log, share of the SQL's", "%", written, COMMAND, floor=most, at_most=True))
    found.append(Figure("  peak memory, driver and Spark", "MB", [statistics.median(peaks), max(peaks)], COMMAND))
    return found


def _consume(bench: Bench, spark: SparkSession, jobs: int, mode: Mode | None) -> None:
    table = f"{bench.queue.database.schema}.spark_totals"
    with consume(bench.queue, spark, SPEC.name, key="bench", mode=mode, lease_seconds=600) as work:
        assert work.batch.mode is (mode or Mode.TRANSACTIONAL)
        totals = (
            work.jobs(_COLUMNS).groupBy("account").agg(sf.count("*").alias("jobs"), sf.sum("amount").alias("amount"))
        )
        work.write_sql(totals, table)
    assert work.job_count == jobs, work
    ((counted,),) = bench.execute("SELECT CAST(sum(jobs) AS bigint) FROM {s}.spark_totals")
    assert counted == jobs, counted
    bench.execute("DROP TABLE {s}.spark_totals")


if __name__ == "__main__":
    with opened(quick=False) as single:
        show(figures(single, int(sys.argv[1]), 3) if len(sys.argv) > 1 else measure(single), single)
