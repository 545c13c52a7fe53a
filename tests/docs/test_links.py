"""Every file that a page names or links to is there."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "README.md", PROJECT / "benchmarks" / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")
_PATH = re.compile(r"`((?:dagster_sqlqueue|sql|tests|definitions|benchmarks|docs|deploy)/[\w./-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [page.parent / link for link in _LINK.findall(text)]
    named = [PROJECT / path for path in _PATH.findall(text)]
    assert [str(path.relative_to(PROJECT)) for path in (*links, *named) if not path.exists()] == []
