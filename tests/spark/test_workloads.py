"""The demo's assets of the archive, on flights that are archived here: equal to what pandas counts in the source file."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.spark.resource import SparkResource
from definitions.archive_days import EVENT_TABLE, REMINDER_TABLE, event_daily, reminder_daily
from definitions.events import events
from definitions.flights import source_file
from definitions.reminders import reminders
from tests.spark.support import Done, archive
from tests.support import rows

DAY = "2013-01-31"
SENT = datetime(2013, 1, 31, 18, tzinfo=UTC)


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    found = pd.read_csv(source_file("flights"), usecols=["month", "day", "dest", "dep_time", "arr_time", "dep_delay"])
    return found[(found["month"] == 1) & (found["day"] == 31)]


@pytest.fixture
def run(queue: SqlQueue, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SQLQUEUE_HOME", str(tmp_path))
    for spec in (events, reminders):
        queue.create_queue(spec)
    resources = {"sqlqueue": SqlQueueResource(url=url, schema_name=queue.database.schema), "spark": SparkResource()}
    for table in (EVENT_TABLE, REMINDER_TABLE):
        rows(queue, f"DROP TABLE IF EXISTS {table}")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield lambda asset: dg.materialize([asset], partition_key=DAY, resources=resources, instance=instance)
    for table in (EVENT_TABLE, REMINDER_TABLE):
        rows(queue, f"DROP TABLE IF EXISTS {table}")


def checks(done: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {one.check_name: one.passed for one in done.get_asset_check_evaluations()}


def test_events_per_account_and_day(queue: SqlQueue, session: SparkSession, run: Any, flights: pd.DataFrame) -> None:
    lost = flights["dep_time"].notna() & flights["arr_time"].isna()
    archive(
        queue,
        [
            Done({"day": DAY, "dest": dest}, state="failed" if gone else "succeeded", at=SENT)
            for dest, gone in zip(flights["dest"], lost, strict=True)
        ],
        events.name,
    )
    done = run(event_daily)
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}
    counted = flights.assign(lost=lost).groupby("dest")["lost"].agg(["size", "sum"]).sort_index()
    assert len(counted) > 70
    expected = [
        (name, int(size), int(size - gone), int(gone), int(size), 60.0) for name, size, gone in counted.itertuples()
    ]
    found = rows(
        queue,
        f'SELECT account, events, handled, failed, attempts, p95_seconds FROM {EVENT_TABLE} ORDER BY account COLLATE "C"',
    )
    assert found == expected


def test_reminders_delivered_on_time(queue: SqlQueue, session: SparkSession, run: Any) -> None:
    def reminder(account: str, late: timedelta | None = None) -> dict[str, Any]:
        until = None if late is None else (SENT - timedelta(hours=1) + late).isoformat()
        return {"day": DAY, "account": account, "late_until": until}

    # Each was to be sent an hour before it was.
    archive(
        queue,
        [
            Done(reminder("ATL"), at=SENT),
            Done(reminder("ATL", timedelta(minutes=59)), at=SENT),
            Done(reminder("ATL", timedelta(minutes=58)), at=SENT),
            Done(reminder("BOS"), at=SENT, state="cancelled"),
            Done(reminder("SJU"), at=SENT, state="failed"),
            Done(reminder("SJU", timedelta(minutes=60)), at=SENT),
        ],
        reminders.name,
    )
    assert checks(run(reminder_daily)) == {"rows_in_rows_out": True, "no_account_missing": True}
    found = rows(
        queue,
        f"SELECT account, reminders, sent, on_time, called_off, undeliverable, p95_seconds FROM {REMINDER_TABLE} ORDER BY 1",
    )
    # Waits of 3600, 60 and 120 seconds: the percentile is between the last two of them.
    assert found == [
        ("ATL", 3, 3, 1, 0, 0, pytest.approx(120 + 0.9 * 3480)),
        ("BOS", 1, 0, 0, 1, 0, None),
        ("SJU", 2, 1, 1, 0, 1, 0.0),
    ]
