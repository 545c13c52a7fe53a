"""The part of a page between two marks: it is made of what was recorded."""

import re
from pathlib import Path

_BEGIN, _END = "<!-- figures, written by python -m benchmarks.page -->", "<!-- end of the figures -->"
_BETWEEN = re.compile(f"(?<={re.escape(_BEGIN)}\n).*(?={re.escape(_END)})", re.DOTALL)


def between(page: Path) -> str:
    """What a page has between its marks."""
    (found,) = _BETWEEN.findall(page.read_text(encoding="utf-8"))
    return str(found)


def replace(page: Path, text: str) -> None:
    """Replace what a page has between its marks."""
    before, _, after = page.read_text(encoding="utf-8").partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}\n{text}{_END}{after.partition(_END)[2]}", encoding="utf-8")
