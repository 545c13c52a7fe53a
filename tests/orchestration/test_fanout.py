"""Fan-out: one job for each account and day, at its own midnight, once."""

from datetime import UTC, date, datetime

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import (
    Account,
    DailyAccount,
    SqlQueueResource,
    build_fanout_asset,
    build_fanout_schedule,
)
from dagster_sqlqueue.orchestration.fanout import due_at, ended_days
from tests.core.support import rows

DAYS = dg.DailyPartitionsDefinition(start_date="2013-03-08", end_date="2013-03-13")
ACCOUNTS = [
    Account("ATL", "America/New_York"),
    Account("HNL", "Pacific/Honolulu"),
    Account("BQN", "America/Puerto_Rico"),
]


@pytest.fixture
def daily(queue: SqlQueue) -> QueueSpec[DailyAccount]:
    spec = QueueSpec("daily", DailyAccount, bucket_count=4)
    queue.create_queue(spec)
    return spec


def fan_out(spec: QueueSpec[DailyAccount]) -> dg.AssetsDefinition:
    return build_fanout_asset(spec, lambda: ACCOUNTS, DAYS)


def materialize(
    asset: dg.AssetsDefinition, resource: SqlQueueResource, instance: dg.DagsterInstance, first: str, last: str
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset],
        instance=instance,
        resources={"sqlqueue": resource},
        tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
    )


@pytest.mark.parametrize(
    ("day", "zone", "expected"),
    [
        (date(2013, 1, 1), "America/New_York", datetime(2013, 1, 2, 5, 1, tzinfo=UTC)),
        (date(2013, 1, 1), "Pacific/Honolulu", datetime(2013, 1, 2, 10, 1, tzinfo=UTC)),
        (date(2013, 3, 9), "America/New_York", datetime(2013, 3, 10, 5, 1, tzinfo=UTC)),
        (date(2013, 3, 10), "America/New_York", datetime(2013, 3, 11, 4, 1, tzinfo=UTC)),
        (date(2013, 11, 2), "America/New_York", datetime(2013, 11, 3, 4, 1, tzinfo=UTC)),
        (date(2013, 11, 3), "America/New_York", datetime(2013, 11, 4, 5, 1, tzinfo=UTC)),
        # Clocks went from 00:00 to 01:00 there: 00:01 does not exist, and is the moment 01:01.
        (date(2013, 10, 19), "America/Sao_Paulo", datetime(2013, 10, 20, 3, 1, tzinfo=UTC)),
    ],
)
def test_a_job_is_due_at_one_past_midnight_of_its_own_zone(day: date, zone: str, expected: datetime) -> None:
    assert due_at(day, zone) == expected


def test_a_range_of_days_is_one_run_and_running_it_again_adds_nothing(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = fan_out(daily)
    assert materialize(asset, resource, instance, "2013-03-08", "2013-03-10").success
    assert queue.depth("daily").live == 9
    found = rows(queue, "SELECT payload->>'account', payload->>'day', available_at FROM {s}.job")
    assert ("ATL", "2013-03-09", datetime(2013, 3, 10, 5, 1, tzinfo=UTC)) in found
    assert ("HNL", "2013-03-09", datetime(2013, 3, 10, 10, 1, tzinfo=UTC)) in found
    claimed = queue.claim("daily", buckets=range(4), limit=5, lease_seconds=60, worker="w")
    queue.complete(claimed)
    assert materialize(asset, resource, instance, "2013-03-08", "2013-03-10").success
    assert queue.depth("daily").live == 4, "finished jobs came back"
    event = instance.get_latest_materialization_event(asset.key)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.partition == "2013-03-10"
    assert event.asset_materialization.metadata["jobs_there_already"].value == 3


def test_the_schedule_catches_up_with_what_is_missing(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = fan_out(daily)
    schedule = build_fanout_schedule(asset)

    def tick(moment: datetime) -> dg.RunRequest | dg.SkipReason:
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=moment)
        return schedule(context)  # type: ignore[return-value]

    request = tick(datetime(2013, 3, 10, 12, tzinfo=UTC))
    assert isinstance(request, dg.RunRequest)
    assert request.tags["dagster/asset_partition_range_start"] == "2013-03-08"
    assert request.tags["dagster/asset_partition_range_end"] == "2013-03-10"
    materialize(asset, resource, instance, "2013-03-08", "2013-03-10")
    skipped = tick(datetime(2013, 3, 10, 12, tzinfo=UTC))
    assert isinstance(skipped, dg.SkipReason)
    later = tick(datetime(2013, 4, 1, tzinfo=UTC))
    assert isinstance(later, dg.RunRequest)
    assert later.tags["dagster/asset_partition_range_start"] == "2013-03-11"
    assert later.tags["dagster/asset_partition_range_end"] == "2013-03-12"


def test_a_day_has_ended_once_it_is_over_anywhere() -> None:
    assert ended_days(DAYS, datetime(2013, 3, 9, 9, 59, tzinfo=UTC)) == ["2013-03-08"]
    assert ended_days(DAYS, datetime(2013, 3, 9, 10, 0, tzinfo=UTC)) == ["2013-03-08", "2013-03-09"]


def test_no_account_is_an_error(
    daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = build_fanout_asset(daily, list, DAYS)
    with pytest.raises(InvalidInput, match="no account to fan out to"):
        materialize(asset, resource, instance, "2013-03-08", "2013-03-08")
