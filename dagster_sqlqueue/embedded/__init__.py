"""PostgreSQL 18 from a wheel: for the first run, the demo and the tests.

The first process that opens a directory makes its database and starts the server; the server stops when the last one
releases it, or dies. It listens on a Unix socket that only its owner and root can reach, and on no port.

Root's server runs as an account that can do little, also where root's directories are closed to that: no mode of an
existing directory is changed.

`python -m dagster_sqlqueue.embedded stop DIRECTORY` stops a server even while processes use it.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

from dagster_sqlqueue.embedded import launch, supervisor
from dagster_sqlqueue.embedded.access import Refused
from dagster_sqlqueue.errors import EmbeddedServerError

with contextlib.suppress(ImportError):  # not on Windows, which `start` refuses by name
    import fcntl

__all__ = ["EmbeddedPostgres", "home", "serve", "stop_server"]

_START_SECONDS = 120.0
"""How long a server may take to be ready: recovery after a crash on a busy machine takes more than a few seconds."""


def home() -> Path:
    """Return the state directory: `SQLQUEUE_HOME`, or `.sqlqueue` in the current directory."""
    return Path(os.environ.get("SQLQUEUE_HOME") or ".sqlqueue").expanduser().absolute()


class EmbeddedPostgres:
    """A PostgreSQL server on a data directory of its own.

    Several processes, and several of these in one process, may use the same directory.

    Args:
        directory: where the data is, or will be; None for `postgres` in the state directory.

    Raises:
        EmbeddedServerError: on `start`, with what was wrong and what to do.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = (Path(directory) if directory else home() / "postgres").absolute()
        self._users: int | None = None
        self._url: str | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The server's URL, for SQLAlchemy; without `+psycopg` it is one for libpq."""
        if self._url is None:
            raise EmbeddedServerError(f"the embedded PostgreSQL of {self.directory} is not running; call start()")
        return self._url

    def start(self) -> str:
        """Start the server, or join the one that runs on the directory; returns its URL."""
        if self._url is not None:
            return self._url
        programs = launch.programs()
        try:
            self._prepare()
            with _locked(self.directory / launch.LOCK):
                self._users = os.open(self.directory / supervisor.USERS, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._users, fcntl.LOCK_SH)  # waits for a server that is being stopped
                self._url = self._running(programs)
        except (OSError, Refused) as error:
            self._release()
            reason = str(error)
            if isinstance(error, OSError):
                reason = (
                    f"{error.filename or self.directory}: {error.strerror or error}. Make it a directory that this user"
                    " can write to, or set SQLQUEUE_HOME to another one"
                )
            raise EmbeddedServerError(f"the embedded PostgreSQL does not start on {self.directory}: {reason}") from None
        except BaseException:
            self._release()
            raise
        return self._url

    def stop(self) -> None:
        """Release the server, and stop it if no other process uses it."""
        if self._users is None:
            return
        try:
            with _locked(self.directory / launch.LOCK):
                try:
                    fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    # Others use it, or its supervisor was faster: then this waits until the server is down.
                    fcntl.flock(self._users, fcntl.LOCK_SH)
                else:
                    supervisor.stop(self.directory)
        except FileNotFoundError:
            pass  # the process that removed the directory had stopped the server
        finally:
            self._release()

    def _release(self) -> None:
        if self._users is not None:
            os.close(self._users)
        self._users = self._url = None

    def _prepare(self) -> None:
        """Make the directory, unless it is there; refuse one that cannot be ours."""
        at, elsewhere = self.directory, "or set SQLQUEUE_HOME to another directory"
        if at.parent == home() and at.parent.parent.is_dir():
            at.parent.mkdir(exist_ok=True)
        if not at.parent.is_dir():
            raise Refused(f"its parent {at.parent} is not a directory. Create it, {elsewhere}")
        at.mkdir(mode=0o700, exist_ok=True)
        entries = {entry.name for entry in at.iterdir()}
        version = at / "PG_VERSION"
        if version.exists():
            if (found := version.read_text().strip()) != launch.MAJOR:
                raise Refused(
                    f"its data was made by PostgreSQL {found}, and the server here is {launch.MAJOR}. Dump it with that"
                    f" version and move it away, {elsewhere}"
                )
        elif launch.UNFINISHED not in entries and (foreign := sorted(entries - launch.OURS)):
            raise Refused(f"it holds something else: {', '.join(foreign[:5])}. Move that away, {elsewhere}")

    def _running(self, programs: Path) -> str:
        """Return the URL of a server that is ready; starts one if none runs."""
        end = time.monotonic() + _START_SECONDS
        while True:
            pid, log_from = supervisor.postmaster(self.directory), None
            if pid is None:
                pid, log_from = launch.launch(programs, self.directory)
            if url := self._ready(pid, end):
                return url
            late = time.monotonic() >= end
            if log_from is None and not late:
                continue  # the server that was running has ended
            tail = launch.log_since(self.directory, log_from or 0)
            if "pre-existing shared memory block" in tail and not late:
                time.sleep(0.2)  # workers of a server that was killed are still on their way out
                continue
            what = f"it was not ready after {_START_SECONDS:.0f} s" if late else "the server ended"
            raise Refused(f"{what}; its log says: {tail}. If the data is damaged, remove {self.directory}")

    def _ready(self, pid: int, end: float) -> str | None:
        """Wait until a server takes connections; None when it ended, or its time was up."""
        while supervisor.alive(pid) and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                lines = (self.directory / "postmaster.pid").read_text().splitlines()
                if len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready":
                    if not lines[4]:
                        raise Refused(
                            f"a server without a Unix socket runs on it, process {pid}. Stop it with:"
                            f" python -m dagster_sqlqueue.embedded stop '{self.directory}'"
                        )
                    return f"postgresql+psycopg://postgres@/postgres?host={quote(lines[4])}&port={lines[3]}"
            time.sleep(0.02)
        return None


def stop_server(directory: Path) -> bool:
    """Stop the server of a data directory, even while processes use it; returns False when none runs."""
    return supervisor.stop(directory.absolute())


@contextlib.contextmanager
def serve(directory: Path | None = None) -> Iterator[str]:
    """Yield the URL of a database for the block: `SQLQUEUE_URL` if it is set, else the embedded server's.

    Raises:
        EmbeddedServerError: the embedded server is needed and does not start.
    """
    if url := os.environ.get("SQLQUEUE_URL"):
        yield url
        return
    with EmbeddedPostgres(directory) as server:
        yield server.url


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One start or stop at a time."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
