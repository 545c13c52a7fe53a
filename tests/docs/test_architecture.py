"""Every file, function and statement that the page on the architecture names is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
_PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
_WAY = _PAGE.partition("## The way of a job")[2].partition("\n## ")[0]
_ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in _WAY.splitlines() if line.startswith("|")][
    2:
]
_FILE = re.compile(r"`([\w/]+\.py)`(?: \(([^)]*)\))?")
_FOLDER_OR_SQL = re.compile(r"`([\w/]+(?:/|\.sql))`")
_CHANGES = _PAGE.partition("## Where do I change")[2].partition("\n## ")[0]
_FILES = [(path, re.findall(r"`([\w.]+)`", named)) for row in _ROWS for path, named in _FILE.findall(row[1])]


def _defined(path: Path) -> set[str]:
    """Functions and classes of a module, and what its classes define, as `Class.name`."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    found = set(_names(module.body))
    for kind in module.body:
        if isinstance(kind, ast.ClassDef):
            found |= {f"{kind.name}.{name}" for name in _names(kind.body)}
    return found


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id


def test_the_way_is_read() -> None:
    assert len(_ROWS) >= 12
    assert len(_FILES) >= 25


@pytest.mark.parametrize(("path", "named"), _FILES)
def test_a_file_of_the_way_names_its_functions(path: str, named: list[str]) -> None:
    assert named, "name the functions beside the file"
    assert set(named) - _defined(PROJECT / "dagster_sqlqueue" / path) == set()


def test_folders_and_statements_of_the_way_are_there() -> None:
    folders = {path for row in _ROWS for path in _FOLDER_OR_SQL.findall(row[1])}
    assert [path for path in folders if not (PROJECT / "dagster_sqlqueue" / path).is_dir()] == []
    statements = {path for row in _ROWS for path in _FOLDER_OR_SQL.findall(row[2])}
    assert len(statements) >= 8
    assert [path for path in statements if not (PROJECT / "sql" / "postgresql" / path).exists()] == []


def test_where_to_change_something_is_there() -> None:
    tasks = [line for line in _CHANGES.splitlines() if line.startswith("| ")][2:]
    assert len(tasks) >= 14
    named = {path for task in tasks for path in re.findall(r"`((?:dagster_sqlqueue|sql)/[\w/.]*)`", task)}
    assert len(named) >= len(tasks)
    assert [path for path in named if not (PROJECT / path).exists()] == []
