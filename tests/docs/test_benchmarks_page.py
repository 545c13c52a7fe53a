"""The page of the benchmarks says what was recorded."""

from pathlib import Path

import pytest

from benchmarks import marked, readme_table, spark_tables
from benchmarks.page import DOCS, PAGE, tables, text_of
from benchmarks.record import recorded


def test_the_page_is_what_was_recorded() -> None:
    assert PAGE.read_text(encoding="utf-8") == text_of(recorded())


def test_its_plots_are_there() -> None:
    named = [line.partition("](")[2].rstrip(")") for line in text_of(recorded()).splitlines() if line.startswith("![")]
    assert len(named) == 4
    assert [name for name in named if not (DOCS / name).exists()] == []


@pytest.mark.parametrize(
    "page", [readme_table.README, spark_tables.SIZING, spark_tables.FLOORS], ids=lambda page: page.name
)
def test_the_figures_on_other_pages_are_what_was_recorded(page: Path) -> None:
    assert marked.between(page) == tables(recorded())[page]
    assert marked.between(page).count("\n|") > 8


def test_every_floor_of_spark_is_in_the_table() -> None:
    found = marked.between(spark_tables.FLOORS)
    held = [
        figure
        for group in recorded()
        if group.name in (spark_tables.READ, spark_tables.CONSUME)
        for figure in group.figures
        if figure.floor is not None
    ]
    assert len(held) > 10
    assert found.count("| ≥ ") + found.count("| ≤ ") >= len(held)
