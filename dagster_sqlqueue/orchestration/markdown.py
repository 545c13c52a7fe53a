"""Markdown for the UI. Values from the database are escaped, never taken as markup. No I/O."""

import re
from collections.abc import Callable, Iterable, Sequence

from dagster_sqlqueue import display

SHOWN = 50
"""The most rows of a table: Dagster reads metadata whole with each read of the event."""

INLINE = 999
"""The longest Markdown that an asset's page shows at once; what is longer is a link there. Pages of runs and checks always
show a link."""

_MARKUP = re.compile(r"([\\`*_\[\]<>~|&!])")


def cell(value: object, limit: int = 80) -> str:
    """Write a value as a cell, on one line, cut to `limit` characters, with markup escaped."""
    return _MARKUP.sub(r"\\\1", display.shortened(str(value), limit))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], wide: int = 80) -> str:
    """Write a table; values in the last column are cut to `wide` characters, the others to 80."""
    limits = [80] * (len(head) - 1) + [wide]
    body = ([cell(value, limit) for value, limit in zip(row, limits, strict=True)] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


def most_inline(number: int, written: Callable[[int], str]) -> str:
    """Write as many of a number of rows as fit into INLINE characters, at least one.

    Args:
        number: how many rows there are, 1 at least.
        written: writes the first rows, given how many.
    """
    texts = (written(rows) for rows in range(number, 0, -1))
    return next((text for text in texts if len(text) <= INLINE), None) or written(1)


def fenced(text: str, language: str = "", limit: int = 10_000) -> str:
    """Write a text as a code block, without its middle if it is longer than `limit` characters."""
    text = display.printable(text.strip("\n"), lines=True)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def first_of(number: int, what: str) -> str:
    """Write the total below a table that shows the first rows; empty if it shows all."""
    return f"\n\nThe first {SHOWN} of {number:,} {what}." if number > SHOWN else ""
