"""The check of deadlines: by each account's own clocks, on the days on which they are changed, too."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Protocol

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.orchestration import (
    Account,
    DailyAccount,
    SqlQueueResource,
    build_deadline_check,
    build_fanout_asset,
)
from dagster_sqlqueue.orchestration.deadlines import Deadlines, check_deadlines, last_days
from dagster_sqlqueue.orchestration.fanout import daily_jobs
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.selection import Selection
from tests.support import rows, value

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


@pytest.fixture
def daily(queue: SqlQueue) -> QueueSpec[DailyAccount]:
    spec = QueueSpec("daily", DailyAccount, bucket_count=4, max_attempts=1)
    queue.create_queue(spec)
    return spec


def fan_out(queue: SqlQueue, spec: QueueSpec[DailyAccount], accounts: Iterable[Account], *days: date) -> None:
    for day in days:
        queue.enqueue_many(spec, daily_jobs(spec.name, day, accounts))


def claimed(queue: SqlQueue, account: str, day: date) -> ClaimedJob:
    """The job of an account's day, under a lease."""
    (job,) = queue.jobs("daily", Selection(payload={"account": account, "day": day.isoformat()}))
    rows(queue, "UPDATE {s}.job SET available_at = '9000-01-01' WHERE id <> %s AND state = 'queued'", job.id)
    (found,) = queue.claim("daily", limit=1, lease_seconds=3_600, worker="w")
    rows(queue, "UPDATE {s}.job SET available_at = run_at WHERE state = 'queued'")
    assert found.id == job.id
    return found


def finish(
    queue: SqlQueue, account: str, day: date, at: datetime, state: ArchiveState = ArchiveState.SUCCEEDED
) -> None:
    """End it, at a moment that the database's clock is not at."""
    job = claimed(queue, account, day)
    queue.finish([Ending(job, state)])
    rows(queue, "UPDATE {s}.job_archive SET finished_at = %s WHERE id = %s", at, job.id)


def missed(found: Deadlines) -> list[tuple[str, date, str]]:
    return [(one.account.name, one.day, one.way) for one in found.missed]


CHANGES = [
    # Clocks go forward, then back, in the north; back, then forward, in the south. Worked out by hand.
    ("America/New_York", date(2025, 3, 8), datetime(2025, 3, 8, 13, 0), datetime(2025, 3, 9, 12, 0)),
    ("America/New_York", date(2025, 11, 1), datetime(2025, 11, 1, 12, 0), datetime(2025, 11, 2, 13, 0)),
    ("Europe/Berlin", date(2025, 3, 29), datetime(2025, 3, 29, 7, 0), datetime(2025, 3, 30, 6, 0)),
    ("Europe/Berlin", date(2025, 10, 25), datetime(2025, 10, 25, 6, 0), datetime(2025, 10, 26, 7, 0)),
    ("Australia/Sydney", date(2025, 4, 5), datetime(2025, 4, 4, 21, 0), datetime(2025, 4, 5, 22, 0)),
    ("Australia/Sydney", date(2025, 10, 4), datetime(2025, 10, 3, 22, 0), datetime(2025, 10, 4, 21, 0)),
    ("America/Santiago", date(2025, 4, 5), datetime(2025, 4, 5, 11, 0), datetime(2025, 4, 6, 12, 0)),
    ("America/Santiago", date(2025, 9, 6), datetime(2025, 9, 6, 12, 0), datetime(2025, 9, 7, 11, 0)),
    # Half an hour is what is changed here, and three quarters are what the offset has.
    ("Australia/Lord_Howe", date(2025, 4, 5), datetime(2025, 4, 4, 21, 0), datetime(2025, 4, 5, 21, 30)),
    ("Australia/Lord_Howe", date(2025, 10, 4), datetime(2025, 10, 3, 21, 30), datetime(2025, 10, 4, 21, 0)),
    ("Pacific/Chatham", date(2025, 4, 5), datetime(2025, 4, 4, 18, 15), datetime(2025, 4, 5, 19, 15)),
    ("Pacific/Chatham", date(2025, 9, 27), datetime(2025, 9, 26, 19, 15), datetime(2025, 9, 27, 18, 15)),
    ("Asia/Kathmandu", date(2025, 3, 29), datetime(2025, 3, 29, 2, 15), datetime(2025, 3, 30, 2, 15)),
    ("Asia/Kolkata", date(2025, 10, 25), datetime(2025, 10, 25, 2, 30), datetime(2025, 10, 26, 2, 30)),
]
"""By zone: a day before one on which clocks are changed; the deadline, in UTC, of the day before it, and its own."""


