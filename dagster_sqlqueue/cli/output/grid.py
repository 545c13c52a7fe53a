"""A table that truncates no id or number in a narrow terminal: columns that do not fit are printed below each row."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_CUT = {"keys", "error", "payload"}
"""Columns that are truncated at the edge of the terminal: a job is one line, and `show` prints the rest."""
_FOLDED = {"found", "what to do", "because", "limits"}
"""Columns that continue on the next line; all others are never broken."""
_READABLE = 20
"""Cells: a column that may be truncated or folded is not narrower than this, unless its content is."""
_BESIDE = 2
"""Cells between the columns of a table, and at its edges; in lines that were made to fit, one."""
_INDENT = 2


class Grid:
    """A table whose ids and numbers are never truncated.

    If the terminal is too narrow for it, the first columns stay beside each other, and the others follow below each row,
    with their names and in full.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Text]], right: Sequence[str]) -> None:
        self._columns = columns
        self._rows = rows
        self._right = right
        self._widths = [max([len(name), *(row[place].cell_len for row in rows)]) for place, name in enumerate(columns)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what `rich` draws: a table, or lines that fit."""
        if self._fits(options.max_width):
            yield self._table()
        else:
            yield from self._lines(options.max_width)

    def _fits(self, width: int) -> bool:
        least = [
            min(own, _READABLE) if name in _CUT | _FOLDED else own
            for name, own in zip(self._columns, self._widths, strict=True)
        ]
        return sum(least) + _BESIDE * len(least) <= width

    def _table(self) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in self._columns:
            drawn.add_column(name, justify=self._side(name), overflow="fold", no_wrap=name not in _CUT | _FOLDED)
        for row in self._rows:
            for name, cell in zip(self._columns, row, strict=True):
                if name in _CUT:
                    cell.no_wrap, cell.overflow = True, "ellipsis"
            drawn.add_row(*row)
        return drawn

    def _lines(self, width: int) -> Iterator[Any]:
        beside = self._beside(width)
        below = [place for place in range(len(self._columns)) if place not in beside]
        yield Text()
        yield self._line(beside, [Text(name, style="bold") for name in self._columns], width)
        yield Text("─" * min(width, sum(self._widths[place] + 1 for place in beside) - 1))
        for row in self._rows:
            yield self._line(beside, row, width)
            named = [
                Text.assemble((f"{self._columns[place]} ", "dim"), row[place]) for place in below if row[place].plain
            ]
            for line in _filled(named, width - _INDENT):
                yield Padding(line, (0, 0, 0, _INDENT), expand=False)
        yield Text()

    def _beside(self, width: int) -> list[int]:
        """Return the first of the columns that are never broken: as many as fit, and at least one."""
        whole = [place for place, name in enumerate(self._columns) if name not in _CUT | _FOLDED] or [0]
        found, used = whole[:1], self._widths[whole[0]]
        for place in whole[1:]:
            used += 1 + self._widths[place]
            if used > width:
                break
            found.append(place)
        return found

    def _line(self, places: Sequence[int], cells: Sequence[Text], width: int) -> Table:
        drawn = Table.grid(padding=(0, 1, 0, 0))
        for place in places:
            name, own = self._columns[place], self._widths[place]
            drawn.add_column(justify=self._side(name), overflow="fold", width=min(own, width))
        drawn.add_row(*(cells[place] for place in places))
        return drawn

    def _side(self, name: str) -> Any:
        return "right" if name in self._right else "left"


def _filled(parts: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield the parts, as many per line as fit."""
    line = Text()
    for part in parts:
        if line and line.cell_len + 2 + part.cell_len > width:
            yield line
            line = Text()
        line = Text("  ").join([line, part]) if line else part
    if line:
        yield line
