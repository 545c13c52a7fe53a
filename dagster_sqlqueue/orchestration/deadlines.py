"""Check that accounts' days were done in time: by a time of day of each account's own zone, on the day after."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from uuid import UUID
from zoneinfo import ZoneInfo

import dagster as dg

from dagster_sqlqueue import display
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.assets import asset_key_or_usual
from dagster_sqlqueue.orchestration.fanout import (
    NOT_A_ZONE,
    Account,
    DailyAccount,
    check_daily,
    daily_job_id,
    due_at,
    each_account,
    unknown_zone,
)
from dagster_sqlqueue.orchestration.given import check_function
from dagster_sqlqueue.orchestration.markdown import SHOWN
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations

MOST_DAYS = 31

_AT_ONCE = 1_000
_SLACK = timedelta(days=2)
"""How long before the first day, in UTC, the search begins: a day's jobs exist at the earliest when it has ended in the time
zone where days end first, and may be rescheduled to an earlier moment then."""

WAYS = ("open", "late", "failed", "cancelled", "missing")
"""How a day can have missed its deadline: its job is live, succeeded after it, ended otherwise, or does not exist."""

Expected = Callable[[Account, date], bool]


@dataclass(frozen=True, slots=True)
class Missed:
    """An account's day that missed its deadline.

    Attributes:
        account: the account.
        day: the day.
        deadline: the moment of the deadline, in UTC.
        way: one of `WAYS`.
        finished_at: when its job ended; None: it has not.
    """

    account: Account
    day: date
    deadline: datetime
    way: str
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The days whose deadlines have passed, and those that missed them.

    Attributes:
        at: the moment of the check, by the database's clock.
        by_day: of each day, how many accounts' deadlines had passed by then, the latest day first.
        missed: the accounts' days that missed their deadlines, the latest first.
    """

    at: datetime
    by_day: dict[date, int]
    missed: list[Missed]

    @property
    def expected(self) -> int:
        """How many accounts' days had their deadline by then."""
        return sum(self.by_day.values())


def last_days(now: datetime, zone: str, deadline: time, days: int) -> list[date]:
    """Find the last days whose deadline, on the day after, has passed in a zone; the latest first.

    Args:
        now: the moment of the check.
        zone: an IANA time zone.
        deadline: the time of day, by the zone's clocks. One that daylight saving skips is the moment the clocks were moved
            on; one that comes twice is the first.
        days: how many.
    """
    today = now.astimezone(ZoneInfo(zone)).date()
    found = (today - timedelta(days=back) for back in range(days + 3))
    return list(islice((day for day in found if due_at(day, zone, deadline) <= now), days))


def check_deadlines(
    queue: SqlQueue,
    name: str,
    accounts: Iterable[Account],
    *,
    deadline: time = time(8, 0),
    days: int = 2,
    partitions_def: dg.DailyPartitionsDefinition | None = None,
    expected: Expected | None = None,
    now: datetime | None = None,
) -> Deadlines:
    """Find the accounts' days that missed their deadline, among the last days whose deadline has passed.

    Args:
        queue: the queues of the schema.
        name: the queue of the daily jobs of `build_fanout_asset`.
        accounts: all of them.
        deadline: the time of day, by the clocks of each account's zone, on the day after.
        days: how many days.
        partitions_def: the days to check; None: any.
        expected: whether an account has a job for a day; None: always.
        now: the moment of the check; None: now, by the database's clock.

    Raises:
        InvalidInput: an account's zone is unknown, or the accounts are not usable.
        UnknownQueue: there is no such queue.
    """
    queue.catalog.check_exists(name)
    now = now or queue.database.run("clock", {})[0][0]
    wanted = [
        (account, day)
        for account in each_account(accounts)
        for day in _days_of(account, now, deadline, days)
        if _is_partition(partitions_def, day) and (expected is None or expected(account, day))
    ]
    counted = Counter(day for _, day in wanted)
    by_day = {day: counted[day] for day in sorted(counted, reverse=True)}
    since = datetime.combine(min(by_day), time(), tzinfo=UTC) - _SLACK if by_day else now
    missed = [
        one
        for at in range(0, len(wanted), _AT_ONCE)
        for one in _missed(queue, name, wanted[at : at + _AT_ONCE], deadline, since)
    ]
    return Deadlines(now, by_day, sorted(missed, key=lambda one: (-one.day.toordinal(), one.account.name)))


