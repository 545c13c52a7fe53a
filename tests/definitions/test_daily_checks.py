"""The checks of the daily analytics: the queue's health, and the deadline of each account's day."""

from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.orchestration.checks import NAMES
from definitions import daily_analytics
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