@pytest.mark.parametrize(("zone", "day", "before", "deadline"), CHANGES)
def test_deadlines_on_the_days_on_which_clocks_are_changed(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], zone: str, day: date, before: datetime, deadline: datetime
) -> None:
    before, deadline = before.replace(tzinfo=UTC), deadline.replace(tzinfo=UTC)
    accounts = [Account("early", zone), Account("late", zone), Account("waits", zone)]
    fan_out(queue, daily, accounts, day - DAY, day)
    for account, margin in (("early", timedelta()), ("late", SECOND)):
        finish(queue, account, day, deadline + margin)
        finish(queue, account, day - DAY, before + margin)

    def checked(now: datetime, days: int = 2) -> Deadlines:
        return check_deadlines(queue, "daily", accounts, days=days, now=now)

    assert missed(checked(deadline)) == [
        ("late", day, "late"),
        ("waits", day, "open"),
        ("late", day - DAY, "late"),
        ("waits", day - DAY, "open"),
    ]
    assert {(one.day, one.deadline) for one in checked(deadline).missed} == {(day, deadline), (day - DAY, before)}
    assert checked(deadline).by_day == {day: 3, day - DAY: 3}
    # A moment before, the day has not had its deadline, and the one before that day's is looked at.
    assert checked(deadline - SECOND).by_day == {day - DAY: 3, day - 2 * DAY: 3}
    assert [one.day for one in checked(deadline - SECOND, days=1).missed] == [day - DAY] * 2


@pytest.mark.parametrize(
    ("now", "zone", "deadline", "expected"),
    [
        (datetime(2026, 3, 29, 6, 0), "Europe/Berlin", time(8), [date(2026, 3, 28), date(2026, 3, 27)]),
        (datetime(2026, 3, 29, 5, 59), "Europe/Berlin", time(8), [date(2026, 3, 27), date(2026, 3, 26)]),
        # 02:30 is skipped there: the moment the clocks were moved on. On the other day it comes twice: the first.
        (datetime(2026, 3, 29, 1, 30), "Europe/Berlin", time(2, 30), [date(2026, 3, 28), date(2026, 3, 27)]),
        (datetime(2026, 10, 25, 0, 30), "Europe/Berlin", time(2, 30), [date(2026, 10, 24), date(2026, 10, 23)]),
        (datetime(2026, 10, 25, 0, 29), "Europe/Berlin", time(2, 30), [date(2026, 10, 23), date(2026, 10, 22)]),
        # The first zone of all, and the last.
        (datetime(2026, 1, 10, 18, 0), "Pacific/Kiritimati", time(8), [date(2026, 1, 10), date(2026, 1, 9)]),
        (datetime(2026, 1, 10, 18, 59), "Pacific/Pago_Pago", time(8), [date(2026, 1, 8), date(2026, 1, 7)]),
        (datetime(2026, 1, 10, 19, 0), "Pacific/Pago_Pago", time(8), [date(2026, 1, 9), date(2026, 1, 8)]),
        # Samoa had no 30 December 2011.
        (datetime(2011, 12, 31, 12, 0), "Pacific/Apia", time(8), [date(2011, 12, 30), date(2011, 12, 29)]),
    ],
)
def test_the_last_days_are_those_whose_deadline_has_passed(
    now: datetime, zone: str, deadline: time, expected: list[date]
) -> None:
    assert last_days(now.replace(tzinfo=UTC), zone, deadline, 2) == expected


def test_each_account_is_looked_at_by_its_own_clocks(queue: SqlQueue, daily: QueueSpec[DailyAccount]) -> None:
    day = date(2025, 10, 25)
    accounts = [
        Account("first", "Pacific/Kiritimati"),
        Account("berlin", "Europe/Berlin"),
        Account("nyc", "America/New_York"),
    ]
    fan_out(queue, daily, accounts, day)
    morning = datetime(2025, 10, 26, 7, 0, tzinfo=UTC)
    found = check_deadlines(queue, "daily", accounts, days=1, now=morning)
    assert found.by_day == {day: 2, day - DAY: 1}
    assert missed(found) == [("berlin", day, "open"), ("first", day, "open"), ("nyc", day - DAY, "missing")]


