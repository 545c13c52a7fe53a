"""The driver killed (SIGKILL) before every single step from lease to completion, in both modes: the next run finishes it.

The drivers are processes without a JVM, forked from one that has everything loaded: they seal, read by the code that Spark's
tasks run, stage, report, publish and move files as a driver with Spark does. Drivers with a JVM, and executors, are killed
in `test_consuming_cluster.py`; that a DataFrame of the batch has the same rows as this reading, `test_consuming.py` shows.
"""

import contextlib
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from tests.gate.patience import FULL, PATIENCE, sized
from tests.gate.plugin import note_figures, verdict
from tests.spark import daily_support, kill_driver
from tests.spark.consuming_support import endings, in_table, prepare, sales, wrong_in
from tests.spark.drivers import LOCK_SECONDS, Drivers, gone, sessions
from tests.support import asked, caller, make_due, rows, until
from tests.support.few import few


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path_factory.mktemp("drivers"))
    yield drivers
    drivers.close()


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
    jobs, *steps = driver.log.read_text().split()
    assert (int(jobs), len(steps) > 20) == (30, True)
    published = set()
    kills = 0
    for last in points(len(steps)):
        empty(queue, output)
        prepare(queue)
        if driver(queue, url, output, mode, last) == 0:
            # On a machine that stood still, the first one tested a connection that had been idle: a step more.
            assert len(driver.log.read_text().split()) - 1 < last, (last, steps[last - 1])
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
    tables = "TRUNCATE {s}.job, {s}.job_archive, {s}.batch, {s}.batch_outcome, {s}.batch_pack;"
    tables += " DROP TABLE IF EXISTS {s}.results"
    daily_support.prepare(queue)
    assert driver(queue, url, output, mode, None) == 0
    assert daily_support.wrong_in(queue, output) == []
    jobs, *steps = driver.log.read_text().split()
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


SEAL, RENEWAL, PUBLICATION = "AS asked (id, token, day)", "j.batch_id = mine.id", "succeed_batch("
"""Words of the statements that lease jobs to the batches, lease them again, and end them."""

INSIDE = [
    (SEAL, "2013-01-01", "ATL", False),
    (SEAL, "2013-01-02", "BOS", False),
    (SEAL, "2013-01-03", "O'Hare", False),
    (SEAL, "2013-01-02", "ATL", True),
    (RENEWAL, "2013-01-01", "BOS", False),
    (RENEWAL, "2013-01-03", "ATL", True),
    (PUBLICATION, "2013-01-02", "O'Hare", False),
    (PUBLICATION, "2013-01-01", "ATL", True),
]
"""A statement, the job at which it is held up, and whether the server goes on with it after the driver has died."""


