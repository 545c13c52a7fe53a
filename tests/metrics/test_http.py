"""Metrics over HTTP on the loopback, and the command that serves them."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.metrics import QueueCollector, serve
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.metrics.support import Samples, key, parsed
from tests.support import Work, own_server, until

READY = key("sqlqueue_jobs", queue="work", state="ready")


@pytest.fixture
def cli(url: str, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": queue.database.schema})


def fetched(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return parsed(answer.read().decode())


@contextmanager
def serving(environment: dict[str, str], *words: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """The command in a process of its own, and the first line that it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dagster_sqlqueue.cli", "metrics", *words],
        env={**os.environ, **environment, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_a_scrape_over_http(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    registry = CollectorRegistry()
    registry.register(QueueCollector(queue))
    with serve(registry, port=0) as port:
        assert fetched(port)[READY] == 0
        queue.enqueue_many(spec, [Work(n=n) for n in range(7)])
        assert fetched(port)[READY] == 7
    with pytest.raises(OSError, match="refused"):
        fetched(port)


def test_what_cannot_be_listened_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot listen on port {port}"), serve(CollectorRegistry(), port=port):
            pass
    with pytest.raises(InvalidInput, match="port is 70000"), serve(CollectorRegistry(), port=70_000):
        pass
    with (
        pytest.raises(InvalidInput, match=r"cannot listen on port 0 of address '203\.0\.113\.1'"),
        serve(CollectorRegistry(), port=0, address="203.0.113.1"),
    ):
        pass


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.prove)]
)
def test_the_command_serves_until_it_is_stopped(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], number: signal.Signals, code: int
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    with serving(cli.environment, "--port", "0", "--json") as (process, line):
        event = json.loads(line)
        assert (event["event"], event["address"]) == ("listening", "127.0.0.1")
        assert fetched(event["port"])[READY] == 3
        process.send_signal(number)
        assert process.wait(PATIENCE) == code
        assert process.stderr
        assert process.stderr.read() == ""


def test_the_command_for_people(cli: Cli) -> None:
    with serving(cli.environment, "--port", "0") as (process, line):
        words = line.removeprefix("metrics at http://127.0.0.1:")
        assert words.endswith("/metrics, until Ctrl-C\n")
        assert fetched(int(words.partition("/")[0]))[key("sqlqueue_up")] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_a_database_that_is_away_is_no_failed_scrape() -> None:
    with own_server("a secret", settings=["fsync=off"]) as server:
        url = server.url.replace("postgres@", "postgres:a%20secret@")
        with SqlQueue(url) as queue:
            queue.migrate()
            queue.create_queue(QueueSpec("work", Work))
        server.stop()
        # It starts as well when there is no database yet.
        with serving({"SQLQUEUE_URL": url}, "--port", "0", "--json") as (process, line):
            port = json.loads(line)["port"]
            assert fetched(port)[key("sqlqueue_up")] == 0
            server.start()
            until(lambda: fetched(port)[key("sqlqueue_up")] == 1, "the database")
            assert fetched(port)[READY] == 0
            server.stop()
            away = fetched(port)
            assert away[key("sqlqueue_up")] == 0
            assert READY not in away
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert process.stderr
            said = process.stderr.read()
        assert said.count("metrics: cannot use the database") == 2
        assert "secret" not in said


def test_once_prints_the_exposition(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(5)])
    shown = cli.run("metrics", "--once")
    assert shown.exit_code == 0
    assert parsed(shown.stdout)[READY] == 5
    families: list[dict[str, Any]] = cli.json("metrics", "--once")
    (jobs,) = (family for family in families if family["name"] == "sqlqueue_jobs")
    assert (jobs["type"], jobs["unit"]) == ("gauge", "")
    assert {"labels": {"queue": "work", "state": "ready"}, "value": 5} in jobs["samples"]


def test_once_without_a_database(cli: Cli) -> None:
    away = Cli({**cli.environment, "SQLQUEUE_URL": "postgresql://nobody:secret@127.0.0.1:1/none"})
    done = away.process("metrics", "--once")
    assert done.returncode == 0
    assert parsed(done.stdout.decode())[key("sqlqueue_up")] == 0
    assert b"cannot use the database 127.0.0.1:1/none" in done.stderr
    assert b"secret" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--once", "--port", "1"), "--once was given"),
        (("--port", "70000"), "port is 70000; it must be 0 to 65535"),
        (("--port", "http"), "--port is 'http'"),
        (("--port", "0", "--address", "203.0.113.1"), "cannot listen on port 0 of address '203.0.113.1'"),
    ],
)
def test_what_is_not_usable_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    assert said in cli.refused(2, "metrics", *words)


def test_without_the_extra_the_command_says_what_to_install(cli: Cli) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from dagster_sqlqueue.cli import main\n"
        "sys.argv = ['sqlqueue', 'metrics', '--once']; main()"
    )
    environment = {**os.environ, **cli.environment, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the package prometheus_client is not installed")
    assert "dagster-sqlqueue[metrics]" in done.stderr
