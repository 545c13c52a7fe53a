"""The driver killed (SIGKILL) before every single step from lease to completion, in both modes: the next run finishes it.

The drivers are processes without a JVM, forked from one that has everything loaded: they seal, read by the code that Spark's
tasks run, stage, report, publish and move files as a driver with Spark does. Drivers with a JVM, and executors, are killed
in `test_consuming_cluster.py`; that a DataFrame of the batch has the same rows as this reading, `test_consuming.py` shows.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy.engine import make_url

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE, sized
from tests.gate.plugin import note_figures, verdict
from tests.spark import daily_support, kill_driver
from tests.spark.consuming_support import endings, in_table, prepare, sales, wrong_in
from tests.support import make_due, rows, until, value
from tests.support.few import few

ANSWER_SECONDS = kill_driver.DRIVER_SECONDS + PATIENCE
LOCK_SECONDS = round(PATIENCE)
NO_THREADS = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Arrow's allocator and NumPy's BLAS begin threads when they are loaded: a fork would take their locks along, not them."""


class Drivers:
    """A process that has everything loaded, and forks a driver for each call.

    Args:
        home: for what it writes.
    """

    def __init__(self, home: Path) -> None:
        self._stacks = home / "stacks"
        self._errors = home / "errors"
        with self._errors.open("w") as errors:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kill_driver", str(self._stacks)],
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT), **NO_THREADS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __call__(self, queue: SqlQueue, url: str, output: Path, mode: str, last: int | None) -> int:
        """The exit code of a driver that dies before step `last`; None: of one that does not."""
        assert self._server.stdin
        assert self._server.stdout
        order = (marked(url), queue.database.schema, str(output), str(mode), last, str(output.with_name("log")))
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answered, _, _ = select.select([self._server.stdout], [], [], ANSWER_SECONDS)
        assert answered, f"no answer about step {last} within {ANSWER_SECONDS} s; {self.said()}; {sessions(queue)}"
        answer = self._server.stdout.readline()
        assert answer, f"the process that forks has ended at step {last}; {self.said()}"
        code = int(answer)
        assert code in (0, -signal.SIGKILL), f"step {last}: {code}; {self.said()}; {sessions(queue)}"
        return code

    def said(self) -> str:
        """What a driver that was stuck, or failed, left to be read."""
        stacks = self._stacks.read_text() if self._stacks.exists() else ""
        return f"stacks of the last driver:\n{stacks}\nits errors:\n{self._errors.read_text()[-3000:]}"

    def close(self) -> None:
        """End it, with the driver that it may wait for."""
        below = psutil.Process(self._server.pid).children() if self._server.poll() is None else []
        for driver in below:
            driver.kill()
        try:
            self._server.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(PATIENCE)
            raise


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path_factory.mktemp("drivers"))
    yield drivers
    drivers.close()


def marked(url: str) -> str:
    """The URL for a driver: each of its connections has its name, and no statement waits for a lock for ever."""
    options = f"-c lock_timeout={LOCK_SECONDS}s"
    query = {"application_name": kill_driver.APPLICATION, "options": options}
    return make_url(url).update_query_dict(query).render_as_string(hide_password=False)


def sessions(queue: SqlQueue) -> str:
    """Who does what in the database, and who waits for whom."""
    found = rows(
        queue,
        "SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid), xact_start,"
        " left(query, 200) FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY pid",
    )
    return "sessions:\n" + "\n".join(map(str, found))


def gone(queue: SqlQueue) -> None:
    """Wait until the server has noticed that the killed driver's connections are closed."""

    def none_left() -> bool:
        here = value(
            queue, "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", kill_driver.APPLICATION
        )
        return int(here) == 0

    try:
        until(none_left, "the server's end of the killed driver's connections")
    except AssertionError as error:
        raise AssertionError(f"{error}; {sessions(queue)}") from None