def test_days_from_before_an_account_changed_its_zone_are_found(
    queue: SqlQueue, daily: QueueSpec[DailyAccount]
) -> None:
    day = date(2026, 1, 9)
    fan_out(queue, daily, [Account("moving", "Europe/Berlin")], day)
    finish(queue, "moving", day, datetime(2026, 1, 10, 6, tzinfo=UTC))
    now = datetime(2026, 1, 11, tzinfo=UTC)
    found = check_deadlines(queue, "daily", [Account("moving", "America/New_York")], days=1, now=now)
    assert (found.by_day, found.missed) == ({day: 1}, [])


class Check(Protocol):
    def __call__(self, accounts: list[Account], **settings: Any) -> dg.AssetCheckEvaluation: ...


@pytest.fixture
def check(daily: QueueSpec[DailyAccount], resource: SqlQueueResource, ephemeral: dg.DagsterInstance) -> Check:
    """A run of the check for these accounts, with these settings."""

    def evaluated(accounts: list[Account], **settings: Any) -> dg.AssetCheckEvaluation:
        made = build_deadline_check(daily, lambda: accounts, **settings)
        days = dg.DailyPartitionsDefinition(start_date="2026-01-01")
        definitions = dg.Definitions(
            assets=[build_fanout_asset(daily, lambda: accounts, days)],
            asset_checks=[made],
            jobs=[
                dg.define_asset_job("deadlines", dg.AssetSelection.checks(made), executor_def=dg.in_process_executor)
            ],
            resources={"sqlqueue": resource},
        )
        done = definitions.resolve_job_def("deadlines").execute_in_process(instance=ephemeral)
        (evaluation,) = done.get_asset_check_evaluations()
        return evaluation

    return evaluated


@pytest.fixture
def deadline(queue: SqlQueue) -> time:
    """Half a day from now, by the database's clock: none that passes while the test runs."""
    now: datetime = value(queue, "SELECT now()")
    return time((now.astimezone(UTC).hour + 12) % 24)


def last_two(queue: SqlQueue, deadline: time) -> tuple[date, date]:
    """The last two days whose deadline has passed in UTC, by the database's clock."""
    now = value(queue, "SELECT now()").astimezone(UTC)
    last = now.date() - (DAY if now.time() >= deadline else 2 * DAY)
    return last, last - DAY


def test_the_check_names_who_was_not_done(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], check: Check, deadline: time
) -> None:
    last, before = last_two(queue, deadline)
    accounts = [Account(name, "UTC") for name in ("fine", "late", "open", "failed", "cancelled", "missing")]
    fan_out(queue, daily, accounts[:-1], before, last)
    for day in (before, last):
        in_time = datetime.combine(day + DAY, deadline, tzinfo=UTC) - timedelta(minutes=1)
        finish(queue, "fine", day, in_time)
        finish(queue, "late", day, in_time if day == before else in_time + timedelta(minutes=6))
        finish(queue, "failed", day, in_time, ArchiveState.FAILED)
        finish(queue, "cancelled", day, in_time, ArchiveState.CANCELLED)
    claimed(queue, "open", last)
    evaluation = check(accounts, deadline=deadline)
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert evaluation.check_name == f"done_by_{deadline:%H%M}"
    assert evaluation.asset_key == dg.AssetKey(["queues", "daily"])
    metadata = {name: found.value for name, found in evaluation.metadata.items()}
    assert {name: count for name, count in metadata.items() if isinstance(count, int)} == {
        "to_be_done": 12,
        "done_in_time": 3,
        "open": 2,
        "late": 1,
        "failed": 2,
        "cancelled": 2,
        "missing": 2,
    }
    assert metadata["result"] == (
        f"9 of 12 days of accounts were not done by {deadline:%H:%M}: 2 open, 1 late, 2 failed, 2 cancelled, 2 missing"
    )
    its = f"{last + DAY} {deadline:%H}"
    late = f"| late | {last} | UTC | {its}:00 +0000 | late | {its}:05:00Z | 0 h 5 min |"
    assert late in metadata["not_done_in_time"]
    assert f"| {last} | 6 | 1 | 5 |" in metadata["days"]
    assert f"| {before} | 6 | 2 | 4 |" in metadata["days"]
    warned = check(accounts, deadline=deadline, severity=dg.AssetCheckSeverity.WARN, days=1)
    assert warned.severity is dg.AssetCheckSeverity.WARN
    assert warned.metadata["to_be_done"].value == 6


def test_the_check_passes_when_all_were_done(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], check: Check, deadline: time
) -> None:
    last, before = last_two(queue, deadline)
    accounts = [Account("a", "UTC")]
    fan_out(queue, daily, accounts, last, before)
    for day in (last, before):
        finish(queue, "a", day, datetime.combine(day + DAY, deadline, tzinfo=UTC))
    evaluation = check(accounts, deadline=deadline)
    assert evaluation.passed
    assert evaluation.metadata["result"].value == f"all 2 days of accounts were done by {deadline:%H:%M}"
    assert evaluation.metadata["done_in_time"].value == 2


