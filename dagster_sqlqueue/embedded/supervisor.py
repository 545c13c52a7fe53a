"""Run the embedded PostgreSQL server, and stop it when no process holds its directory any more.

A process of its own, started by path: it knows the standard library and nothing else, so that
`python3 dagster_sqlqueue/embedded/supervisor.py stop DIRECTORY` works without any installation.

Every user of the server holds a shared lock on the file `.users` of the data directory. The kernel drops the lock of a
process that ends, however it ends, so the exclusive lock that this process waits for is granted exactly when the last
user has ended.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

with contextlib.suppress(ImportError):  # not on Windows, where the embedded server is refused by name
    import fcntl

USERS = ".users"
LOG = "server.log"
_FAST_SECONDS = 60.0
_POLL_SECONDS = 0.02


def postmaster(directory: Path) -> int | None:
    """Return the process id of the server that runs on a data directory; None when none does."""
    try:
        pid = int((directory / "postmaster.pid").read_text().partition("\n")[0])
    except (OSError, ValueError):
        return None
    return pid if pid > 0 and _is_postmaster(pid, directory) else None


def taken(pid: int) -> bool:
    """Return whether a process has that id, be it one that has ended and whose parent does not ask."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def alive(pid: int) -> bool:
    """Return whether a process has that id and has not ended."""
    try:
        return taken(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in "ZX"
    except OSError:
        return taken(pid) and not Path("/proc/self/stat").exists()


def stop(directory: Path) -> bool:
    """Stop the server of a data directory: its clients are cut off, what they committed is kept.

    Returns:
        False when no server runs there.
    """
    pid = postmaster(directory)
    if pid is None:
        return False
    for sign, seconds in ((signal.SIGINT, _FAST_SECONDS), (signal.SIGQUIT, _FAST_SECONDS / 2)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not _is_postmaster(pid, directory):
                return True
            time.sleep(_POLL_SECONDS)
    return True


def supervise(directory: Path, socket_directory: str, account: str, command: list[str]) -> None:
    """Start the server, print its process id, and stop it when the last user of the directory has ended.

    Args:
        directory: the data directory.
        socket_directory: a temporary directory to remove at the end; empty for none.
        account: `uid:gid` to run the server under; empty for the caller's own.
        command: the server and its arguments.
    """
    users = os.open(directory / USERS, os.O_RDWR)
    uid, _, gid = account.partition(":")
    with (directory / LOG).open("ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,  # entered under our own account: the server's may have no right to it
            user=int(uid) if uid else None,
            group=int(gid) if gid else None,
            extra_groups=[] if gid else None,
        )
    # Reaped at once: a restart would take the number of a dead but unreaped server for a running one.
    threading.Thread(target=server.wait, daemon=True).start()
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    fcntl.flock(users, fcntl.LOCK_EX)
    for sign, seconds in ((signal.SIGINT, _FAST_SECONDS), (signal.SIGQUIT, _FAST_SECONDS / 2)):
        server.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            break
    if socket_directory:
        shutil.rmtree(socket_directory, ignore_errors=True)


def _is_postmaster(pid: int, directory: Path) -> bool:
    """Return whether the process is a server that works in the directory: a number may have passed on since it was
    written.
    """
    if not alive(pid):
        return False
    if not Path("/proc/self/stat").exists():
        named = subprocess.run(["ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, check=False)
        return "postgres" in named.stdout
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() != "postgres":
            return False
        return Path(f"/proc/{pid}/cwd").readlink() == directory.resolve()
    except PermissionError:
        return True  # root without the right to read other accounts' processes, as in a container
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1] == "stop":
        stop(Path(sys.argv[2]).absolute())
    else:
        if os.fork():
            os._exit(0)  # an orphan needs no parent to reap it
        supervise(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
