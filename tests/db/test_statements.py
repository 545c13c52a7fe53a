"""Statements are found by their names alone, in whichever folder they are."""

import re
from collections import Counter
from pathlib import Path

import pytest

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
    return ["".join(re.sub(r"\b\w+\.(?:\w+ (#>>)|(day\b))", r"\1\2", day).split()) for day in found]


def test_the_day_of_a_job_is_the_same_expression_in_every_statement() -> None:
    # Each can be pasted into psql as it is, and so has a copy.
    texts = {name: statements.without_comments(statements.source(name)) for name in statements.names()}
    days = {name: _days(text) for name, text in texts.items() if ":day_path" in text}
    assert len(days) >= 7
    assert [name for name, found in days.items() if len(found) != 1] == []
    assert Counter(found[0] for found in days.values()).most_common()[1:] == []


_OMITTED = {
    "complete.sql": set(),
    "complete_held.sql": set(),
    "15_batches.sql": set(),
    # Succeeded without a result, failed or cancelled.
    "complete_plain.sql": {"result"},
    "cancel_waiting.sql": {"result"},
    "batch_succeed.sql": {"result"},
    "batch_move.sql": {"result"},
    "bury_spent.sql": {"result"},
    # Locked, so in no batch under a lease.
    "complete_locked.sql": {"batch_id"},
    "complete_plain_locked.sql": {"batch_id", "result"},
    # Packed: jobs with a unique key or a turn are not.
    "05_sealed.sql": {"unique_key", "unique_until_claim", "order_no", "result"},
}
"""For each file that inserts into the archive, the columns of a job that it leaves to their defaults."""


def test_every_statement_that_archives_jobs_writes_all_columns() -> None:
    texts = {
        str(file.relative_to(statements.folder())): statements.without_comments(file.read_text(encoding="utf-8"))
        for file in Path(str(statements.folder())).rglob("*.sql")
    }
    ((table,),) = [re.findall(r"CREATE TABLE sqlqueue\.job_archive \((.*?)\n\)", "".join(texts.values()), re.DOTALL)]
    columns = re.findall(r"^    ([a-z_]+) +(?!KEY)[a-z0-9\[\]]+", table, re.MULTILINE)
    assert columns[:4] == ["id", "queue", "bucket", "priority"]
    assert columns[-2:] == ["result", "error"]
    omitted = {}
    for path, text in texts.items():
        for listed in re.findall(r"INSERT INTO sqlqueue\.job_archive\s*\(([^)]*)\)", text):
            names = [name.strip() for name in listed.split(",")]
            assert names == [column for column in columns if column in names], path
            assert path.rpartition("/")[2] not in omitted, path
            omitted[path.rpartition("/")[2]] = {*columns} - {*names} - {"ended_in"}
    assert omitted == _OMITTED


_SEARCH = re.compile(
    r"FROM sqlqueue\.job AS j\s+(WHERE (?:(?!FROM ).)*?LIMIT \S+(?:\s+FOR UPDATE SKIP LOCKED)?)", re.DOTALL
)


def _searches(name: str) -> list[str]:
    """Each search for jobs of a statement, without its white space."""
    text = statements.without_comments(statements.source(name))
    return [" ".join(found.split()) for found in _SEARCH.findall(text)]


@pytest.mark.parametrize(("strategy", "count"), [("round_robin", 1), ("fanout", 4)])
def test_a_claim_searches_as_the_pick_of_its_strategy_does(strategy: str, count: int) -> None:
    searches = _searches(f"claim_{strategy}")
    assert len(searches) == count
    assert searches == _searches(f"pick_{strategy}")
