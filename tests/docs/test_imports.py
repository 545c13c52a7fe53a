"""The Python of a page imports from public faces only: what has an `__all__`, and the module of the errors."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_sqlqueue.errors import QueueError
from tests.docs.test_links import PAGES, PROJECT

_BLOCK = re.compile(r"^([ ]*)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of everything that the blocks of a page import of this project; no name: the module itself."""
    for indent, block in _BLOCK.findall(text):
        tree = ast.parse(re.sub(f"^{indent}", "", block, flags=re.MULTILINE))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dagster_sqlqueue":
                yield from ((node.module or "", one.name) for one in node.names)
            elif isinstance(node, ast.Import):
                yield from ((one.name, "") for one in node.names if one.name.split(".")[0] == "dagster_sqlqueue")


def is_public(module: str, name: str) -> bool:
    """Whether a page may import that."""
    if module.count(".") > 1:
        return False
    found = importlib.import_module(module)
    if module == "dagster_sqlqueue.errors":
        return isinstance(kind := getattr(found, name, None), type) and issubclass(kind, QueueError)
    faces = hasattr(found, "__path__") and hasattr(found, "__all__")
    return faces and (not name or name in found.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_a_page_imports_from_public_faces(page: Path) -> None:
    found = sorted(set(imported(page.read_text(encoding="utf-8"))))
    assert [one for one in found if not is_public(*one)] == []


def test_an_import_of_an_inner_module_is_found() -> None:
    text = (
        "```python\nfrom dagster_sqlqueue.spark.master_check import check_reachable\nimport dagster_sqlqueue.db\n```\n"
    )
    assert list(imported(text)) == [
        ("dagster_sqlqueue.spark.master_check", "check_reachable"),
        ("dagster_sqlqueue.db", ""),
    ]
    assert not any(is_public(*one) for one in imported(text))
