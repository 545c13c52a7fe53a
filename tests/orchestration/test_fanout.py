"""Fan-out: one job for each account and day, at its own midnight, once."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import (
    Account,
    DailyAccount,
    SqlQueueResource,
    build_deadline_check,
    build_fanout_asset,
    build_fanout_schedule,
)
from dagster_sqlqueue.orchestration.deadlines import check_deadlines
from dagster_sqlqueue.orchestration.fanout import daily_jobs, due_at, ended_days
from tests.support import rows

DAYS = dg.DailyPartitionsDefinition(start_date="2013-03-08", end_date="2013-03-13")
ACCOUNTS = [
    Account("ATL", "America/New_York"),
    Account("HNL", "Pacific/Honolulu"),
    Account("BQN", "America/Puerto_Rico"),
]


@pytest.fixture
def instance(persistent: dg.DagsterInstance) -> dg.DagsterInstance:
    """A schedule finds its instance by where that is stored."""
    return persistent


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
        (date(2013, 2, 16), "America/Sao_Paulo", datetime(2013, 2, 17, 3, 1, tzinfo=UTC)),
        # Both change days of the north, of the south, and where half an hour is changed or the offset has a fraction of one.
        (date(2025, 3, 29), "Europe/Berlin", datetime(2025, 3, 29, 23, 1, tzinfo=UTC)),
        (date(2025, 3, 30), "Europe/Berlin", datetime(2025, 3, 30, 22, 1, tzinfo=UTC)),
        (date(2025, 10, 25), "Europe/Berlin", datetime(2025, 10, 25, 22, 1, tzinfo=UTC)),
        (date(2025, 10, 26), "Europe/Berlin", datetime(2025, 10, 26, 23, 1, tzinfo=UTC)),
        (date(2025, 4, 5), "Australia/Sydney", datetime(2025, 4, 5, 13, 1, tzinfo=UTC)),
        (date(2025, 4, 6), "Australia/Sydney", datetime(2025, 4, 6, 14, 1, tzinfo=UTC)),
        (date(2025, 10, 4), "Australia/Sydney", datetime(2025, 10, 4, 14, 1, tzinfo=UTC)),
        (date(2025, 10, 5), "Australia/Sydney", datetime(2025, 10, 5, 13, 1, tzinfo=UTC)),
        (date(2025, 4, 6), "Australia/Lord_Howe", datetime(2025, 4, 6, 13, 31, tzinfo=UTC)),
        (date(2025, 10, 5), "Australia/Lord_Howe", datetime(2025, 10, 5, 13, 1, tzinfo=UTC)),
        (date(2025, 4, 6), "Pacific/Chatham", datetime(2025, 4, 6, 11, 16, tzinfo=UTC)),
        (date(2025, 9, 28), "Pacific/Chatham", datetime(2025, 9, 28, 10, 16, tzinfo=UTC)),
        (date(2025, 3, 29), "Asia/Kathmandu", datetime(2025, 3, 29, 18, 16, tzinfo=UTC)),
        # Clocks went back from 01:00 to 00:00 there: 00:01 came twice, and is the first of the two.
        (date(2025, 11, 1), "America/Havana", datetime(2025, 11, 2, 4, 1, tzinfo=UTC)),
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
    claimed = queue.claim("daily", buckets=range(4), limit=5, lease_seconds=300, worker="w")
    queue.complete(claimed)
    assert materialize(asset, resource, instance, "2013-03-08", "2013-03-10").success
    assert queue.depth("daily").live == 4, "finished jobs came back"
    event = instance.get_latest_materialization_event(asset.key)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.partition == "2013-03-10"
    assert event.asset_materialization.metadata["jobs_there_already"].value == 3


@pytest.mark.parametrize(
    "partitions", [dg.WeeklyPartitionsDefinition("2013-03-03"), dg.StaticPartitionsDefinition(["2013-03-08"]), None]
)
def test_partitions_that_are_no_days_are_refused(daily: QueueSpec[DailyAccount], partitions: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"is a {type(partitions).__name__}, .* is a day"):
        build_fanout_asset(daily, lambda: ACCOUNTS, partitions)


def test_an_account_that_changed_its_zone_has_one_job_a_day(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    zones = iter(["America/New_York", "Pacific/Kiritimati"])
    asset = build_fanout_asset(daily, lambda: [Account("moving", next(zones))], DAYS)
    materialize(asset, resource, instance, "2013-03-08", "2013-03-08")
    queue.complete(queue.claim("daily", limit=1, lease_seconds=300, worker="w"))
    again = materialize(asset, resource, instance, "2013-03-08", "2013-03-09")
    counts = {
        event.partition: event.step_materialization_data.materialization.metadata["jobs_enqueued"].value
        for event in again.get_asset_materialization_events()
    }
    assert counts == {"2013-03-08": 0, "2013-03-09": 1}


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


def test_the_schedule_leaves_out_what_is_done_between_missing_days(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = fan_out(daily)
    schedule = build_fanout_schedule(asset)
    materialize(asset, resource, instance, "2013-03-09", "2013-03-10")
    queue.complete(queue.claim("daily", limit=6, lease_seconds=300, worker="w"))
    # As maintenance does when the queue's retention is over.
    rows(queue, "DELETE FROM {s}.job_archive")
    context = dg.build_schedule_context(instance=instance, scheduled_execution_time=datetime(2013, 4, 1, tzinfo=UTC))
    requests = schedule.evaluate_tick(context).run_requests
    assert requests is not None
    for request in requests:
        tags = request.tags
        materialize(
            asset,
            resource,
            instance,
            tags["dagster/asset_partition_range_start"],
            tags["dagster/asset_partition_range_end"],
        )
    assert [request.tags["dagster/asset_partition_range_start"] for request in requests] == ["2013-03-08", "2013-03-11"]
    assert rows(queue, "SELECT payload ->> 'day', count(*) FROM {s}.job GROUP BY 1 ORDER BY 1") == [
        (day, 3) for day in ("2013-03-08", "2013-03-11", "2013-03-12")
    ]


def test_a_run_that_died_unnoticed_does_not_stop_the_schedule(
    daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = fan_out(daily)
    schedule = build_fanout_schedule(asset)
    definitions = dg.Definitions([asset], schedules=[schedule], resources={"sqlqueue": resource})
    job = definitions.resolve_job_def("daily_fanout_job")

    def tick(hours: float) -> object:
        moment = datetime.now(UTC) + timedelta(hours=hours)
        return schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=moment))

    assert isinstance(tick(0), dg.RunRequest)
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert isinstance(tick(5.9), dg.SkipReason)
    assert isinstance(tick(6.1), dg.RunRequest)


@pytest.mark.parametrize(
    "first",
    [
        date(2025, 3, 29),
        *(
            pytest.param(day, marks=pytest.mark.prove)
            for day in (date(2025, 4, 4), date(2025, 10, 4), date(2025, 10, 25))
        ),
    ],
)
def test_every_day_is_fanned_out_once_and_in_time_where_clocks_are_changed(
    queue: SqlQueue,
    daily: QueueSpec[DailyAccount],
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
    first: date,
) -> None:
    zones = ["Pacific/Kiritimati", "Pacific/Chatham", "Australia/Sydney", "Europe/Berlin", "America/New_York"]
    accounts = [Account(zone, zone) for zone in [*zones, "Pacific/Pago_Pago"]]
    days = [first + timedelta(days=n) for n in range(3)]
    partitions = dg.DailyPartitionsDefinition(
        start_date=first.isoformat(), end_date=(days[-1] + timedelta(days=1)).isoformat()
    )
    asset = build_fanout_asset(daily, lambda: accounts, partitions)
    schedule = build_fanout_schedule(asset)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("1 * * * *", "UTC")
    asked: dict[str, datetime] = {}
    for hour in range(24 * 4):
        moment = datetime(first.year, first.month, first.day, 0, 1, tzinfo=UTC) + timedelta(hours=hour)
        request = schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=moment))
        if isinstance(request, dg.RunRequest):
            day = request.tags["dagster/asset_partition_range_start"]
            assert request.tags["dagster/asset_partition_range_end"] == day
            assert day not in asked
            asked[day] = moment
            materialize(asset, resource, instance, day, day)
    assert list(asked) == [day.isoformat() for day in days]
    due = rows(queue, "SELECT payload->>'day', min(available_at), count(*) FROM {s}.job GROUP BY 1")
    assert {day: count for day, _, count in due} == dict.fromkeys(asked, len(accounts))
    assert all(asked[day] <= earliest for day, earliest, _ in due)


def test_the_partitions_keys_may_have_another_format(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    days = dg.DailyPartitionsDefinition(start_date="08.03.2013", end_date="13.03.2013", fmt="%d.%m.%Y")
    asset = build_fanout_asset(daily, lambda: ACCOUNTS, days)
    assert materialize(asset, resource, instance, "08.03.2013", "09.03.2013").success
    assert rows(queue, "SELECT DISTINCT payload ->> 'day' FROM {s}.job WHERE queue = 'daily' ORDER BY 1") == [
        ("2013-03-08",),
        ("2013-03-09",),
    ]
    assert ended_days(days, datetime(2013, 3, 10, 9, 59, tzinfo=UTC)) == ["08.03.2013", "09.03.2013"]


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "Europe", "../etc/passwd", ""])
def test_an_account_whose_zone_is_unknown_is_named(zone: str) -> None:
    with pytest.raises(InvalidInput, match=f"account 'ATL' has the time zone '{zone}', which is unknown"):
        daily_jobs("daily", date(2013, 3, 8), [Account("HNL", "Pacific/Honolulu"), Account("ATL", zone)])


TWICE = [*ACCOUNTS, Account("ATL", "Europe/Berlin")]


@pytest.mark.parametrize(
    ("accounts", "said"),
    [
        (TWICE, r"account 'ATL' is there twice, in the time zones 'America/New_York' and 'Europe/Berlin'"),
        (["ATL"], r"there is 'ATL' among the accounts; give each as Account\(name, zone\)"),
        (None, "the accounts are None; give a list of them"),
    ],
)
def test_accounts_that_cannot_be_told_apart_or_are_none_are_named(
    queue: SqlQueue,
    daily: QueueSpec[DailyAccount],
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
    accounts: Any,
    said: str,
) -> None:
    asset = build_fanout_asset(daily, lambda: accounts, DAYS)
    with pytest.raises(InvalidInput, match=said):
        materialize(asset, resource, instance, "2013-03-08", "2013-03-08")
    assert queue.depth("daily").live == 0
    with pytest.raises(InvalidInput, match=said):
        check_deadlines(queue, "daily", accounts)


def test_an_account_that_is_listed_twice_is_one(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = build_fanout_asset(daily, lambda: [*ACCOUNTS, ACCOUNTS[0]], DAYS)
    (event,) = materialize(asset, resource, instance, "2013-03-08", "2013-03-08").get_asset_materialization_events()
    counted = {name: one.value for name, one in event.step_materialization_data.materialization.metadata.items()}
    assert (counted["jobs_enqueued"], counted["jobs_there_already"], counted["accounts"]) == (3, 0, 3)
    assert queue.depth("daily").live == 3


@pytest.mark.parametrize(("given", "said"), [((7, "UTC"), "name .* is 7"), (("ATL", None), "zone .* is None")])
def test_an_account_has_texts(given: tuple[Any, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Account(*given)


def test_the_accounts_are_given_by_a_function(daily: QueueSpec[DailyAccount]) -> None:
    wrong: Any = ACCOUNTS
    with pytest.raises(InvalidInput, match=r"accounts is \[Account\(.*; give a function that returns such"):
        build_fanout_asset(daily, wrong, DAYS)
    with pytest.raises(InvalidInput, match=r"accounts is \[Account\(.*; give a function that returns such"):
        build_deadline_check(daily, wrong)


def test_a_day_has_ended_once_it_is_over_anywhere() -> None:
    assert ended_days(DAYS, datetime(2013, 3, 9, 9, 59, tzinfo=UTC)) == ["2013-03-08"]
    assert ended_days(DAYS, datetime(2013, 3, 9, 10, 0, tzinfo=UTC)) == ["2013-03-08", "2013-03-09"]


def test_no_account_is_an_error(
    daily: QueueSpec[DailyAccount], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    asset = build_fanout_asset(daily, list, DAYS)
    with pytest.raises(InvalidInput, match="no account to fan out to"):
        materialize(asset, resource, instance, "2013-03-08", "2013-03-08")
