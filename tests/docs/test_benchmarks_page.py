"""The page of the benchmarks says what was recorded."""

from benchmarks.page import DOCS, PAGE, text_of
from benchmarks.record import recorded


def test_the_page_is_what_was_recorded() -> None:
    assert PAGE.read_text(encoding="utf-8") == text_of(recorded())


def test_its_plots_are_there() -> None:
    named = [line.partition("](")[2].rstrip(")") for line in text_of(recorded()).splitlines() if line.startswith("![")]
    assert len(named) == 4
    assert [name for name in named if not (DOCS / name).exists()] == []
