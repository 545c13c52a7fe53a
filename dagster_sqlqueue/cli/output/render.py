"""Results for people and for programs. Text from the database is never interpreted as markup or as terminal codes."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.output.grid import Grid

_PIPED_WIDTH = 180


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def emit_json(value: object) -> None:
    """Print JSON to standard output. All characters beyond ASCII are escaped, so that any encoding and any terminal can show
    it.
    """
    sys.stdout.write(json.dumps(value, indent=2, default=plain) + "\n")


def say(line: str | Text = "") -> None:
    """Print one line to standard output."""
    console().print(line, markup=False, highlight=False, soft_wrap=True)


def note(line: str) -> None:
    """Print one line to standard error, apart from the output."""
    sys.stderr.write(f"{display.printable(line)}\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Print a table to standard output."""
    console().print(grid(columns, rows, right=right))


def grid(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> Grid:
    """Return a table; cells are text, never markup, unless they are `Text` already. Columns that are empty in all rows are
    left out.
    """
    cells = [[cell if isinstance(cell, Text) else Text(display.printable(str(cell))) for cell in row] for row in rows]
    shown = [place for place in range(len(columns)) if not cells or any(row[place].plain for row in cells)]
    return Grid([columns[place] for place in shown], [[row[place] for place in shown] for row in cells], right)


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line, to standard output."""
    console().print(names_and_values(rows))


def names_and_values(rows: Iterable[tuple[str, object]]) -> Table:
    """Return names and values, one per line; values are text, never markup, unless they are `Text` already."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in rows:
        drawn.add_row(
            f"  {name}", value if isinstance(value, Text) else Text(display.printable(str(value), lines=True))
        )
    return drawn


def console() -> Console:
    """Return standard output as it is now."""
    out = _Output(file=sys.stdout, highlight=False)
    return out if out.is_terminal else _Output(file=sys.stdout, highlight=False, width=_PIPED_WIDTH)


def plain(value: object) -> object:
    """Return a value that JSON does not have, as text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
