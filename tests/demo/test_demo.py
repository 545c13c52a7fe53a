"""The demo as a newcomer runs it: its own process, a real daemon, a real Spark, two days of flights."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from dagster_sqlqueue import SqlQueue
from tests.demo.running import Refusal, finished, interrupted, nothing_left_over, start, succeeded, tables
from tests.gate.patience import FULL, PATIENCE
from tests.support import rows

# Counted in the source file. Of both days: some were diverted, and the arrival of some was never reported.
FLIGHTS, DIVERTED, WITHOUT_ARRIVAL = 1_785, 11, 3
# Of the second day, the one that has reminders; without an address are the airports that the table of airports lacks.
REMINDERS, CANCELLED, WITHOUT_ADDRESS = 943, 8, 26


@pytest.mark.timeout(10 * PATIENCE)
def test_two_days_of_flights_are_worked_off_and_the_result_is_checked(tmp_path: Path, said_by_a_call: Refusal) -> None:
    if FULL:
        output = interrupted(tmp_path)
        assert "`make demo` goes on from there" in output
        assert "Traceback" not in output
        nothing_left_over(tmp_path)

    began = datetime.now(UTC)
    said = succeeded(tmp_path)
    assert f"and {REMINDERS} reminders equal to the source files" in said
    assert "reported no arrival" in said
    nothing_left_over(tmp_path)
    no_run_was_interrupted(tmp_path, began)

    if FULL:
        assert "everything was worked off already" in succeeded(tmp_path)

    with tables(tmp_path) as queue:
        every_flight_was_one_job_that_ended_once(queue)
        every_reminder_ended_once(queue)
        rows(queue, "UPDATE public.airport_daily SET flights = flights + 1 WHERE account = 'ATL'")
        a_difference_is_a_failure(tmp_path, said_by_a_call)


def no_run_was_interrupted(home: Path, began: datetime) -> None:
    """Each run succeeded, but for those that still waited for reminders, or for flights: they were cancelled."""
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        runs = [(run.job_name, run.status) for run in instance.get_runs(dg.RunsFilter(created_after=began))]
    succeeded, cancelled = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED
    assert ("materialize_airport_daily", succeeded) in runs
    assert "drain_reminders" in dict(runs)
    assert [run for run in runs if run[1] != succeeded and (run[1] != cancelled or "drain" not in run[0])] == []


def every_flight_was_one_job_that_ended_once(queue: SqlQueue) -> None:
    query = "SELECT state, count(*), count(DISTINCT id) FROM {s}.job_archive WHERE queue = 'events' GROUP BY state"
    assert {state: (count, ids) for state, count, ids in rows(queue, query)} == {
        "succeeded": (FLIGHTS - WITHOUT_ARRIVAL, FLIGHTS - WITHOUT_ARRIVAL),
        "failed": (WITHOUT_ARRIVAL, WITHOUT_ARRIVAL),
    }
    assert rows(queue, "SELECT count(*) FROM {s}.job") == [(0,)]
    assert rows(queue, "SELECT count(*) FROM {s}.job_archive WHERE queue = 'daily_analytics'") == [(2 * 105,)]
    letters = queue.dead_letters("events")
    assert len(letters) == WITHOUT_ARRIVAL
    assert {letter.attempt for letter in letters} == {3}
    assert all("departed at" in str(letter.error) for letter in letters)
    retried = "SELECT count(*) FROM {s}.job_archive WHERE queue = 'events' AND state = 'succeeded' AND attempt = 2"
    assert rows(queue, retried) >= [(DIVERTED,)]


def every_reminder_ended_once(queue: SqlQueue) -> None:
    query = "SELECT state, count(*), count(DISTINCT id) FROM {s}.job_archive WHERE queue = 'reminders' GROUP BY state"
    sent = REMINDERS - CANCELLED - WITHOUT_ADDRESS
    assert {state: (count, ids) for state, count, ids in rows(queue, query)} == {
        "succeeded": (sent, sent),
        "cancelled": (CANCELLED, CANCELLED),
        "failed": (WITHOUT_ADDRESS, WITHOUT_ADDRESS),
    }


def a_difference_is_a_failure(home: Path, said_by_a_call: Refusal) -> None:
    if FULL:
        process = start(home)
        output = finished(process)
        assert process.returncode == 1
    else:
        output = said_by_a_call(home)
    assert "the SQL table differs from the source files" in output
    assert "ATL" in output
