"""The checks of the daily analytics: the queue's health, and the deadline of each account's day."""

from datetime import UTC, date, datetime, time, timedelta

import dagster as dg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.orchestration.checks import NAMES
from dagster_sqlqueue.orchestration.fanout import daily_jobs, due_at
from dagster_sqlqueue.queue import Ending
from definitions import daily_analytics
from tests.support import rows
from tests.support.cleared import own_schema


def checked(queue: SqlQueue, url: str, instance: dg.DagsterInstance) -> dict[str, dg.AssetCheckEvaluation]:
    resource = SqlQueueResource(url=url, schema_name=queue.database.schema)
    defs = dg.Definitions(
        assets=[daily_analytics.fan_out],
        asset_checks=daily_analytics.checks,
        schedules=[daily_analytics.checking],
        resources={"sqlqueue": resource},
    )
    done = defs.resolve_job_def("daily_analytics_checks").execute_in_process(instance=instance)
    return {found.check_name: found for found in done.get_asset_check_evaluations()}


def test_days_that_were_not_run_are_found_after_eight(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_schema(url, "daily_checks") as queue, dg.DagsterInstance.ephemeral() as instance:
        queue.create_queue(daily_analytics.daily_analytics)
        found = checked(queue, url, instance)
        assert found.keys() == {*NAMES, "done_by_0800"}
        assert all(one.passed for one in found.values()), "the demo has no day of these"
        today = datetime.now(UTC).date()
        monkeypatch.setattr(daily_analytics, "first_day", today - timedelta(days=3))
        monkeypatch.setattr(daily_analytics, "last_day", date.max)
        late = checked(queue, url, instance)["done_by_0800"]
        assert not late.passed
        assert late.metadata["missing"].value == 2 * len(daily_analytics.accounts())


def test_nothing_is_due_after_eight_by_the_clocks_of_each_airport(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, accounts = daily_analytics.daily_analytics, list(daily_analytics.accounts())
    zones = {account.zone: account.name for account in accounts}
    assert len(zones) > 5
    with own_schema(url, "daily_deadlines") as queue, dg.DagsterInstance.ephemeral() as instance:
        queue.create_queue(spec)
        today = datetime.now(UTC).date()
        days = [today - timedelta(days=back) for back in range(1, 5)]
        monkeypatch.setattr(daily_analytics, "first_day", days[-1])
        monkeypatch.setattr(daily_analytics, "last_day", date.max)
        for day in days:
            queue.enqueue_many(spec, daily_jobs(spec.name, day, accounts))
        while jobs := queue.claim(spec.name, limit=1_000, lease_seconds=3_600, worker="w"):
            queue.finish([Ending(job, ArchiveState.SUCCEEDED) for job in jobs])
        update = "UPDATE {s}.job_archive SET finished_at = %s WHERE payload->>'day' = %s AND payload->>'zone' = %s"
        for day in days:
            for zone in zones:
                rows(queue, update, due_at(day, zone, time(8)), day.isoformat(), zone)
        in_time = checked(queue, url, instance)["done_by_0800"]
        assert in_time.passed
        assert in_time.metadata["done_in_time"].value == 2 * len(accounts)
        # A second later for one airport of each zone, on every day.
        later = (
            "UPDATE {s}.job_archive SET finished_at = finished_at + interval '1 s' WHERE payload->>'account' = ANY(%s)"
        )
        rows(queue, later, list(zones.values()))
        late = checked(queue, url, instance)["done_by_0800"]
        assert not late.passed
        assert late.metadata["late"].value == 2 * len(zones)
        assert all(f"| {name} |" in str(late.metadata["not_done_in_time"].value) for name in zones.values())
