"""The Python of each page, run from top to bottom."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = {
    "guide": 10,
    "topics": 5,
    "schedules": 8,
    "deploying": 2,
    "payloads": 5,
    "people": 8,
    "metrics": 6,
    "roles": 7,
    "results": 7,
    "followers": 7,
}
"""By name, how many blocks there are at least."""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(url: str, schema: str, tmp_path: Path, page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert len(blocks) >= PAGES[page]
    script = tmp_path / f"{page}.py"
    script.write_text("\n".join(blocks))
    environment = {**os.environ, "SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
