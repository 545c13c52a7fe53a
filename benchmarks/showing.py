"""Figures as a table."""

import os
import platform
from collections.abc import Sequence

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
    print_table(figures, machine_of(bench))


def print_table(figures: Sequence[Figure], machine: str) -> None:
    """Print figures as one table, with what they were measured on below it."""
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
