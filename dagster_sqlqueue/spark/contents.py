"""Read what the database holds of some days, without Spark: archived jobs, accounts that are done, waits and runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import finish_window, local_days
from dagster_sqlqueue.spark.local_days import NONE, Clocks

PERCENTILES = (50, 95, 99)

READS = "sqlqueue/reads"
"""The metadata of an asset that consumes daily jobs: which events its days are made of."""


@dataclass(frozen=True, slots=True)
class Days:
    """Which archived jobs belong to which day.

    Args:
        queue: whose they are.
        states: the archive states that count.
        zone: of hours, and of days where `day` is None.
        day: where a job's day is, `payload.day` say; None: it is the one on which the job finished.
        account: where its account is; None: there are no accounts.
        clocks: where the day's field is an instant: by which clocks it is the day, as `local_days.of_column` returns it.
        since: jobs that finished before do not count; None: all do.
        until: nor those that finished then or later.
        within: nor those that finished so long after the end of their day, or before its beginning: see `finish_window`;
            None: whenever they finished.
    """

    queue: str
    states: Sequence[str]
    zone: str
    day: str | None = None
    account: str | None = None
    clocks: Clocks = NONE
    since: datetime | None = None
    until: datetime | None = None
    within: timedelta | None = None

    def parameters(self, days: Sequence[str]) -> dict[str, Any]:
        """Return the parameters of the statements that read these days."""
        in_result, day_path = _path(self.day)
        return {
            "queue": self.queue,
            "states": list(self.states),
            "days": list(days),
            "in_result": in_result,
            "day_path": day_path,
            **local_days.parameters(self.clocks),
            "zone": self.zone,
            "from_time": self.since,
            "until_time": self.until,
            "lead_seconds": finish_window.LEAD.total_seconds(),
            "lag_seconds": None if self.within is None else finish_window.lag(self.within).total_seconds(),
        }


@dataclass(frozen=True, slots=True)
class Upstream:
    """A queue of events, and where their payloads have the day and the account that they are about.

    Args:
        queue: its name.
        day: path of the field with the day.
        account: path of the field with the account.
        clocks: as for `Days`.
    """

    queue: str
    day: Sequence[str]
    account: Sequence[str]
    clocks: Clocks = NONE

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statements that read its live jobs."""
        paths = {"day_path": list(self.day), "account_path": list(self.account)}
        return {"queue": self.queue, **paths, **local_days.parameters(self.clocks)}


def upstream_of(queue: str, columns: Mapping[str, Mapping[str, str]]) -> Upstream | None:
    """Return the queue that days of accounts are made of; None: a live job does not say yet what it is about, as where
    that is in its result.

    Args:
        queue: its name.
        columns: those that are read of its jobs.
    """
    places = [_path(columns[name]["path"]) if name in columns else (True, None) for name in ("day", "account")]
    if any(in_result or not path for in_result, path in places):
        return None
    (_, day), (_, account) = places
    return Upstream(queue, day or [], account or [], local_days.of_column("day", columns["day"]))


@dataclass(frozen=True, slots=True)
class Held:
    """What the archive holds of one day.

    Attributes:
        jobs: how many of each account; under "" those without one.
        first: when the first one of each finished.
        last: when the last one did.
    """

    jobs: dict[str, int] = field(default_factory=dict)
    first: dict[str, datetime] = field(default_factory=dict)
    last: dict[str, datetime] = field(default_factory=dict)

    def total(self, accounts: frozenset[str] | None = None) -> int:
        """Return how many jobs these accounts have; None: all of them."""
        return sum(count for name, count in self.jobs.items() if accounts is None or name in accounts)

    def first_finished(self) -> datetime | None:
        """Return when the first of its jobs finished; None: it has none."""
        return min(self.first.values(), default=None)

    def watermark(self, accounts: frozenset[str] | None = None) -> str:
        """Return the number of jobs and when the last one finished: something else whenever one was added or taken
        away.
        """
        finished = [at for name, at in self.last.items() if accounts is None or name in accounts]
        at = f"{max(finished).astimezone(UTC):%Y%m%dT%H%M%S.%fZ}" if finished else "never"
        return f"{self.total(accounts)}@{at}"


