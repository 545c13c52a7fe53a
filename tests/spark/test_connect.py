"""Against a Spark Connect server: the data source and the daily asset, from a client that has no Java."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.faults.gates import Gates
from tests.gate.patience import PATIENCE
from tests.spark import consuming_support
from tests.spark.cluster import JVM_PATIENCE, ROOT
from tests.spark.connect_driver import NEXT
from tests.spark.connecting import ConnectServer
from tests.spark.daily_support import DAYS, endings, expected, in_files, in_table, once, prepare, waiting
from tests.support import Work, rows, until

PASSWORD = "se%2Fcret'of the reader"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    made = ConnectServer(tmp_path_factory.mktemp("connect"))
    try:
        yield made
    finally:
        made.end()


@contextmanager
def client(*arguments: str, driver: str = "connect_driver") -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "JAVA_HOME": "/nowhere"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", f"tests.spark.{driver}", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


def end_of(process: "subprocess.Popen[str]") -> list[str]:
    """What a client wrote, when it has ended well."""
    out, errors = process.communicate(timeout=JVM_PATIENCE)
    assert process.returncode == 0, errors[-3000:]
    return out.splitlines()


@pytest.mark.prove
def test_the_daily_asset_consumes_by_way_of_a_connect_server_and_shows_it_no_password(
    server: ConnectServer, queue: SqlQueue, url: str, output: Path
) -> None:
    prepare(queue)
    # The embedded server trusts loopback: any password will do, and can be looked for.
    secret = make_url(url).set(password=PASSWORD).render_as_string(hide_password=False)
    with client(server.url, secret, queue.database.schema, str(output)) as process:
        assert end_of(process) == ["rows [3, 2, 3]", "connect mode left False"]
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert waiting(queue) == []
    shown = [server.log, *(path for path in server.events.rglob("*") if path.is_file())]
    assert len(shown) > 1
    for path in shown:
        text = path.read_text(errors="replace")
        assert "of the reader" not in text, path
        assert "cret%27of" not in text, path
    assert "sqlqueue" in server.log.read_text()


@pytest.mark.prove
def test_rows_that_are_too_many_for_the_driver_are_written_by_the_servers_tasks(
    server: ConnectServer, queue: SqlQueue, url: str, output: Path
) -> None:
    prepare(queue)
    with client(server.url, url, queue.database.schema, str(output), "by_tasks") as process:
        assert end_of(process) == ["rows [3, 2, 3]", "connect mode left False"]
    assert in_files(output) == expected(DAYS)
    assert in_table(queue) == waiting(queue) == []
    assert endings(queue) == once()


@pytest.mark.prove
def test_a_session_of_the_users_own_is_used_and_left_running(
    server: ConnectServer, queue: SqlQueue, url: str, output: Path
) -> None:
    prepare(queue)
    with client(server.url, url, queue.database.schema, str(output), "given") as process:
        assert end_of(process)[:2] == ["rows [3, 2, 3]", "left running True"]
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert waiting(queue) == []


@pytest.mark.prove
def test_batches_streams_and_writes_by_way_of_a_connect_server(
    server: ConnectServer, queue: SqlQueue, url: str, tmp_path: Path
) -> None:
    consuming_support.prepare(queue)
    queue.create_queue(QueueSpec("copied", Work))
    checkpoint = tmp_path / "checkpoint"
    with client(server.url, url, queue.database.schema, str(checkpoint), driver="connect_flow_driver") as process:
        assert end_of(process) == [
            "days [['2013-01-01'], ['2013-01-02']]",
            "columns ['id', 'attempt', 'created_at', 'big'] 15",
            "written 15 succeeded 12 rejected 3",
        ]
    assert consuming_support.endings(queue) == [("failed", 3, 3), ("succeeded", 27, 27)]
    sold = rows(queue, "SELECT count(*), sum(amount) FROM {s}.sold")
    assert sold == [(15, sum(sale.amount for sale in consuming_support.sales()[::2]))]
    copied = rows(queue, "SELECT CAST(payload ->> 'amount' AS integer) FROM {s}.job WHERE queue = 'copied' ORDER BY 1")
    assert [n for (n,) in copied] == [-1, -1, -1, *range(100, 110)]


@pytest.mark.prove
@pytest.mark.parametrize("same_address", [False, True], ids=["elsewhere", "same address"])
def test_a_server_that_dies_in_the_middle_is_named_and_the_next_one_makes_it_right(
    queue: SqlQueue, url: str, output: Path, tmp_path: Path, gates: Gates, same_address: bool
) -> None:
    prepare(queue)
    gates.arm("task")
    servers: list[ConnectServer] = []

    def start(port: int = 0) -> ConnectServer:
        home = tmp_path / f"server-{len(servers)}"
        home.mkdir()
        servers.append(ConnectServer(home, port))
        return servers[-1]

    try:
        first = start()
        directory = tmp_path / "gates"
        with client(
            first.url, url, queue.database.schema, str(output), "both", str(directory), "300" if same_address else "3"
        ) as process:
            until(lambda: gates.caught("task") or process.poll() is not None, "a task at the gate", JVM_PATIENCE)
            assert process.poll() is None, end_of(process)
            first.end()
            assert in_table(queue) == in_files(output) == []
            second = start(first.port if same_address else 0)
            (directory / "named").write_text(second.url)
            (directory / "named").rename(directory / NEXT)
            failed, *rest = end_of(process)
    finally:
        for one in servers:
            one.end()
    assert failed.startswith(f"failed Spark Connect at {first.url} went away in")
    assert ("the server does not know the session" if same_address else "it does not answer any more") in failed
    assert "Start it again (sbin/start-connect-server.sh of Spark), and run this again" in failed
    assert rest == ["rows [3, 2, 3]", "connect mode left False"]
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert waiting(queue) == []
