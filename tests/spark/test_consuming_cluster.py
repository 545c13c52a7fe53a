"""Consuming on a standalone cluster, where executors and drivers are killed and tasks hang: everything is done once."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dagster_sqlqueue import SqlQueue
from tests.faults.gates import Gates
from tests.gate.patience import PATIENCE
from tests.gate.plugin import note_figures
from tests.spark.cluster import JVM_PATIENCE, ROOT, Cluster
from tests.spark.consuming_support import prepare, sales, wrong_in
from tests.spark.test_cluster import SPECULATION
from tests.support import make_due, rows, until

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(cluster: Cluster, queue: SqlQueue, url: str, output: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a driver that consumes the sales."""
    prepare(queue, 40)
    started = []

    def starting(kind: str, **conf: str) -> "subprocess.Popen[bytes]":
        place = [cluster.url, url, queue.database.schema, str(output), str(tmp_path / "gates"), json.dumps(conf)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.consuming_driver", kind, *place],
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


def handled(tmp_path: Path) -> Counter[str]:
    return Counter(line for file in (tmp_path / "gates").glob("seen-*") for line in file.read_text().split())


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["transactional", "leased"])
def test_an_executor_is_killed_while_it_writes(
    cluster: Cluster, start: Start, gates: Gates, queue: SqlQueue, output: Path, kind: str
) -> None:
    gates.arm("task")
    driver = start(kind)
    caught = gates.wait("task")
    cluster.kill_executor_of(caught.pid)
    assert driver.wait(JVM_PATIENCE) == 0
    assert wrong_in(queue, output, sales(40)) == []
    gates.open("task")
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the killed executor's worker")


@pytest.mark.prove
@pytest.mark.usefixtures("two_workers")
def test_a_handler_that_hangs_is_overtaken_by_its_speculative_copy(
    start: Start, gates: Gates, queue: SqlQueue, output: Path, tmp_path: Path
) -> None:
    gates.arm("task")
    driver = start("for_each", **SPECULATION)
    caught = gates.wait("task")
    # Nobody ever opens the gate.
    assert driver.wait(JVM_PATIENCE) == 0
    until(lambda: not psutil.pid_exists(caught.pid), "the end of the task that was overtaken")
    assert wrong_in(queue, output, sales(40), results=False) == []
    # The job at which it hung was run twice; whatever was reported before was not.
    assert sorted(handled(tmp_path).values()) == [1] * 39 + [2]


@pytest.mark.prove
def test_a_driver_is_killed_while_handlers_run_and_what_was_reported_is_not_run_again(
    cluster: Cluster, start: Start, gates: Gates, queue: SqlQueue, output: Path, tmp_path: Path
) -> None:
    gates.arm("task")
    killed = start("for_each")
    caught = gates.wait("task")
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    gates.open("task")
    make_due(queue)
    until(lambda: cluster.executors() == [], "the end of the killed driver's executors", JVM_PATIENCE)
    reported = {str(one) for (one,) in rows(queue, "SELECT job_id FROM {s}.batch_outcome")}
    assert len(reported) >= 6
    gates.arm("task")
    driver = start("for_each")
    caught = gates.wait("task")
    cluster.kill_executor_of(caught.pid)
    assert driver.wait(JVM_PATIENCE) == 0
    assert wrong_in(queue, output, sales(40), results=False) == []
    seen = handled(tmp_path)
    assert len(seen) == 40
    assert {seen[job] for job in reported} == {1}
    note_figures(reported_before=len(reported), handled=sum(seen.values()))