@dataclass(frozen=True, slots=True)
class Accounts:
    """The state of the daily jobs of one day.

    Attributes:
        done: the accounts whose job succeeded.
        left: the zones of those whose job is still there, by account.
        takeable: of those, the accounts whose job is due, or claimed by a consumer.
        dead: the accounts whose job is in the dead letter, and neither done nor there.
        open: how many events of the day each of the accounts still has on their queue.
    """

    done: frozenset[str] = frozenset()
    left: dict[str, str] = field(default_factory=dict)
    takeable: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    open: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DayStats:
    """Waits, runs and ends of the jobs of one day.

    Attributes:
        jobs: how many finished.
        failed: how many of them failed.
        attempts: what they took in all.
        waits: the percentiles `PERCENTILES` of the time from when a job was to run to its last start, in seconds.
        runs: those of the time from its last start to its end.
        hours: how many finished in each hour of the day, 24 numbers.
    """

    jobs: int
    failed: int
    attempts: int
    waits: tuple[float, ...]
    runs: tuple[float, ...]
    hours: tuple[int, ...]


def held(queue: SqlQueue, about: Days, days: Sequence[str]) -> dict[str, Held]:
    """Read what the archive holds of each day.

    Raises:
        InvalidInput: the field of the day or of the account is not `payload.…` or `result.…`.
    """
    in_result, path = _path(about.account)
    parameters = {**about.parameters(days), "account_in_result": in_result, "account_path": path}
    found = {day: Held() for day in days}
    for day, account, jobs, first, last in queue.database.run("archive_by_day", parameters):
        # Jobs without an account, and those whose account is the empty text, are counted together.
        name, one = account or "", found[day]
        one.jobs[name] = one.jobs.get(name, 0) + jobs
        one.first[name] = min(first, one.first.get(name, first))
        one.last[name] = max(last, one.last.get(name, last))
    return found


def accounts(queue: SqlQueue, daily_queue: str, days: Sequence[str], events: Upstream | None) -> dict[str, Accounts]:
    """Read the state of the daily jobs of each day. A job that was done before its day began in any time zone does not
    count.

    Args:
        queue: where they are.
        daily_queue: their queue.
        days: ISO dates.
        events: the queue of the events that the days are made of; None: which of these are open is not known.
    """
    done: dict[str, set[str]] = defaultdict(set)
    takeable: dict[str, set[str]] = defaultdict(set)
    left: dict[str, dict[str, str]] = defaultdict(dict)
    dead: dict[str, set[str]] = defaultdict(set)
    asked = {"queue": daily_queue, "days": list(days), "from_time": finish_window.first_of(days)}
    rows = queue.database.run("daily_accounts", asked)
    for day, account, zone, is_done, is_dead, is_takeable in rows:
        if is_done or is_dead:
            (done if is_done else dead)[day].add(account)
            continue
        left[day][account] = zone
        if is_takeable:
            takeable[day].add(account)
    open_events: dict[str, dict[str, int]] = defaultdict(dict)
    if events is not None:
        for day, account, jobs in queue.database.run("open_accounts", events.parameters() | {"days": list(days)}):
            open_events[day][account] = jobs
    return {
        day: Accounts(
            frozenset(done[day]),
            left[day],
            frozenset(takeable[day]),
            frozenset(dead[day] - done[day] - left[day].keys()),
            open_events[day],
        )
        for day in days
    }


def stats(queue: SqlQueue, about: Days, days: Sequence[str]) -> dict[str, DayStats]:
    """Read waits, runs and ends of the jobs of each day; a day without any is not among them.

    Raises:
        InvalidInput: the field of the day is not `payload.…` or `result.…`.
    """
    rows = queue.database.run("archive_day_stats", about.parameters(days))
    hours: Mapping[str, list[int]] = defaultdict(lambda: [0] * 24)
    for day, hour, jobs, *_ in rows:
        if hour is not None:
            hours[day][hour] = jobs
    return {
        day: DayStats(jobs, failed, int(attempts), tuple(waits or ()), tuple(runs or ()), tuple(hours[day]))
        for day, hour, jobs, failed, attempts, waits, runs in rows
        if hour is None
    }


def _path(place: str | None) -> tuple[bool, list[str] | None]:
    if place is None:
        return False, None
    base, *fields = place.split(".")
    if base not in ("payload", "result") or not fields or not all(fields):
        raise InvalidInput(f"{place!r} is no field of a job; write payload.field or result.field")
    return base == "result", fields
