"""Spark's figures on the pages where they are looked for, between two marks: rates where sizes are estimated, and what is
held to a floor or an aim.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.record import Group
from benchmarks.showing import measured, number, table

PROJECT = Path(__file__).resolve().parents[1]
SIZING, FLOORS = PROJECT / "docs" / "spark_cluster.md", PROJECT / "benchmarks" / "README.md"
READ, CONSUME = "spark_read", "spark_consume"
_OF_ROWS = re.compile(r"([\d,]+) (?:rows|jobs)[:,] ?(.*)")
_READS = {"whole rows": "read: whole rows", "typed fields": "read: two typed fields"}


def tables(groups: Iterable[Group]) -> dict[Path, str]:
    """The text between the marks of each page."""
    spark = {group.name: group for group in groups if group.name in (READ, CONSUME)}
    return {SIZING: _rates(spark[READ], spark[CONSUME]), FLOORS: _held([spark[READ], spark[CONSUME]])}


def _rates(read: Group, consume: Group) -> str:
    lines = [measured(read), "", measured(consume), "", "| what | rows | a second |", "| --- | ---: | ---: |"]
    for figure in read.figures:
        size, what = _sized(figure)
        if what in _READS:
            lines.append(f"| {_READS[what]} | {size} | {number(figure.median)} |")
    size = ""
    for figure in consume.figures:
        name = figure.name.strip()
        if name.startswith("consumed by Spark"):
            lines.append(f"| {name} | {size} | {number(figure.median)} |")
        else:
            size = _sized(figure)[0] or size
    return "\n".join(["", *lines, "", ""])


def _held(groups: Sequence[Group]) -> str:
    lines = []
    for group in groups:
        of, held = "", []
        for figure in group.figures:
            size, _ = _sized(figure)
            of = size or of
            if figure.floor is not None or figure.aim is not None:
                held.append(figure if size else replace(figure, name=f"{of} jobs: {figure.name.strip()}"))
        lines += ["", measured(group), "", *table(held)]
    return "\n".join([*lines, "", ""])


def _sized(figure: Figure) -> tuple[str, str]:
    """How many rows a figure is of, and of what; empty where its name does not say."""
    found = _OF_ROWS.fullmatch(figure.name.strip())
    return (found[1], found[2]) if found else ("", "")
