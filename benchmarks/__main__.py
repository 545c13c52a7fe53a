"""Measure, print one table, and fail when a floor is missed."""

import argparse
import random
import sys
import time
from collections.abc import Sequence

from benchmarks import (
    batches,
    claim_cost,
    conditions,
    consumer,
    dagster_kills,
    dagster_runs,
    drain,
    ended_in,
    enqueue,
    followers,
    functions,
    limits,
    page,
    pinned,
    profile,
    rivals,
    sensor_tick,
    spark_consume,
    spark_read,
    wake,
)
from benchmarks.harness import note, opened
from benchmarks.record import record
from benchmarks.showing import machine_of, print_table
from dagster_sqlqueue.errors import QueueError

SUITE = {
    "enqueue": enqueue.measure,
    "drain": drain.measure,
    "consumer": consumer.measure,
    "conditions": conditions.measure,
    "functions": functions.measure,
    "rivals": rivals.measure,
    "backlog": rivals.backlog.measure,
    "limits": limits.measure,
    "pinned": pinned.measure,
    "wake": wake.measure,
    "followers": followers.measure,
    "sensor_tick": sensor_tick.measure,
    "dagster_runs": dagster_runs.measure,
    "dagster_kills": dagster_kills.measure,
    "spark_consume": spark_consume.measure,
    "claim_cost": claim_cost.measure,
    "batches": batches.measure,
    "ended_in": ended_in.measure,
    "spark_read": spark_read.measure,
    "profile": profile.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every floor is reached, 1 when one is missed, 3 when the database is not available."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the library on an embedded server in a temporary directory, or in a schema of its own on the"
        " server of SQLQUEUE_URL. Exit code 1: a floor is missed.",
    )
    parser.add_argument("only", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(SUITE)}; else all")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="leave this one out; may be given several times"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds: to see that it runs")
    parser.add_argument(
        "--rows",
        action="append",
        default=[],
        type=int,
        metavar="N",
        help="spark_read: so many; may be given several times",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep the figures in benchmarks/measured.json and write docs/benchmarks.md",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(2**31),
        metavar="N",
        help="of the pauses between single jobs; it is printed (ids are random without it)",
    )
    given = parser.parse_args(arguments)
    if given.record and given.quick:
        parser.error("--record keeps figures, and those of --quick are only for a look: give one of both")
    if unknown := [name for name in (*given.only, *given.without) if name not in SUITE]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(SUITE)}")
    random.seed(given.seed)
    wanted = [name for name in given.only or SUITE if name not in given.without]
    try:
        with opened(given.quick, given.rows) as bench:
            machine = machine_of(bench)
            figures = []
            for name in wanted:
                began = time.monotonic()
                measured = SUITE[name](bench)
                note(f"{name}: {(time.monotonic() - began) / 60:.1f} min")
                figures += measured
                if given.record:
                    record(name, machine, measured)
    except QueueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    if given.record:
        page.write()
    print_table(figures, f"{machine}; seed {given.seed}{', quick: for a look only' if given.quick else ''}")
    return 0 if all(figure.passed for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
