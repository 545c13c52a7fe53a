"""Masters and Connect servers that cannot be reached, and what Java says of one: each error names it."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import driver
from dagster_sqlqueue.spark.connect import remote_session
from dagster_sqlqueue.spark.master_check import check_configured, check_reachable
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from tests.gate.patience import PATIENCE
from tests.support.ports import free_port


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """A port where something else than Spark listens; None: it says nothing."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    connection.recv(1)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
            for connection in held:
                connection.close()


HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 40\r\nConnection: close\r\n\r\n" + b"x" * 40


@pytest.mark.parametrize(
    ("answer", "seconds", "said"),
    [(None, 0.5, "no answer in 0.5 s"), (HTTP, PATIENCE, "something else than Spark answers")],
)
def test_a_master_that_listens_and_is_no_spark_is_named(answer: bytes | None, seconds: float, said: str) -> None:
    with listener(answer) as port:
        master = f"spark://127.0.0.1:{port}"
        with pytest.raises(InvalidInput, match=rf"'{master}' cannot be reached \(127\.0\.0\.1:{port}: {said}\)"):
            check_reachable(master, seconds, {})
        check_reachable(master, seconds, {"spark.ssl.rpc.enabled": "true"})


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "needs HADOOP_CONF_DIR or YARN_CONF_DIR, and neither is set: set HADOOP_CONF_DIR in the environment"),
        ({"YARN_CONF_DIR": "/nowhere"}, "needs YARN_CONF_DIR, which is '/nowhere', and no directory: set HADOOP_CONF"),
        ({"HADOOP_CONF_DIR": ""}, "needs HADOOP_CONF_DIR, which is '', and no directory"),
    ],
)
def test_yarn_without_its_configuration_is_named_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.spark.session._running", lambda: None)
    monkeypatch.setattr("dagster_sqlqueue.spark.session.find_java", lambda: pytest.fail("Java is looked for"))
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=f"Spark's master 'yarn' {said}"):
        open_spark(SparkSettings(master="yarn")).__enter__()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    check_configured("yarn")
    # The variables may be set by Spark's own script.
    monkeypatch.delenv("HADOOP_CONF_DIR")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-env.sh").touch()
    check_configured("yarn")


class Thrown:
    """A Java exception."""

    def __init__(self, message: str | None, cause: "Thrown | None" = None) -> None:
        self._message, self._cause = message, cause

    def getMessage(self) -> str | None:  # noqa: N802
        return self._message

    def getCause(self) -> "Thrown | None":  # noqa: N802
        return self._cause

    def toString(self) -> str:  # noqa: N802
        return "java.lang.Error"


def test_what_java_says_includes_the_causes() -> None:
    refused = Thrown("Connection refused: /127.0.0.1:1", Thrown("Connection refused"))
    said = "An error has occurred.; caused by: Connection refused: /127.0.0.1:1"
    assert driver.causes(Thrown("An error has occurred.", refused)) == said
    assert driver.causes(Thrown(None)) == "java.lang.Error"
    endless = Thrown("again")
    endless._cause = endless
    assert driver.causes(endless) == "again"


@pytest.mark.parametrize("answer", [None, HTTP])
def test_a_connect_server_that_listens_and_is_none_is_named_without_its_token(answer: bytes | None) -> None:
    with listener(answer) as port:
        settings = SparkSettings(remote=f"sc://127.0.0.1:{port}/;user_id=me;x-secret=hush", reach_seconds=1)
        with pytest.raises(InvalidInput, match=f"Connect at sc://127.0.0.1:{port} cannot be reached") as caught:
            remote_session(settings).__enter__()
    assert "nothing that speaks gRPC answered in 1 s" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_a_connect_server_that_is_not_there_is_named() -> None:
    port = free_port()
    settings = SparkSettings(remote=f"sc://127.0.0.1:{port}", reach_seconds=0.5)
    with pytest.raises(InvalidInput, match=f"sc://127.0.0.1:{port} cannot be reached .Connection refused.") as caught:
        remote_session(settings).__enter__()
    assert "start-connect-server.sh" in str(caught.value)


def test_a_grpc_server_of_something_else_is_named() -> None:
    from concurrent import futures

    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        settings = SparkSettings(remote=f"sc://127.0.0.1:{port}", reach_seconds=PATIENCE)
        with pytest.raises(InvalidInput, match="it speaks gRPC, and is no Spark Connect server"):
            remote_session(settings).__enter__()
    finally:
        server.stop(0).wait(PATIENCE)