def empty(queue: SqlQueue, output: Path) -> None:
    rows(
        queue,
        f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s';"
        " TRUNCATE {s}.job, {s}.job_archive, {s}.batch, {s}.batch_outcome, {s}.batch_pack;"
        " DROP TABLE IF EXISTS {s}.totals",
    )
    for path in sorted(output.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


@verdict
def half_published(queue: SqlQueue, at: str) -> list[str]:
    """All or nothing: rows in the table, and ended jobs."""
    there, ended = bool(in_table(queue)), endings(queue)
    right = there == (("succeeded", 27, 27) in ended)
    return [] if right else [f"killed before {at}: the table has {'' if there else 'no '}rows, and ended are {ended}"]


def points(steps: int) -> list[int]:
    """The steps before which a driver is killed: a few from lease to completion, or all of them."""
    return sized([steps // 4, steps // 2, steps - 1], list(range(1, steps + 1)))


@pytest.mark.timeout(10 * PATIENCE)
@pytest.mark.parametrize("mode", few([*Mode, kill_driver.PACKED], 1))
def test_a_driver_that_is_killed_at_any_step_is_finished_by_the_next(
    driver: Drivers, queue: SqlQueue, url: str, output: Path, mode: str
) -> None:
    prepare(queue)
    assert driver(queue, url, output, mode, None) == 0
    assert wrong_in(queue, output, sales()) == []
    log = output.with_name("log")
    jobs, *steps = log.read_text().split()
    assert (int(jobs), len(steps) > 20) == (30, True)
    published = set()
    kills = 0
    for last in points(len(steps)):
        empty(queue, output)
        prepare(queue)
        if driver(queue, url, output, mode, last) == 0:
            # On a machine that stood still, the first one tested a connection that had been idle: a step more.
            assert len(log.read_text().split()) - 1 < last, (last, steps[last - 1])
            assert wrong_in(queue, output, sales()) == []
            continue
        gone(queue)
        kills += 1
        published.add(bool(in_table(queue)))
        assert half_published(queue, f"step {last}, {steps[last - 1]}") == []
        make_due(queue)
        assert driver(queue, url, output, mode, None) == 0
        assert wrong_in(queue, output, sales()) == [], (last, steps[last - 1])
    note_figures(mode=mode, steps=len(steps), kills=kills)
    assert published == {False, True}


@pytest.mark.timeout(10 * PATIENCE)
@pytest.mark.parametrize(("mode", "at_once"), few([(kill_driver.DAILY, 3), (kill_driver.PARTS, 1)], 1))
def test_a_run_of_the_same_days_that_is_killed_at_any_step_is_finished_by_the_next(
    driver: Drivers, queue: SqlQueue, url: str, output: Path, mode: str, at_once: int
) -> None:
    """From before the lease until the files are in their place, with the statements of the seal among the steps. No kill
    spends an attempt of a job, and the table has all of the days that are published together, or nothing of them.
    """
    whole = range(0, len(daily_support.DAYS) + 1, at_once)
    log = output.with_name("log")
    tables = "TRUNCATE {s}.job, {s}.job_archive, {s}.batch, {s}.batch_outcome, {s}.batch_pack;"
    tables += " DROP TABLE IF EXISTS {s}.results"
    daily_support.prepare(queue)
    assert driver(queue, url, output, mode, None) == 0
    assert daily_support.wrong_in(queue, output) == []
    jobs, *steps = log.read_text().split()
    assert (int(jobs), len(steps) > 20) == (9, True)
    published, kills = set(), 0
    for last in points(len(steps)):
        rows(queue, f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; {tables}")
        for path in sorted(output.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        daily_support.prepare(queue)
        if driver(queue, url, output, mode, last) == 0:
            assert daily_support.wrong_in(queue, output) == []
            continue
        gone(queue)
        kills += 1
        there, ended = daily_support.in_table(queue), daily_support.endings(queue)
        days = len({day for day, *_ in there})
        assert days in whole, f"killed before step {last}, {steps[last - 1]}: the table has {days} days"
        first = daily_support.DAYS[:days]
        assert (there, ended) == (daily_support.expected(first), daily_support.once(first)), (last, steps[last - 1])
        published.add(days)
        make_due(queue)
        assert driver(queue, url, output, mode, None) == 0
        assert daily_support.wrong_in(queue, output) == [], (last, steps[last - 1])
        assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive WHERE queue = 'daily'") == [(1,)]
    note_figures(mode=mode, steps=len(steps), kills=kills)
    assert published >= sized({3}, set(whole))
