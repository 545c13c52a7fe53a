"""The guide's Python, run from top to bottom."""

import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_every_block_of_the_guide_runs(url: str, schema: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "guide.md").read_text(), re.DOTALL)
    assert len(blocks) >= 10
    script = tmp_path / "guide.py"
    script.write_text("\n".join(blocks))
    environment = {**os.environ, "SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
