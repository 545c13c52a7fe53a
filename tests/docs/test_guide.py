"""The Python of each page, run from top to bottom: pages of a kind in one process, in `make prove` each in its own.

Those of Spark run in the session of `tests/spark`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.gate.patience import PATIENCE

PROJECT = Path(__file__).resolve().parents[2]
PLAIN = {
    "guide": 11,
    "topics": 5,
    "schedules": 8,
    "deploying": 2,
    "payloads": 7,
    "users_tests": 6,
    "people": 8,
    "metrics": 6,
    "roles": 7,
    "results": 7,
    "followers": 7,
}
DAGSTER = {"dagster": 5, "component": 4, "dagster_graphs": 8, "launchpad": 7}
SPARK = {"spark_consuming": 7, "spark_reading": 5, "spark_streaming": 6, "spark_assets": 6, "spark_cluster": 3}
"""By name, how many blocks there are at least."""

PAGES = {**PLAIN, **DAGSTER, **SPARK}

RUN_ALL = """
import os, sys
from pathlib import Path

for script in sys.argv[1:]:
    os.environ["SQLQUEUE_SCHEMA"] = f"{os.environ['SCHEMAS']}_{Path(script).stem}"
    sys.stderr.write(f"{script}\\n")
    exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__"})
"""


def written(directory: Path, page: str) -> Path:
    """The blocks of a page as a script, whose waits are as patient as the tests'."""
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert len(blocks) >= PAGES[page]
    script = directory / f"page_{page}.py"  # not the name of a package
    script.write_text(re.sub(r"timeout_seconds=\d+\)", f"timeout_seconds={PATIENCE})", "\n".join(blocks)))
    return script


def run(*arguments: object, **environment: str) -> None:
    """Run Python in a process, which has to succeed."""
    command = [sys.executable, *map(str, arguments)]
    known = {**os.environ, "PYTHONPATH": str(PROJECT), **environment}
    done = subprocess.run(command, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("pages", [PLAIN, DAGSTER], ids=["plain", "dagster"])
def test_every_block_runs(url: str, schema: str, tmp_path: Path, pages: Iterable[str]) -> None:
    scripts = [written(tmp_path, page) for page in pages]
    run("-c", RUN_ALL, *scripts, SQLQUEUE_URL=url, SCHEMAS=schema)


@pytest.mark.prove
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_by_itself(url: str, schema: str, tmp_path: Path, page: str) -> None:
    run(written(tmp_path, page), SQLQUEUE_URL=url, SQLQUEUE_SCHEMA=schema)
