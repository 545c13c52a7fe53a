"""Measure, print one table, and fail when a floor is missed."""

import argparse
import os
import platform
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import (
    batches,
    claim_cost,
    dagster_runs,
    drain,
    ended_in,
    enqueue,
    followers,
    functions,
    limits,
    pinned,
    rivals,
    sensor_tick,
    spark_consume,
    spark_read,
    wake,
)
from benchmarks.harness import Bench, Figure, opened
from dagster_sqlqueue.errors import QueueError

SUITE = {
    "enqueue": enqueue.measure,
    "drain": drain.measure,
    "functions": functions.measure,
    "rivals": rivals.measure,
    "limits": limits.measure,
    "pinned": pinned.measure,
    "wake": wake.measure,
    "followers": followers.measure,
    "sensor_tick": sensor_tick.measure,
    "dagster_runs": dagster_runs.measure,
    "spark_consume": spark_consume.measure,
    "claim_cost": claim_cost.measure,
    "batches": batches.measure,
    "ended_in": ended_in.measure,
    "spark_read": spark_read.measure,
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
    given = parser.parse_args(arguments)
    if unknown := [name for name in (*given.only, *given.without) if name not in SUITE]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(SUITE)}")
    wanted = [name for name in given.only or SUITE if name not in given.without]
    try:
        with opened(given.quick, given.rows) as bench:
            machine = _machine(bench)
            figures = [figure for name in wanted for figure in SUITE[name](bench)]
    except QueueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    _print(figures, machine + (", quick: for a look only" if given.quick else ""))
    return 0 if all(figure.passed for figure in figures) else 1


def _machine(bench: Bench) -> str:
    ((version, fsync, commit),) = bench.execute(
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
    )
    return (
        f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}; Python {platform.python_version()},"
        f" {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )


def show(figures: Sequence[Figure], bench: Bench) -> None:
    """Print the figures of one measurement, for a module that can be run by itself."""
    _print(figures, _machine(bench))


def _print(figures: Sequence[Figure], machine: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, caption=machine, caption_justify="left", pad_edge=False)
    for name in ("figure", "median", "lowest", "highest", "floor"):
        table.add_column(name, justify="left" if name == "figure" else "right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("command", no_wrap=True)
    for figure in figures:
        bound = "≤" if figure.at_most else "≥"
        verdict = "" if figure.floor is None else "[green]pass[/]" if figure.passed else "[bold red]FAIL[/]"
        table.add_row(
            figure.name,
            f"{_number(figure.median)} {figure.unit}",
            _number(min(figure.rounds)),
            _number(max(figure.rounds)),
            "" if figure.floor is None else f"{bound} {_number(figure.floor)} {figure.unit}",
            verdict,
            figure.command,
        )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
