"""Statements are found by their names alone, in whichever folder they are."""

import re
from collections import Counter

from dagster_sqlqueue.db import statements


def _files() -> list[str]:
    """Every file that is a statement, wherever it is."""
    families = [entry for entry in statements.folder().iterdir() if entry.name not in {"api", "migrations"}]
    assert all(family.is_dir() for family in families)
    return [file.name for family in families for file in family.iterdir()]


def test_no_two_statements_share_a_name() -> None:
    files = _files()
    assert len(files) > 200
    assert [name for name, times in Counter(files).items() if times > 1] == []
    assert sorted(name.removesuffix(".sql") for name in files) == statements.names()


def _days(text: str) -> list[str]:
    """Each expression for the day of a job in a statement, without the names of its tables and its white space."""
    found = re.findall(r"WHEN :zoned THEN.*?END AS day\b", text, re.DOTALL)
    return ["".join(re.sub(r"\b\w+\.\w+ #>>", "#>>", day).split()) for day in found]


def test_the_day_of_a_job_is_the_same_expression_in_every_statement() -> None:
    # Each can be pasted into psql as it is, and so has a copy.
    texts = {name: statements.without_comments(statements.source(name)) for name in statements.names()}
    days = {name: _days(text) for name, text in texts.items() if ":day_path" in text}
    assert len(days) >= 7
    assert [name for name, found in days.items() if len(found) != 1] == []
    assert Counter(found[0] for found in days.values()).most_common()[1:] == []
