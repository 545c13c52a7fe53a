"""Results for people and for programs. What came out of the database is never taken as markup or as terminal codes."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagster_sqlqueue import display

_PIPED_WIDTH = 180
_CUT = {"keys", "error", "payload"}
"""Columns that are cut where the terminal ends: a job is one line, and `show` has the rest."""
_FOLDED = {"found", "what to do", "because", "limits"}
"""Columns that go on in the next line; all others are never broken."""


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def emit_json(value: object) -> None:
    """To standard output. Every character beyond ASCII is escaped, so that no encoding and no terminal can stumble."""
    sys.stdout.write(json.dumps(value, indent=2, default=plain) + "\n")


def say(line: str | Text = "") -> None:
    """One line to standard output."""
    console().print(line, markup=False, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table to standard output."""
    console().print(grid(columns, rows, right=right))


def grid(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> Table:
    """A table; cells are text, never markup, unless they are `Text` already. Columns without any text are left out."""
    cells = [[cell if isinstance(cell, Text) else Text(display.printable(str(cell))) for cell in row] for row in rows]
    shown = [place for place in range(len(columns)) if not cells or any(row[place].plain for row in cells)]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place in shown:
        name = columns[place]
        side: Any = "right" if name in right else "left"
        drawn.add_column(name, justify=side, overflow="fold", no_wrap=name not in _CUT | _FOLDED)
    for row in cells:
        for place in shown:
            if columns[place] in _CUT:
                row[place].no_wrap, row[place].overflow = True, "ellipsis"
        drawn.add_row(*(row[place] for place in shown))
    return drawn


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line, to standard output."""
    console().print(names_and_values(rows))


def names_and_values(rows: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one a line; values are text, never markup, unless they are `Text` already."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in rows:
        drawn.add_row(
            f"  {name}", value if isinstance(value, Text) else Text(display.printable(str(value), lines=True))
        )
    return drawn


def console() -> Console:
    """Standard output as it is now."""
    out = _Output(file=sys.stdout, highlight=False)
    return out if out.is_terminal else _Output(file=sys.stdout, highlight=False, width=_PIPED_WIDTH)


def plain(value: object) -> object:
    """A value that JSON lacks, as text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
