"""The servers that tests start by themselves: of no process group of the run's, they have to be ended by name."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

DIRECTORY = "SQLQUEUE_GATE_DIRECTORY"
"""Names the directory that a run writes to; without it, nothing is noted."""

_SUFFIX = ".server"


def note(home: Path) -> None:
    """Note a server whose data is in `home / "data"`: a run that is ended ends it as well."""
    if directory := os.environ.get(DIRECTORY):
        (Path(directory) / (home.name + _SUFFIX)).write_text(str(home))


def forget(home: Path) -> None:
    """The server has been removed."""
    if directory := os.environ.get(DIRECTORY):
        (Path(directory) / (home.name + _SUFFIX)).unlink(missing_ok=True)


def end_all(directory: Path) -> None:
    """End and delete the servers of a run whose tests had no time to do so."""
    for file in directory.glob(f"*{_SUFFIX}"):
        home = Path(file.read_text())
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has not begun, or is over
            os.kill(int((home / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        shutil.rmtree(home, ignore_errors=True)
