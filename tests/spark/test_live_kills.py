"""A driver with a live Spark session killed (SIGKILL) again and again on the same days, from lease to completion."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dagster_sqlqueue import SqlQueue
from tests.faults.gates import Gates
from tests.gate.patience import PATIENCE
from tests.gate.plugin import note_figures, verdict
from tests.spark.cluster import JVM_PATIENCE, ROOT
from tests.spark.daily_support import DAYS, endings, expected, in_files, in_table, once, prepare, wrong_in
from tests.spark.drivers import gone, marked
from tests.support import make_due, rows, until

KILLS = 20
IN_TASKS = 2
"""Kills while a task of Spark's is at work, beside those before a step of the driver's own."""


class LiveDriver:
    """Starts drivers with Spark, one after another.

    Attributes:
        log: the file to which a driver writes the steps that it came to.
    """

    def __init__(self, queue: SqlQueue, url: str, output: Path, home: Path) -> None:
        self.queue = queue
        self.log, self._jvm = home / "log", home / "jvm"
        self._place = [marked(url), queue.database.schema, str(output), str(home / "gates"), str(self.log)]

    def begin(self, last: int = 0) -> "subprocess.Popen[bytes]":
        """Start a driver that dies before step `last`; 0: of none."""
        self._jvm.unlink(missing_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.live_driver", *self._place, str(self._jvm), str(last)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
        )

    def ended(self, driver: "subprocess.Popen[bytes]") -> int:
        """The exit code of a driver, when its JVM and its connections are gone as well."""
        code = driver.wait(JVM_PATIENCE)
        assert code in (0, -signal.SIGKILL), code
        jvm = int(self._jvm.read_text())
        until(lambda: ended(jvm), "the end of the driver's JVM")
        gone(self.queue)
        return code

    def steps(self) -> list[str]:
        return self.log.read_text().split()


def ended(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@verdict
def half_done(queue: SqlQueue, output: Path) -> list[str]:
    """What is neither as before nor as after, and jobs that have spent an attempt without having ended."""
    there, ended = in_table(queue), endings(queue)
    wrong = [] if (there, ended) in (([], []), (expected(DAYS), once())) else [f"rows {there}, ended {ended}"]
    if not ended and in_files(output):
        wrong.append(f"files {in_files(output)}")
    live = rows(
        queue,
        "SELECT DISTINCT {s}.attempts_spent(attempt, state, alone), count(*) OVER () FROM {s}.job WHERE queue = 'daily'",
    )
    if live != ([] if ended else [(0, len(once()))]):
        wrong.append(f"attempts spent, and live jobs: {live}")
    return wrong


@pytest.mark.prove
@pytest.mark.timeout(20 * PATIENCE)
def test_a_driver_with_a_live_spark_that_is_killed_again_and_again_on_the_same_days(
    queue: SqlQueue, url: str, output: Path, tmp_path: Path, gates: Gates
) -> None:
    """Nothing is reset between the kills, and more of them than a job has attempts."""
    driver = LiveDriver(queue, url, output, tmp_path)
    # How many steps there are, of days that are of no further use.
    prepare(queue)
    assert driver.ended(driver.begin()) == 0
    steps = len(driver.steps())
    assert steps > KILLS
    rows(
        queue, "TRUNCATE {s}.job, {s}.job_archive, {s}.batch, {s}.batch_outcome, {s}.batch_pack; DROP TABLE {s}.results"
    )
    for path in sorted(output.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    prepare(queue)

    kills, before = 0, []
    for _ in range(IN_TASKS):
        gates.arm("task")
        killed = driver.begin()
        gates.wait("task")
        killed.kill()
        gates.open("task")
        assert driver.ended(killed) == -signal.SIGKILL
        kills += 1
        assert half_done(queue, output) == [], "in a task"
        make_due(queue)
    # From the first step, which opens the batches, to the last ones, which move the files.
    last, done = 1, False
    while not done:
        done = driver.ended(driver.begin(last)) == 0
        if not done:
            kills += 1
            before.append(driver.steps()[-1])
            assert half_done(queue, output) == [], (last, before[-1])
            make_due(queue)
        # A takeover has more steps than a first run: what it leases again.
        last += max(1, 4 * steps // (3 * KILLS))
    assert driver.ended(driver.begin()) == 0
    assert wrong_in(queue, output) == []
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive WHERE queue = 'daily'") == [(1,)]
    assert kills >= KILLS
    note_figures(kills=kills, steps=steps)
