"""Places in other processes where a test can stop them: it arms a gate, somebody is caught at it, and is killed or let go.

A gate is a few files. The first process takes it, says who it is, and waits for as long as nobody opens it; all others
go on. Where nothing is armed, passing costs one failed rename.
"""

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gate.patience import PATIENCE
from tests.support import until


@dataclass(frozen=True)
class Caught:
    """Who waits at a gate.

    Attributes:
        point: the gate's name.
        pid: of the process.
        at: since when, as `time.time` has it.
        facts: what it said about itself.
    """

    point: str
    pid: int
    at: float
    facts: dict[str, Any]


class Gates:
    """The gates of one directory.

    Args:
        directory: shared by all processes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def arm(self, *points: str) -> None:
        """Have the next process that comes to each of these wait there."""
        for point in points:
            self.open(point, wide=False)
            self._file(point, "armed").touch()

    def disarm(self, *points: str) -> None:
        """Let everybody pass from now on."""
        for point in points:
            self._file(point, "armed").unlink(missing_ok=True)

    def caught(self, point: str) -> Caught | None:
        """Who waits at the gate, if anybody does."""
        file = self._file(point, "caught")
        return Caught(**json.loads(file.read_text())) if file.exists() else None

    def wait(self, point: str) -> Caught:
        """The process that comes to the gate."""
        return until(lambda: self.caught(point), f"somebody at {point}", 3 * PATIENCE)

    def open(self, point: str, *, wide: bool = True) -> None:
        """Let the process that waits there go on."""
        self._file(point, "caught").unlink(missing_ok=True)
        if wide:
            self._file(point, "open").touch()
        else:
            self._file(point, "open").unlink(missing_ok=True)

    def pass_by(self, point: str, **facts: Any) -> None:
        """Go past a gate: for the process that may be caught."""
        mine = self._file(point, f"taken-{os.getpid()}")
        try:
            self._file(point, "armed").rename(mine)
        except FileNotFoundError:
            return
        mine.write_text(json.dumps({"point": point, "pid": os.getpid(), "at": time.time(), "facts": facts}))
        mine.rename(self._file(point, "caught"))
        pause = threading.Event()
        while not self._file(point, "open").exists():
            pause.wait(0.005)

    def _file(self, point: str, kind: str) -> Path:
        return self._directory / f"{point}.{kind}"
