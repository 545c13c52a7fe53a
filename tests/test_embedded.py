import importlib.util
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
import sqlalchemy as sa

from dagster_sqlqueue.embedded import EmbeddedPostgres, access, home, launch, serve, stop_server, supervisor
from dagster_sqlqueue.errors import EmbeddedServerError
from tests.support import until

PROJECT = Path(__file__).resolve().parent.parent
HOLD = """
import signal, sys
from pathlib import Path
from dagster_sqlqueue.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose server has stopped."""
    directory = tmp_path_factory.mktemp("a template, with spaces and 'quotes'") / "postgres"
    with EmbeddedPostgres(directory):
        pass
    return directory


def copied(template: Path, to: Path) -> Path:
    directory = to / "postgres"
    subprocess.run(["cp", "-a", str(template), str(directory)], check=True)
    return directory


@pytest.fixture(scope="module")
def server(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(copied(template, tmp_path_factory.mktemp("a state, with spaces and 'quotes'"))) as running:
        yield running


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Iterator[Path]:
    directory = copied(template, tmp_path)
    yield directory
    stop_server(directory)


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def down(directory: Path) -> bool:
    return supervisor.postmaster(directory) is None


def hold(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_its_url_serves_sqlalchemy_and_libpq(server: EmbeddedPostgres) -> None:
    engine = sa.create_engine(server.url)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("show server_version")).startswith("18")
    engine.dispose()
    assert rows(server.url, "select current_setting('fsync'), current_setting('TimeZone')") == [("on", "UTC")]
    assert server.start() == server.url


def test_it_listens_on_no_port_and_only_to_its_owner(server: EmbeddedPostgres) -> None:
    assert rows(server.url, "show listen_addresses") == [("",)]
    assert server.directory.stat().st_mode & 0o077 == 0
    sockets = Path(str(rows(server.url, "show unix_socket_directories")[0][0]))
    assert sockets.stat().st_mode & 0o077 == 0


def test_what_steers_postgresql_elsewhere_does_not_steer_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with EmbeddedPostgres(data) as running:
        assert rows(running.url, "select 1") == [(1,)]


def test_the_last_handle_stops_it_and_a_path_may_be_long(data: Path) -> None:
    long = data.parent.joinpath("d" * 100, "e" * 100)
    long.parent.mkdir()
    data.rename(long)
    first, second = EmbeddedPostgres(long), EmbeddedPostgres(long)
    assert first.start() == second.start()
    sockets = Path(str(rows(first.url, "show unix_socket_directories")[0][0]))
    first.stop()
    assert rows(second.url, "select 1") == [(1,)]
    second.stop()
    second.stop()
    assert down(long)
    until(lambda: not sockets.exists(), "the end of its sockets")
    with pytest.raises(EmbeddedServerError, match="is not running"):
        _ = first.url


def test_several_processes_may_open_an_empty_directory_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "postgres"
    processes = [hold(directory) for _ in range(3)]
    urls = {url_of(process) for process in processes}
    assert len(urls) == 1
    for process in processes:
        assert not down(directory)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert down(directory)


def test_a_process_that_is_killed_leaves_no_server(data: Path) -> None:
    with hold(data) as process:
        url = url_of(process)
        rows(url, "create table kept as select 1 as one")
        process.kill()
    until(lambda: down(data), "the end of the server")
    with EmbeddedPostgres(str(data)) as again:
        assert rows(again.url, "table kept") == [(1,)]


def test_a_killed_process_keeps_no_server_from_the_others(data: Path) -> None:
    with EmbeddedPostgres(data) as running:
        with hold(data) as process:
            assert url_of(process) == running.url
            process.kill()
        assert rows(running.url, "select 1") == [(1,)]
    assert down(data)


def test_ctrl_c_leaves_no_server(data: Path) -> None:
    with hold(data) as process:
        url_of(process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert "KeyboardInterrupt" in errors
    assert down(data)


def test_a_killed_server_is_started_again(data: Path) -> None:
    first = EmbeddedPostgres(data)
    rows(first.start(), "create table kept as select 1 as one")
    pid = supervisor.postmaster(data)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: down(data), "the end of the server")
    assert (data / "postmaster.pid").exists()
    with EmbeddedPostgres(data) as second:
        assert rows(second.url, "table kept") == [(1,)]
        first.stop()
        assert rows(second.url, "table kept") == [(1,)]
    assert down(data)


def test_a_number_that_passed_on_to_another_process_is_no_server(data: Path) -> None:
    stale = data / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n{data}\n1700000000\n5432\n{data}\n\n  1 1\nready\n")
    shutil.chown(stale, data.stat().st_uid, data.stat().st_gid)
    with EmbeddedPostgres(data) as running:
        assert rows(running.url, "select 1") == [(1,)]


@pytest.mark.prove
def test_a_database_half_made_is_made_anew(tmp_path: Path) -> None:
    directory = tmp_path / "postgres"
    (directory / launch.UNFINISHED / "base").mkdir(parents=True)
    (directory / "global").mkdir()
    (directory / "postgresql.conf").write_text("nonsense")
    with EmbeddedPostgres(directory) as running:
        assert rows(running.url, "select 1") == [(1,)]
    assert not (directory / launch.UNFINISHED).exists()


def test_the_command_stops_a_server_whoever_uses_it(data: Path) -> None:
    command = [sys.executable, "-m", "dagster_sqlqueue.embedded", "stop", str(data)]
    with EmbeddedPostgres(data):
        subprocess.run(command, cwd=PROJECT, check=True)
        assert down(data)
        subprocess.run(command, cwd=PROJECT, check=True)
        shutil.rmtree(data)
    assert not data.exists()


def test_the_end_of_the_log_is_quoted(data: Path) -> None:
    with (data / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(
        EmbeddedServerError, match=r"the server ended; its log says: .*no_such_setting.*damaged, remove /"
    ):
        EmbeddedPostgres(data).start()
    assert down(data)


def test_data_of_another_version_is_refused(data: Path) -> None:
    (data / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedServerError, match=r"made by PostgreSQL 16, and the server here is 18.*SQLQUEUE_HOME"):
        EmbeddedPostgres(data).start()


def test_a_directory_with_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(EmbeddedServerError, match=r"holds something else: thesis\.txt.*SQLQUEUE_HOME"):
        EmbeddedPostgres(tmp_path).start()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").write_text("")
    with pytest.raises(EmbeddedServerError, match=r"postgres: File exists\. Make it a directory"):
        EmbeddedPostgres(tmp_path / "postgres").start()


def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"its parent .*/nowhere is not a directory"):
        EmbeddedPostgres(tmp_path / "nowhere" / "postgres").start()


def test_the_wheel_missing_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerError, match=r"pip install 'dagster-sqlqueue\[embedded\]'.*SQLQUEUE_URL"):
        EmbeddedPostgres(tmp_path / "postgres").start()


def test_the_state_directory_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLQUEUE_HOME", raising=False)
    assert home() == tmp_path / ".sqlqueue"
    monkeypatch.setenv("SQLQUEUE_HOME", "elsewhere")
    assert home() == tmp_path / "elsewhere"
    assert EmbeddedPostgres().directory == tmp_path / "elsewhere" / "postgres"


def test_a_server_of_the_users_own_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLQUEUE_URL", "postgresql://example/database")
    with serve(tmp_path / "nowhere" / "postgres") as url:
        assert url == "postgresql://example/database"


def test_without_one_the_embedded_server_serves(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    with serve(server.directory) as url:
        assert url == server.url
    assert rows(url, "select 1") == [(1,)]


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