def build_deadline_check(
    spec: QueueSpec[DailyAccount],
    accounts: Callable[[], Iterable[Account]],
    *,
    deadline: time = time(8, 0),
    days: int = 2,
    partitions_def: dg.DailyPartitionsDefinition | None = None,
    expected: Expected | None = None,
    name: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    asset_key: dg.AssetKey | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.AssetChecksDefinition:
    """Build a check of the queue's asset: every account's day was done by a time of day of its own zone, on the day after.

    It checks the last days whose deadline has passed, for each account by itself. A day is done when its job succeeded.
    The check fails for jobs that are live, succeeded later, failed, were cancelled, or do not exist; a table names the first
    of them. It uses the zone that the account has now.

    Run it from time to time after the first account's deadline, by a schedule on `AssetSelection.checks(...)`.

    Args:
        spec: the queue of the daily jobs, see `build_fanout_asset`.
        accounts: returns all accounts; called once a run.
        deadline: the time of day, without a zone.
        days: how many of the last days, 1 to 31. The archive must keep jobs for longer.
        partitions_def: the days to check; None: any.
        expected: whether an account has a job for a day, for new accounts and holidays; None: always.
        name: the check's; None: `done_by_0800`.
        severity: of a failure.
        asset_key: of the queue's asset; None: `queues/<name>`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none, `accounts` or `expected` no function, the partitions are no days, or the deadline,
            the number of days or the severity is not usable.
    """
    key = asset_key_or_usual(spec, asset_key)
    check_function("accounts", accounts)
    if expected is not None:
        check_function("expected", expected)
    if partitions_def is not None:
        check_daily(partitions_def)
    if not isinstance(severity, dg.AssetCheckSeverity):
        raise InvalidInput(f"severity is {severity!r:.100}; give AssetCheckSeverity.WARN or AssetCheckSeverity.ERROR")
    if not isinstance(deadline, time) or deadline.tzinfo is not None:
        raise InvalidInput(f"deadline is {deadline!r}; give a time of day without a zone: it is each account's own")
    if not is_whole(days, 1, MOST_DAYS):
        raise InvalidInput(f"days is {days!r}; it must be a whole number of days, 1 to {MOST_DAYS}")

    @dg.asset_check(
        asset=key,
        name=name or f"done_by_{deadline:%H%M}",
        description=f"Checks that every account's day was done by {deadline:%H:%M} of its own zone on the day after, for the"
        f" last {days} {'day' if days == 1 else 'days'}.",
    )
    @under_key(resource_key)
    def done_in_time(sqlqueue: SqlQueueResource) -> dg.AssetCheckResult:
        with library_errors_as_failures():
            everyone = each_account(accounts())
            if not everyone:
                raise InvalidInput(f"there is no account to check in the queue {spec.name!r}")
            migrations.check(sqlqueue.queue.database)
            found = check_deadlines(
                sqlqueue.queue,
                spec.name,
                everyone,
                deadline=deadline,
                days=days,
                partitions_def=partitions_def,
                expected=expected,
            )
        ways = Counter(one.way for one in found.missed)
        said = _said(found, ways, deadline)
        return dg.AssetCheckResult(
            passed=not found.missed,
            severity=severity,
            description=said,
            metadata={
                "result": said,
                "to_be_done": found.expected,
                "done_in_time": found.expected - len(found.missed),
                **{way: ways[way] for way in WAYS},
                "days": dg.MetadataValue.md(_day_table(found)),
                "not_done_in_time": dg.MetadataValue.md(_missed_table(found)),
            },
        )

    return done_in_time


def _days_of(account: Account, now: datetime, deadline: time, days: int) -> list[date]:
    try:
        return last_days(now, account.zone, deadline, days)
    except NOT_A_ZONE:
        raise unknown_zone(account) from None


def _is_partition(partitions_def: dg.DailyPartitionsDefinition | None, day: date) -> bool:
    if partitions_def is None:
        return True
    end = partitions_def.end
    if day < partitions_def.start.date() or (end is not None and day >= end.date()):
        return False
    starts = time(partitions_def.hour_offset, partitions_def.minute_offset)
    begin = datetime.combine(day, starts, tzinfo=ZoneInfo(partitions_def.timezone))
    return not partitions_def.is_window_start_excluded(begin)


def _missed(
    queue: SqlQueue, name: str, wanted: Sequence[tuple[Account, date]], deadline: time, since: datetime
) -> Iterator[Missed]:
    by_id = {daily_job_id(name, day, account): (account, day) for account, day in wanted}
    deadlines = {id: due_at(day, account.zone, deadline) for id, (account, day) in by_id.items()}
    parameters = {"queue": name, "ids": list(by_id), "deadlines": list(deadlines.values()), "since": since}
    rows: Sequence[tuple[UUID, str | None, datetime | None]] = queue.database.run("deadlines_missed", parameters)
    for id, state, finished_at in rows:
        yield Missed(*by_id[id], deadlines[id], _way(state, finished_at), finished_at)


def _way(state: str | None, finished_at: datetime | None) -> str:
    if state is None:
        return "missing"
    if finished_at is None:
        return "open"
    return "late" if state == ArchiveState.SUCCEEDED else state


def _said(found: Deadlines, ways: Counter[str], deadline: time) -> str:
    if not found.expected:
        return f"no account's day had its deadline at {deadline:%H:%M} yet"
    if not found.missed:
        return f"all {found.expected:,} days of accounts were done by {deadline:%H:%M}"
    parts = ", ".join(f"{ways[way]:,} {way}" for way in WAYS if ways[way])
    return f"{len(found.missed):,} of {found.expected:,} days of accounts were not done by {deadline:%H:%M}: {parts}"


def _day_table(found: Deadlines) -> str:
    missed = Counter(one.day for one in found.missed)
    rows = [[day, count, count - missed[day], missed[day]] for day, count in found.by_day.items()]
    return markdown.table(["day", "expected", "done in time", "not done in time"], rows)


def _missed_table(found: Deadlines) -> str:
    if not found.missed:
        return "There are none."
    rows = [
        [
            one.account.name,
            one.day,
            one.account.zone,
            f"{one.deadline.astimezone(ZoneInfo(one.account.zone)):%Y-%m-%d %H:%M %z}",
            one.way,
            display.moment(one.finished_at) if one.finished_at else "",
            _length((one.finished_at or found.at) - one.deadline),
        ]
        for one in found.missed[:SHOWN]
    ]
    head = ["account", "day", "zone", "deadline", "what", "ended", "after the deadline"]
    return markdown.table(head, rows) + markdown.first_of(len(found.missed), "days of accounts")


def _length(late: timedelta) -> str:
    minutes = int(late.total_seconds()) // 60
    if minutes < 0:
        return "before it"
    days, hours = divmod(minutes // 60, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes % 60} min"
