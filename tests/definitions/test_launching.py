"""Every job of the code locations can be launched with the configuration that the launchpad opens with."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from definitions.daily_analytics import daily_analytics
from definitions.events import events
from definitions.flights import job_id, read_flights
from definitions.reminders import reminders
from tests.gate.patience import PATIENCE

PROJECT = Path(__file__).resolve().parents[2]
DAY = date(2013, 1, 1)
QUEUES = (events, reminders, daily_analytics)
LAUNCHED = ("drain_events", "drain_reminders", "events_show", "events_redrive", "reminders_redrive")
ASSETS = {"queues/daily_analytics", "airport_daily", "event_daily", "reminder_daily"}

Launch = Callable[..., dict[str, Any]]


@pytest.fixture
def launch(url: str, schema: str, tmp_path: Path) -> Launch:
    def launched(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.definitions.launchpad", DAY.isoformat(), *arguments],
            cwd=PROJECT,
            env={
                **os.environ,
                "SQLQUEUE_URL": url,
                "SQLQUEUE_SCHEMA": schema,
                "SQLQUEUE_HOME": str(tmp_path),
                "PYTHONPATH": str(PROJECT),
                "FLIGHTS": DAY.isoformat(),
            },
            capture_output=True,
            text=True,
            timeout=8 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    with SqlQueue(url, schema=schema) as queue:
        queue.migrate()
        for spec in QUEUES:
            queue.create_queue(spec)
    return launched


def test_every_job_opens_with_a_config_that_can_be_launched(launch: Launch) -> None:
    found = launch("--hurry", *LAUNCHED)
    assert set(found) >= {*LAUNCHED, *ASSETS}
    for name, report in found.items():
        assert report["errors"] == [], (name, report)
        assert "url" not in report["config"], name
        assert "****" not in report["config"], name
    assert {name: found[name]["status"] for name in LAUNCHED} == dict.fromkeys(LAUNCHED, "SUCCESS")


@pytest.mark.prove
@pytest.mark.timeout(1_200)
def test_every_job_is_launched_with_what_the_launchpad_fills_in(launch: Launch, url: str, schema: str) -> None:
    """One after the other, on a day of flights: the daily asset by itself, and by the job of its sensor."""
    with SqlQueue(url, schema=schema) as queue:
        queue.enqueue_many(events, (NewJob(flight, id=job_id(flight)) for flight in read_flights(DAY, DAY)))
    found = launch()
    assert set(found) >= {*LAUNCHED, *ASSETS, "materialize_airport_daily", "daily_analytics_fanout_job"}
    for name, report in found.items():
        assert report["status"] == "SUCCESS", (name, report)
    with SqlQueue(url, schema=schema) as queue:
        assert [queue.depth(spec.name).live for spec in QUEUES] == [0, 0, 0]
