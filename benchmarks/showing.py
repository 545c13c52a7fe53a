"""Figures as tables, in a terminal and in Markdown."""

import os
import platform
from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Bench, Figure
from benchmarks.record import Group


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
    """Print figures as one table, a part of it for each command, with what they were measured on at the end."""
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", min_width=20)
    for name in ("median", "lowest", "highest", "floor"):
        table.add_column(name, justify="right", no_wrap=True)
    for command, group in groupby(figures, lambda figure: figure.command):
        table.add_section()
        table.add_row(f"[italic]{command}[/]")
        for figure in group:
            held = "" if figure.floor is None else bound(figure.floor, figure)
            table.add_row(
                figure.name,
                f"{number(figure.median)} {figure.unit}",
                number(min(figure.rounds)),
                number(max(figure.rounds)),
                held if figure.passed else f"[bold red]{held} ✗[/]",
            )
    console.print(table)
    console.print(machine)
    missed = [(figure, figure.floor) for figure in figures if figure.floor is not None and not figure.passed]
    _print_list(console, "[bold red]Floors missed[/]", "floor", missed)
    short = [(figure, figure.aim) for figure in figures if figure.aim is not None and not figure.reached]
    _print_list(console, "Aims not reached", "aim", short)


def _print_list(console: Console, title: str, kind: str, figures: Sequence[tuple[Figure, float]]) -> None:
    if figures:
        console.print(f"\n{title}:")
    for figure, held in figures:
        console.print(f"  {figure.name.strip()}: {number(figure.median)} {figure.unit} ({kind} {bound(held, figure)})")


def bound(value: float, figure: Figure) -> str:
    """A floor or aim of a figure as people read it."""
    return f"{'≤' if figure.at_most else '≥'} {number(value)}"


def number(value: float) -> str:
    """A figure as people read it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def measured(group: Group) -> str:
    """How, when and on what a group was measured."""
    return f"`python -m benchmarks {group.name}`, {group.date}: {group.machine}."


def table(figures: Sequence[Figure]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| figure | median | lowest | highest | floor | aim |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for figure in figures:
        floor = "" if figure.floor is None else bound(figure.floor, figure)
        aim = "" if figure.aim is None else bound(figure.aim, figure)
        lines.append(
            f"| {figure.name.strip()} | {number(figure.median)} {figure.unit} | {number(min(figure.rounds))} |"
            f" {number(max(figure.rounds))} | {floor}{'' if figure.passed else ', **missed**'} |"
            f" {aim}{'' if figure.reached else ', **not reached**'} |"
        )
    return lines