def test_only_days_that_there_are_and_that_are_expected_count(queue: SqlQueue, daily: QueueSpec[DailyAccount]) -> None:
    accounts = [Account("old", "UTC"), Account("new", "UTC"), Account("old", "UTC")]
    now = datetime(2026, 1, 10, 12, tzinfo=UTC)
    days = dg.DailyPartitionsDefinition(start_date="2026-01-06", end_date="2026-01-09")
    found = check_deadlines(queue, "daily", accounts, days=7, partitions_def=days, now=now)
    assert found.by_day == {date(2026, 1, day): 2 for day in (8, 7, 6)}
    found = check_deadlines(
        queue,
        "daily",
        accounts,
        days=7,
        partitions_def=days,
        expected=lambda account, day: account.name == "old" or day >= date(2026, 1, 8),
        now=now,
    )
    assert found.by_day == {date(2026, 1, 8): 2, date(2026, 1, 7): 1, date(2026, 1, 6): 1}
    assert found.expected == 4
    nothing = check_deadlines(queue, "daily", accounts, partitions_def=days, now=datetime(2026, 1, 2, tzinfo=UTC))
    assert (nothing.expected, nothing.missed) == (0, [])


@pytest.mark.parametrize("exclusion", [datetime(2026, 1, 4), "0 0 * * 0"], ids=["a day", "each Sunday"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Chatham"])
def test_days_that_the_partitions_exclude_do_not_count(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], exclusion: datetime | str, zone: str
) -> None:
    days = dg.DailyPartitionsDefinition(start_date="2026-01-02", timezone=zone, exclusions=[exclusion])
    now = datetime(2026, 1, 7, 12, tzinfo=UTC)
    found = check_deadlines(queue, "daily", [Account("berlin", "Europe/Berlin")], days=9, partitions_def=days, now=now)
    # The fourth is a Sunday, and no day of the asset: nobody can fan it out.
    assert found.by_day == {date(2026, 1, day): 1 for day in (6, 5, 3, 2)}


def test_many_accounts_are_looked_at_in_steps_and_the_table_is_bounded(
    queue: SqlQueue, daily: QueueSpec[DailyAccount], check: Check, deadline: time
) -> None:
    accounts = [Account(f"a{n:04}", "UTC") for n in range(2_500)]
    fan_out(queue, daily, accounts[:1_200], *last_two(queue, deadline))
    metadata = check(accounts, deadline=deadline).metadata
    assert (metadata["to_be_done"].value, metadata["open"].value, metadata["missing"].value) == (5_000, 2_400, 2_600)
    table = str(metadata["not_done_in_time"].value)
    assert len(table.splitlines()) == 2 + 50 + 2
    assert table.endswith("The first 50 of 5,000 days of accounts.")


def test_what_is_wrong_is_said(queue: SqlQueue, daily: QueueSpec[DailyAccount], check: Check) -> None:
    with pytest.raises(InvalidInput, match="deadline is"):
        build_deadline_check(daily, list, deadline=time(8, tzinfo=UTC))
    for days in (0, 32, True, 1.5):
        with pytest.raises(InvalidInput, match="days is"):
            build_deadline_check(daily, list, days=days)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="account 'a' has the time zone 'Mars/Olympus', which is unknown"):
        check_deadlines(queue, "daily", [Account("a", "Mars/Olympus")])
    with pytest.raises(UnknownQueue, match="there is no queue 'weekly'"):
        check_deadlines(queue, "weekly", [Account("a", "UTC")])
    with pytest.raises(dg.Failure, match="there is no account to check in the queue 'daily'"):
        check([])


def test_a_check_is_named_after_its_deadline(daily: QueueSpec[DailyAccount]) -> None:
    made = [build_deadline_check(daily, list), build_deadline_check(daily, list, deadline=time(17, 30))]
    assert [found.name for one in made for found in one.check_specs] == ["done_by_0800", "done_by_1730"]


def test_the_asset_of_the_queue_may_have_another_key(daily: QueueSpec[DailyAccount]) -> None:
    key = dg.AssetKey(["payments", "daily"])
    (found,) = build_deadline_check(daily, list, asset_key=key, name="in_time").check_specs
    assert (found.asset_key, found.name) == (key, "in_time")
