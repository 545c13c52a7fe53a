"""The embedded server: who starts and stops it, and what it refuses."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from dagster_sqlqueue.embedded import EmbeddedPostgres, home, launch, serve, supervisor
from dagster_sqlqueue.errors import EmbeddedServerError
from tests.embedded.support import PROJECT, down, hold, rows, url_of
from tests.support import until


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
