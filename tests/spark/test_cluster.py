"""Consuming on a standalone cluster, where executors and drivers are killed: the results are those of plain Python."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.faults.gates import Gates
from tests.gate.patience import PATIENCE
from tests.gate.plugin import verdict
from tests.spark.cluster import JVM_PATIENCE, ROOT, Cluster
from tests.spark.daily_support import ACCOUNTS, DAYS, expected, in_files, in_table, prepare, waiting, wrong_in
from tests.spark.support import NOON, Done, archive
from tests.support import Work, make_due, rows, until

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_driver(cluster: Cluster, queue: SqlQueue, url: str, output: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a driver's process, by its module."""
    started = []

    def starting(module: str, **conf: Any) -> "subprocess.Popen[bytes]":
        arguments = [cluster.url, url, queue.database.schema, str(output), str(tmp_path / "gates"), json.dumps(conf)]
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.{module}", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield starting
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE)


@pytest.fixture
def start(start_driver: Start, queue: SqlQueue) -> Start:
    """Start a driver that consumes the days."""
    prepare(queue)
    return partial(start_driver, "cluster_driver")


@pytest.fixture
def start_flow(start_driver: Start, queue: SqlQueue) -> Start:
    """Start a driver that streams 100 ended jobs to the queue `copied`, and writes 100 rows to it."""
    queue.create_queue(QueueSpec("copied", Work))
    archive(queue, [Done({"n": n}, at=NOON + timedelta(seconds=n)) for n in range(100)])
    return partial(start_driver, "cluster_flow_driver")


@verdict
def wrong_in_the_copy(queue: SqlQueue) -> list[str]:
    """Where a number is not on the queue `copied`, or is there more than once."""
    found = rows(queue, "SELECT CAST(payload ->> 'n' AS integer) FROM {s}.job WHERE queue = 'copied' ORDER BY 1")
    written = rows(queue, "SELECT batch, jobs, duplicates FROM {s}.spark_write ORDER BY name")
    return [
        *([] if [n for (n,) in found] == list(range(200)) else [f"on the queue are {found}"]),
        *([] if written == [(0, 100, 0), (0, 100, 0)] else [f"noted as written is {written}"]),
    ]


@pytest.mark.prove
def test_an_executor_is_killed_in_the_middle_of_a_stage(
    cluster: Cluster, start: Start, gates: Gates, queue: SqlQueue, output: Path
) -> None:
    gates.arm("task")
    driver = start()
    caught = gates.wait("task")
    cluster.kill_executor_of(caught.pid)
    assert driver.wait(JVM_PATIENCE) == 0
    assert wrong_in(queue, output) == []
    gates.open("task")
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the killed executor's worker")


@pytest.mark.prove
@pytest.mark.usefixtures("two_workers")
def test_a_task_that_hangs_is_overtaken_by_its_speculative_copy(
    start: Start, gates: Gates, queue: SqlQueue, output: Path
) -> None:
    gates.arm("task")
    driver = start(**SPECULATION)
    caught = gates.wait("task")
    # Nobody ever opens the gate.
    assert driver.wait(JVM_PATIENCE) == 0
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the task that was overtaken")
    assert wrong_in(queue, output) == []


@pytest.mark.prove
def test_a_driver_is_killed_while_executors_work(
    cluster: Cluster, start: Start, gates: Gates, queue: SqlQueue, output: Path
) -> None:
    gates.arm("task")
    killed = start()
    gates.wait("task")
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("running", 1)}
    make_due(queue)
    assert start().wait(JVM_PATIENCE) == 0
    assert wrong_in(queue, output) == []
    until(lambda: cluster.executors() == [], "the end of the killed driver's executors", JVM_PATIENCE)


@pytest.mark.prove
@pytest.mark.usefixtures("two_workers")
def test_a_task_of_a_stream_that_is_overtaken_enqueues_nothing(
    start_flow: Start, gates: Gates, queue: SqlQueue
) -> None:
    gates.arm("task")
    driver = start_flow(**SPECULATION)
    caught = gates.wait("task")
    # Nobody ever opens the gate.
    assert driver.wait(JVM_PATIENCE) == 0
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the task that was overtaken")
    assert wrong_in_the_copy(queue) == []


@pytest.mark.prove
def test_a_stream_whose_driver_and_then_whose_executor_is_killed(
    cluster: Cluster, start_flow: Start, gates: Gates, queue: SqlQueue
) -> None:
    gates.arm("task")
    killed = start_flow()
    gates.wait("task")
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    assert rows(queue, "SELECT 1 FROM {s}.job WHERE queue = 'copied'") == []
    gates.arm("task")
    driver = start_flow()
    caught = gates.wait("task")
    cluster.kill_executor_of(caught.pid)
    assert driver.wait(JVM_PATIENCE) == 0
    gates.open("task")
    assert wrong_in_the_copy(queue) == []


@pytest.mark.prove
@pytest.mark.parametrize("by_tasks", [False, True])
def test_an_archive_asset_is_materialised_though_an_executor_is_killed(
    cluster: Cluster, start_driver: Start, gates: Gates, queue: SqlQueue, output: Path, by_tasks: bool
) -> None:
    prepare(queue)
    gates.arm("task")
    driver = start_driver("cluster_asset_driver", by_tasks=by_tasks)
    caught = gates.wait("task")
    cluster.kill_executor_of(caught.pid)
    assert driver.wait(JVM_PATIENCE) == 0
    everybody = expected(DAYS, (*ACCOUNTS, "nobody's"))
    assert in_files(output) == everybody
    assert in_table(queue) == ([] if by_tasks else everybody)
    assert list(output.glob(".staging/*")) == []
    # Nothing was claimed.
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    gates.open("task")
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the killed executor's worker")


@pytest.mark.prove
@pytest.mark.usefixtures("two_workers")
def test_the_daily_asset_is_materialised_by_two_workers_though_an_executor_is_killed(
    cluster: Cluster, start_driver: Start, gates: Gates, queue: SqlQueue, output: Path
) -> None:
    """In Dagster, as it is on one machine: what it writes, shows and checks, and that a second run has nothing to do."""
    prepare(queue)
    gates.arm("task")
    driver = start_driver("cluster_asset_driver", daily=True)
    caught = gates.wait("task")
    cluster.kill_executor_of(caught.pid)
    assert driver.wait(JVM_PATIENCE) == 0
    assert wrong_in(queue, output) == []
    assert in_table(queue) == in_files(output) == expected(DAYS)
    gates.open("task")
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the killed executor's worker")
