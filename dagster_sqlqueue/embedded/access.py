"""What the account that runs the server may reach, when root starts it. No mode of an existing file is changed.

A server that root starts runs as an account that can do little, and root's directories are often closed to it: a clone below
`/root`, a directory of `mktemp`. The data stays there all the same: the server is started with it as its working directory,
and calls it `/proc/self/cwd`, which needs no right to the directories above. Its programs are copied where they are closed,
because they find their libraries by their own path.
"""

import contextlib
import errno
import hashlib
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TypeAlias

Account: TypeAlias = tuple[int, int] | None
"""The user and group to run the server under; None for our own."""

WORKING = Path("/proc/self/cwd")
"""The working directory of the calling process."""

CACHE = Path("/var/cache/dagster-sqlqueue")
"""Where root keeps the copies of programs."""

_BY_HAND = "let everybody through by hand: chmod o+x"


class Refused(Exception):
    """Why a server does not start, and what to do."""


def closed(path: Path, account: Account) -> Path | None:
    """Return the topmost directory above a path that does not let the account through; None: it gets there.

    Access control lists are not read: a path that needs them is refused, and never taken for an open one.
    """
    if account is None:
        return None
    above = {*path.parents, *path.resolve().parents}
    shut = [directory for directory in above if not _allows(directory, account, stat.S_IXOTH)]
    return min(shut, key=lambda directory: len(directory.parts), default=None)


def data_directory(directory: Path, account: Account) -> Path:
    """Return the server's name for its data directory, which is its working directory.

    Raises:
        Refused: the account does not get there, and this system has no name for a working directory.
    """
    shut = closed(directory, account)
    if shut is None:
        return directory
    if not WORKING.exists():
        raise Refused(
            f"as root it runs as an account that {shut} does not let through. Set SQLQUEUE_HOME to a directory elsewhere, or"
            f" {_BY_HAND} '{shut}'"
        )
    return WORKING


def temporary_directory(account: Account) -> Path:
    """Return where to make the directory of a socket: a path that is short, plain and open to the account.

    Raises:
        Refused: there is none.
    """
    usual = Path(tempfile.gettempdir())
    for base in (usual, Path("/tmp")):
        if len(str(base)) < 70 and _plain(base) and not closed(base / "socket", account):
            return base
    shut = closed(usual / "socket", account) or usual
    raise Refused(
        f"its socket needs a temporary directory with a short path, and {shut} does not let its account through. Set TMPDIR"
        f" to another one, or {_BY_HAND} '{shut}'"
    )


def runnable(programs: Path, account: Account) -> Path:
    """PostgreSQL's programs where the account can run them: as they are, or a copy that root keeps.

    Raises:
        Refused: no copy can be made.
    """
    shut = closed(programs, account)
    if account is None or (shut is None and _readable(programs, account)):
        return programs
    try:
        return _copied(programs, account)
    except OSError as error:
        why = f", because {shut} does not let it through" if shut else ""
        by_hand = (
            f"{_BY_HAND} '{shut}'" if shut else f"let everybody read them by hand: chmod -R o+rX '{programs.parent}'"
        )
        raise Refused(
            f"as root it runs as an account that cannot run the programs in {programs}{why}, and they cannot be copied to"
            f" {CACHE}: {error.strerror or error}. Install the package where everybody can read it, or {by_hand}"
        ) from None


def _copied(programs: Path, account: Account) -> Path:
    """Make a copy of the installation, readable by all, named after what is in it: other environments use it too."""
    name = hashlib.sha256((programs / "postgres").read_bytes()).hexdigest()[:16]
    installation, wheel = programs.parent, programs.parent.parent
    kept = CACHE / name
    found = kept / wheel.name / installation.name / programs.name
    if not found.exists():
        with contextlib.suppress(FileExistsError):
            CACHE.mkdir()
            CACHE.chmod(0o755)
        fresh = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            # They find their libraries beside the wheel, by a path relative to their own.
            parts = [*(installation / part for part in ("bin", "lib", "share")), wheel.with_name(f"{wheel.name}.libs")]
            for tree in parts:
                if tree.exists():
                    shutil.copytree(tree, fresh / tree.relative_to(wheel.parent), symlinks=True)
            _for_everybody(fresh)
            fresh.rename(kept)
        except OSError:
            if not found.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    if (shut := closed(found, account)) is not None:
        raise PermissionError(errno.EACCES, f"{shut} does not let it through either")
    return found


def _for_everybody(ours: Path) -> None:
    """Make what was just created readable by all users, whatever the mask is."""
    for path in (ours, *ours.rglob("*")):
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if runs else 0o644)


def _readable(programs: Path, account: Account) -> bool:
    """Return whether the account can run the server: a mask of root's may have closed the whole installation."""
    needed = stat.S_IROTH | stat.S_IXOTH
    libraries = programs.parent.parent.with_name(f"{programs.parent.parent.name}.libs")
    return all(_allows(path, account, needed) for path in (programs, programs / "postgres", libraries) if path.exists())


def _allows(path: Path, account: Account, wanted: int) -> bool:
    """Return whether the mode of a file grants the account what it would grant others by these bits."""
    assert account is not None
    status = path.stat()
    shift = 6 if status.st_uid == account[0] else 3 if status.st_gid == account[1] else 0
    return status.st_mode >> shift & wanted == wanted


def _plain(path: Path) -> bool:
    return all(c.isascii() and (c.isalnum() or c in "/._-") for c in str(path))
