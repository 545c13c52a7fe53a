"""Figures as tables in a terminal."""

import os
import platform
from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Bench, Figure


def machine_of(bench: Bench) -> str:
    """What was measured on, in one line."""
    ((version, fsync, commit),) = bench.execute(
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
    )
    return (
        f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}; Python {platform.python_version()},"
        f" {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )


def show(figures: Sequence[Figure], bench: Bench) -> None:
    """Print the figures of one measurement, for a module that can be run by itself."""
    print_tables(figures, machine_of(bench))


def print_tables(figures: Sequence[Figure], machine: str) -> None:
    """Print figures as one table a command, with what they were measured on at the end."""
    console = Console()
    for command, group in groupby(figures, lambda figure: figure.command):
        table = Table(title=command, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("figure", min_width=20)
        for name in ("median", "lowest", "highest", "floor", "", "aim"):
            table.add_column(name, justify="right", no_wrap=True)
        for figure in group:
            verdict = "" if figure.floor is None else "[green]pass[/]" if figure.passed else "[bold red]FAIL[/]"
            table.add_row(
                figure.name,
                f"{number(figure.median)} {figure.unit}",
                number(min(figure.rounds)),
                number(max(figure.rounds)),
                "" if figure.floor is None else bound(figure.floor, figure),
                verdict,
                "" if figure.aim is None or figure.reached else bound(figure.aim, figure),
            )
        console.print(table)
    console.print(machine)
    if any(not figure.reached for figure in figures):
        console.print("aim: not reached. A floor that is missed is a failure, an aim is not.")


def bound(value: float, figure: Figure) -> str:
    """A floor or aim of a figure as people read it."""
    return f"{'≤' if figure.at_most else '≥'} {number(value)}"


def number(value: float) -> str:
    """A figure as people read it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
