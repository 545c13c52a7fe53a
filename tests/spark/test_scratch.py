"""The directories of drivers: removed when they end, and by the next one when they were killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dagster_sqlqueue.spark.scratch import scratch_directory
from tests.gate.patience import PATIENCE

LIVING = """
import sys
from pathlib import Path
from dagster_sqlqueue.spark.scratch import scratch_directory
with scratch_directory() as scratch:
    (Path(scratch) / "blocks").mkdir()
    print(scratch, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_driver_left_is_removed_and_nothing_of_a_living_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "sqlqueue-spark-of-somebody-else").mkdir()

    def started() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", LIVING],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    killed, left = started()
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    assert (left / "blocks").is_dir()
    living, its_own = started()
    assert not left.exists()
    with scratch_directory() as mine:
        assert (its_own / "blocks").is_dir()
        assert Path(mine).parent == tmp_path
    assert not Path(mine).exists()
    living.communicate(timeout=PATIENCE)
    killed.communicate(timeout=PATIENCE)
    assert [path.name for path in tmp_path.iterdir()] == ["sqlqueue-spark-of-somebody-else"]
