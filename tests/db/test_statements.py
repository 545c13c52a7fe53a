"""Statements are found by their names alone, in whichever folder they are."""

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
