"""Processes that drive a consumption and are killed: forked from one that has everything loaded."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from sqlalchemy.engine import make_url

from dagster_sqlqueue import SqlQueue
from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE
from tests.spark import kill_driver
from tests.support import rows, until, value

ANSWER_SECONDS = kill_driver.DRIVER_SECONDS + PATIENCE
LOCK_SECONDS = round(PATIENCE)
NO_THREADS = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Arrow's allocator and NumPy's BLAS begin threads when they are loaded: a fork would take their locks along, not them."""


class Drivers:
    """A process that has everything loaded, and forks a driver for each call.

    Args:
        home: for what it writes.
        modules: what a driver needs beside the library.

    Attributes:
        log: the file to which a driver writes the steps that it came to.
    """

    def __init__(self, home: Path, *modules: str) -> None:
        self.log = home / "log"
        self._stacks = home / "stacks"
        self._errors = home / "errors"
        with self._errors.open("w") as errors:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kill_driver", str(self._stacks), *modules],
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT), **NO_THREADS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __call__(self, queue: SqlQueue, url: str, output: Path | str, mode: str, last: int | None) -> int:
        """The exit code of a driver that dies before step `last`; None: of one that does not."""
        self.begin(queue, url, output, mode, last)
        return self.ended(queue, last)

    def begin(self, queue: SqlQueue, url: str, output: Path | str, mode: str, last: int | None) -> None:
        """Begin a driver, whose end is waited for by `ended`."""
        assert self._server.stdin
        order = (marked(url), queue.database.schema, str(output), str(mode), last, str(self.log))
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()

    def ended(self, queue: SqlQueue, last: int | None) -> int:
        """The exit code of the driver that was begun."""
        assert self._server.stdout
        answered, _, _ = select.select([self._server.stdout], [], [], ANSWER_SECONDS)
        assert answered, f"no answer about step {last} within {ANSWER_SECONDS} s; {self.said()}; {sessions(queue)}"
        answer = self._server.stdout.readline()
        assert answer, f"the process that forks has ended at step {last}; {self.said()}"
        code = int(answer)
        assert code in (0, -signal.SIGKILL), f"step {last}: {code}; {self.said()}; {sessions(queue)}"
        return code

    def kill(self) -> None:
        """Kill the driver, wherever it is."""
        for driver in psutil.Process(self._server.pid).children():
            driver.kill()

    def said(self) -> str:
        """What a driver that was stuck, or failed, left to be read."""
        stacks = self._stacks.read_text() if self._stacks.exists() else ""
        return f"stacks of the last driver:\n{stacks}\nits errors:\n{self._errors.read_text()[-3000:]}"

    def close(self) -> None:
        """End it, with the driver that it may wait for."""
        if self._server.poll() is None:
            self.kill()
        try:
            self._server.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(PATIENCE)
            raise


def marked(url: str) -> str:
    """The URL for a driver: each of its connections has its name, and no statement waits for a lock for ever."""
    options = f"-c lock_timeout={LOCK_SECONDS}s"
    query = {"application_name": kill_driver.APPLICATION, "options": options}
    return make_url(url).update_query_dict(query).render_as_string(hide_password=False)


def sessions(queue: SqlQueue) -> str:
    """Who does what in the database, and who waits for whom."""
    found = rows(
        queue,
        "SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid), xact_start,"
        " left(query, 200) FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY pid",
    )
    return "sessions:\n" + "\n".join(map(str, found))


def gone(queue: SqlQueue) -> None:
    """Wait until the server has noticed that the killed driver's connections are closed."""

    def none_left() -> bool:
        here = value(
            queue, "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", kill_driver.APPLICATION
        )
        return int(here) == 0

    try:
        until(none_left, "the server's end of the killed driver's connections")
    except AssertionError as error:
        raise AssertionError(f"{error}; {sessions(queue)}") from None