@contextlib.contextmanager
def held_up(queue: SqlQueue, url: str, day: str, account: str, event: str) -> Iterator[psycopg.Connection]:
    """Statements that lease a job, or delete it, wait in the midst of their work for the connection to let them go on."""
    rows(
        queue,
        "CREATE OR REPLACE FUNCTION {s}.hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF OLD.payload->>'day' = TG_ARGV[0] AND OLD.payload->>'account' = TG_ARGV[1] THEN"
        " PERFORM pg_advisory_xact_lock_shared(1808); END IF;"
        " IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$",
    )
    arguments = ", ".join("'" + one.replace("'", "''") + "'" for one in (day, account))
    rows(
        queue,
        f"CREATE TRIGGER hold_up BEFORE {event} ON {{s}}.job FOR EACH ROW EXECUTE FUNCTION {{s}}.hold_up({arguments})",
    )
    with caller(url) as holding:
        holding.execute("SELECT pg_advisory_lock(1808)")
        yield holding
    rows(queue, f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; DROP TRIGGER hold_up ON {{s}}.job")


def killed_inside(driver: Drivers, queue: SqlQueue, url: str, output: Path, at: tuple[str, str, str, bool]) -> None:
    """Kill a driver while its statement is at work. The server breaks the statement off, or goes on with it: it does not
    know that the driver is gone before it has an answer to send.
    """
    statement, day, account, goes_on = at
    event = "DELETE" if statement == PUBLICATION else "UPDATE OF lease_no"
    waits = "application_name = %s AND wait_event = 'advisory'"
    with held_up(queue, url, day, account, event) as holding:
        driver.begin(queue, url, output, kill_driver.DAILY, None)
        until(lambda: rows(queue, f"SELECT pid FROM pg_stat_activity WHERE {waits}", kill_driver.APPLICATION), str(at))
        assert asked(queue, statement), (at, sessions(queue))
        driver.kill()
        assert driver.ended(queue, None) == -signal.SIGKILL
        if not goes_on:
            end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {waits}"
            assert rows(queue, end, kill_driver.APPLICATION) == [(True,)]
            gone(queue)
        holding.execute("SELECT pg_advisory_unlock(1808)")
        gone(queue)


def of_sql(queue: SqlQueue) -> list[tuple[object, ...]]:
    """The results of the days, by SQL over the archived events."""
    return rows(
        queue,
        "SELECT CAST(payload->>'day' AS date), payload->>'account', count(*), CAST(sum((payload->>'size')::int) AS bigint)"
        " FROM {s}.job_archive WHERE queue = 'work' AND payload->>'account' = ANY(%s)"
        " GROUP BY 1, 2 ORDER BY 1, 2",
        list(daily_support.ACCOUNTS),
    )


@verdict
def spent_in(queue: SqlQueue, output: Path, before: dict[str, int]) -> list[str]:
    """What a kill before the publication has published, or spent: of the jobs nothing, of each batch one attempt at most."""
    batches = rows(queue, "SELECT key, state, token, attempt FROM {s}.batch ORDER BY key")
    spent = "sqlqueue.attempts_spent(attempt, state, alone)".replace("sqlqueue", "{s}")
    jobs = rows(queue, f"SELECT DISTINCT {spent}, count(*) OVER () FROM {{s}}.job WHERE queue = 'daily'")
    wrong = [f"attempts spent, and live jobs: {jobs}"] if jobs != [(0, 9)] else []
    if done := daily_support.endings(queue) + daily_support.in_table(queue) + daily_support.in_files(output):
        wrong.append(f"published: {done}")
    for key, state, token, attempt in batches:
        known = before.get(key, 0)
        if (state not in ("sealing", "sealed")) or token != attempt or attempt - known not in (0, 1):
            wrong.append(f"{key}: {state}, token {token}, attempt {attempt} after {known}")
    if len(batches) != len({key for key, *_ in batches}) or len(batches) not in (0, 3):
        wrong.append(f"batches: {batches}")
    before.update({key: attempt for key, _, _, attempt in batches})
    return wrong


@pytest.mark.timeout(10 * PATIENCE)
def test_a_run_of_the_same_days_that_is_killed_again_and_again_is_finished_by_one_that_is_not(
    driver: Drivers, queue: SqlQueue, url: str, output: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing is reset between the kills: inside of the statements that seal, renew and publish, and then each one step
    later, up to the publishing transaction. More kills than a job has attempts. In full size Spark computes in the end.
    """
    daily_support.prepare(queue)
    attempts: dict[str, int] = {}
    kills = 0
    for at in sized(INSIDE[3:4], INSIDE):
        killed_inside(driver, queue, url, output, at)
        kills += 1
        assert spent_in(queue, output, attempts) == [], at
        make_due(queue)
    for last in sized(iter((12, 30)), itertools.count(1)):
        assert driver(queue, url, output, kill_driver.DAILY, last) == -signal.SIGKILL
        kills += 1
        gone(queue)
        step = driver.log.read_text().split()[-1]
        assert spent_in(queue, output, attempts) == [], (last, step)
        make_due(queue)
        if step == "Cursor.copy":  # The rows of the table: the publishing transaction is under way.
            break
    assert kills >= sized(3, 20)
    if FULL:
        daily_support.consume(queue, request.getfixturevalue("spark"), output, lease_seconds=600.0)
    else:
        assert driver(queue, url, output, kill_driver.DAILY, None) == 0
    assert daily_support.wrong_in(queue, output) == []
    assert daily_support.in_table(queue) == daily_support.in_files(output) == of_sql(queue)
    assert rows(queue, "SELECT DISTINCT attempt, max_attempts FROM {s}.job_archive WHERE queue = 'daily'") == [(1, 5)]
    found = rows(queue, "SELECT key, state, attempt, token FROM {s}.batch ORDER BY key")
    assert found == [(key, "published", known + 1, known + 1) for key, known in sorted(attempts.items())]
    note_figures(kills=kills, takeovers_of_a_batch=max(attempts.values()))
