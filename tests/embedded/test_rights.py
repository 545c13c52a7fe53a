"""The embedded server of accounts without rights, and of root in directories that are shut."""

import os
import pwd
import shutil
import signal
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue.embedded import EmbeddedPostgres, access, launch, stop_server, supervisor
from dagster_sqlqueue.errors import EmbeddedServerError
from tests.embedded.support import PROJECT, copied, down, hold, rows, url_of
from tests.support import until


def reachable(file: Path) -> bool:
    """Whether everybody can read a file."""
    above = {*file.parents, *file.resolve().parents}
    return (
        file.exists()
        and file.stat().st_mode & stat.S_IROTH != 0
        and all(directory.stat().st_mode & stat.S_IXOTH for directory in above)
    )


ROOT = os.geteuid() == 0
CODE = [PROJECT / "dagster_sqlqueue" / "__init__.py", Path(psycopg.__file__)]
# The Python of a virtual environment may lie in root's home, where nobody else can reach it.
PYTHONS = [
    python
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    if not ROOT or all(reachable(file) for file in (Path(python), *CODE))
]
"""Which Python an account without rights can run this project with: as root that is nobody, else it is our own."""


@pytest.fixture
def without_rights(
    server: EmbeddedPostgres,
) -> Iterator[tuple[Path, Callable[[str], subprocess.CompletedProcess[str]]]]:
    """A directory of an account without rights, and a way to run Python as that account."""
    account: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        if ROOT:
            nobody = pwd.getpwnam("nobody")
            shutil.chown(name, nobody.pw_uid, nobody.pw_gid)
            account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

        def run(code: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [PYTHONS[0], "-c", code],
                cwd=name,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(PROJECT), *site.getsitepackages()]),
                    "HOME": name,
                },
                capture_output=True,
                text=True,
                **account,
            )

        yield Path(name), run


if PYTHONS:

    def test_it_runs_without_rights_and_names_what_it_cannot_write(
        without_rights: tuple[Path, Callable[[str], subprocess.CompletedProcess[str]]],
    ) -> None:
        directory, run = without_rights
        code = """
import psycopg
from pathlib import Path
from dagster_sqlqueue.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path("postgres")) as server:
    print(psycopg.connect(server.url.replace("+psycopg", "")).execute("select 1").fetchall())
"""
        done = run(code)
        assert done.stdout.strip() == "[(1,)]", done.stderr
        with EmbeddedPostgres(directory / "postgres") as again:
            assert rows(again.url, "select 1") == [(1,)]
        assert (directory / "postgres" / "PG_VERSION").stat().st_uid == directory.stat().st_uid
        directory.chmod(0o500)
        refused = run(code.replace('postgres"', 'other"'))
        assert "EmbeddedServerError" in refused.stderr
        assert "Permission denied. Make it a directory that this user can write to" in refused.stderr


def modes(directory: Path) -> dict[Path, int]:
    """Of the directory and all above it."""
    return {path: path.stat().st_mode for path in (directory, *directory.parents)}


if ROOT:
    # For another user none of this arises: the server runs as that user.

    @pytest.fixture
    def shut() -> Iterator[Path]:
        """A directory of root's that nobody else gets through, below another one."""
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name) / "mine, with a space"
            directory.mkdir(mode=0o700)
            yield directory

    @pytest.fixture
    def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Where copies of programs go, within a directory that is open to all."""
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            monkeypatch.setattr(access, "CACHE", Path(name) / "kept")
            yield Path(name) / "kept"

    def installed_in(directory: Path) -> Path:
        """The embedded server's programs, installed in another place."""
        wheel = launch.programs().parent.parent
        for tree in (launch.programs().parent, wheel.with_name(f"{wheel.name}.libs")):
            less = shutil.ignore_patterns("include")
            shutil.copytree(tree, directory / tree.relative_to(wheel.parent), symlinks=True, ignore=less)
        return directory / launch.programs().relative_to(wheel.parent)

    def test_root_s_server_runs_in_a_directory_that_is_shut_and_opens_none(shut: Path) -> None:
        before = modes(shut)
        directory = shut / "postgres"
        with EmbeddedPostgres(directory) as made:
            rows(made.url, "create table kept as select 1 as one")
            rows(made.url, "alter system set work_mem = '5MB'")
            assert hold_and_join(directory, made.url)
        assert down(directory)
        with EmbeddedPostgres(directory) as again:
            assert rows(again.url, "table kept") == [(1,)]
            assert rows(again.url, "show work_mem") == [("5MB",)]
            owner = (directory / "PG_VERSION").stat().st_uid
            assert owner != 0
            sockets = Path(str(rows(again.url, "show unix_socket_directories")[0][0]))
            assert (sockets.stat().st_uid, sockets.stat().st_mode & 0o077) == (owner, 0)
        until(lambda: not sockets.exists(), "the end of its sockets")
        assert modes(shut) == before
        assert directory.stat().st_mode & 0o077 == 0

    def hold_and_join(directory: Path, url: str) -> bool:
        """Whether another process finds the same server."""
        with hold(directory) as process:
            joined = url_of(process) == url
            process.send_signal(signal.SIGINT)
            process.communicate()
        return joined

    @pytest.mark.prove
    def test_root_s_server_is_killed_and_stopped_in_a_directory_that_is_shut(template: Path, shut: Path) -> None:
        directory = copied(template, shut)
        with hold(directory) as process:
            rows(url_of(process), "create table kept as select 1 as one")
            pid = supervisor.postmaster(directory)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: down(directory), "the end of the server")
            process.kill()
        with EmbeddedPostgres(directory) as again:
            assert rows(again.url, "table kept") == [(1,)]
            stop_server(directory)
            assert down(directory)

    def test_programs_that_are_shut_are_copied_and_not_opened(
        template: Path, shut: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        programs = installed_in(shut)
        before = modes(programs)
        monkeypatch.setattr(launch, "programs", lambda: programs)
        with EmbeddedPostgres(copied(template, tmp_path)) as running:
            pid = supervisor.postmaster(running.directory)
            (copy,) = cache.iterdir()
            assert Path(f"/proc/{pid}/exe").readlink().is_relative_to(copy)
        (fresh := tmp_path / "another").mkdir()
        with EmbeddedPostgres(fresh / "postgres") as running:
            assert rows(running.url, "select 1") == [(1,)]
        assert list(cache.iterdir()) == [copy]
        assert modes(programs) == before

    @pytest.mark.prove
    def test_programs_that_only_root_may_read_are_copied(shut: Path, cache: Path) -> None:
        shut.chmod(0o755)
        shut.parent.chmod(0o755)
        programs = installed_in(shut)
        (programs / "postgres").chmod(0o700)
        server = pwd.getpwnam("nobody")
        copy = access.runnable(programs, (server.pw_uid, server.pw_gid))
        assert copy.is_relative_to(cache)
        assert (copy / "postgres").stat().st_mode & 0o777 == 0o755
        assert (programs / "postgres").stat().st_mode & 0o777 == 0o700
        assert access.runnable(launch.programs(), None) == launch.programs()

    def test_where_no_copy_can_be_made_the_directory_and_the_cure_are_named(
        shut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        programs = installed_in(shut)
        (tmp_path / "file").write_text("")
        monkeypatch.setattr(launch, "programs", lambda: programs)
        monkeypatch.setattr(access, "CACHE", tmp_path / "file" / "kept")
        said = (
            rf"because {shut.parent} does not let it through, and they cannot be copied to .*chmod o\+x '{shut.parent}'"
        )
        with pytest.raises(EmbeddedServerError, match=said):
            EmbeddedPostgres(tmp_path / "postgres").start()

    def test_where_a_working_directory_has_no_name_the_directory_and_the_cure_are_named(
        shut: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = modes(shut)
        monkeypatch.setattr(access, "WORKING", Path("/nowhere/cwd"))
        said = rf"{shut.parent} does not let through\. Set SQLQUEUE_HOME .*, or .*: chmod o\+x '{shut.parent}'"
        with pytest.raises(EmbeddedServerError, match=said):
            EmbeddedPostgres(shut / "postgres").start()
        assert modes(shut) == before

    def test_a_temporary_directory_that_is_shut_is_passed_over_or_named(
        shut: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = pwd.getpwnam("nobody")
        account = (server.pw_uid, server.pw_gid)
        (short := shut.parent / "short").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(short))
        assert access.temporary_directory(account) == Path("/tmp")
        monkeypatch.setattr(access, "closed", lambda path, account: short)
        with pytest.raises(access.Refused, match=r"Set TMPDIR .* chmod o\+x"):
            access.temporary_directory(account)
