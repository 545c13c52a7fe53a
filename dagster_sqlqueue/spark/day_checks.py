"""Asset checks of days by the asset that computed them: no job lost, no account missing, no job left."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import dagster as dg

from dagster_sqlqueue import display
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.fanout import due_at
from dagster_sqlqueue.orchestration.markdown import SHOWN
from dagster_sqlqueue.spark.contents import Accounts, Held
from dagster_sqlqueue.spark.published import Published

ROWS = "rows_in_rows_out"
ACCOUNTS = "no_account_missing"
LEFT = "nothing_queued_past_deadline"
OPEN = "no_event_open"
LATE = "no_event_late"


@dataclass(frozen=True, slots=True)
class DayOut:
    """One day as its outputs have it.

    Attributes:
        day: an ISO date.
        outputs: what each output holds of it, by the output's name; None: it holds nothing of it at all.
        rows: how many were computed.
        low: so many jobs belong to the day for certain; as many were there before it was computed.
        high: and so many afterwards: more may have been archived meanwhile.
    """

    day: str
    outputs: Mapping[str, Published | None]
    rows: int
    low: int
    high: int


def specs(
    key: dg.AssetKey,
    outputs: Sequence[str],
    *,
    counted: str | None,
    accounts: bool,
    consumes: bool,
    deadline: time | None,
    events: str | None,
) -> list[dg.AssetCheckSpec]:
    """Return the checks that an asset makes of the days of each run.

    Args:
        key: of the asset.
        outputs: the names of its outputs.
        counted: the column of the results that says how many jobs went into a row; None: there is none.
        accounts: whether the days have accounts.
        consumes: whether there is a job for each account and day.
        deadline: by which a day's jobs must have ended; None: no such check.
        events: the queue whose jobs keep an account's day open; None: no such check.
    """
    where = " and ".join(f"the {name}" for name in outputs)
    came_out = f"As many rows of a day as were computed are in {where}."
    if counted:
        came_out += f" The sum of `{counted}` is the number of archived jobs that belong to the day."
    made = [dg.AssetCheckSpec(ROWS, asset=key, description=came_out)]
    if accounts:
        missing = "No account's job of a day is in the dead letter. " if consumes else ""
        missing += f"Every account that is done with a day and has archived jobs of it has a row in {where}."
        if consumes:
            missing += " Every account that has archived jobs of a day has a job of that day; if not, it is a warning."
        made.append(dg.AssetCheckSpec(ACCOUNTS, asset=key, description=missing))
    if deadline is not None:
        left = f"No job of a day is on the queue after {deadline:%H:%M} of the account's own zone on the day after."
        made.append(dg.AssetCheckSpec(LEFT, asset=key, description=left))
    if events is not None:
        closed = f"No account whose job of a day is done or due has events of that day on the queue {events!r}."
        made.append(dg.AssetCheckSpec(OPEN, asset=key, description=closed))
        late = f"No event of a day has ended on {events!r} after the day was computed, as the sensor sees it."
        made.append(dg.AssetCheckSpec(LATE, asset=key, description=late))
    return made


def rows_in_rows_out(key: dg.AssetKey, days: Sequence[DayOut]) -> dg.AssetCheckResult:
    """Return whether what went into the days came out, and is the same in every output."""
    wrong = [(day.day, reason) for day in days for reason in _differences(day)]
    jobs, rows = sum(day.low for day in days), sum(day.rows for day in days)
    counted = any(found and found.total is not None for day in days for found in day.outputs.values())
    what = f"{jobs:,} archived jobs" if counted else f"{rows:,} rows"
    well = f"{what} of {len(days):,} days are in the results."
    return _result(key, ROWS, wrong, well, {"jobs_in": jobs, "rows_out": rows, "days": len(days)})


def no_account_missing(
    key: dg.AssetKey, outputs: Sequence[DayOut], held: Mapping[str, Held], accounts: Mapping[str, Accounts]
) -> dg.AssetCheckResult:
    """Return whether every account that is done with a day, and has jobs of it, is in every output, and none is dead.

    An account that has jobs of a day and no daily job is a warning: the results leave it out.
    """
    wrong, without, expected = [], [], 0
    for one in outputs:
        dead = sorted(accounts[one.day].dead)
        wrong += [
            (one.day, f"the job of {account} is in the dead letter: see its error, and redrive it") for account in dead
        ]
        wanted = {name for name in accounts[one.day].done if name and held[one.day].jobs.get(name)}
        expected += len(wanted)
        for name, found in one.outputs.items():
            missing = sorted(wanted - (found.accounts if found else frozenset()))
            wrong += [(one.day, f"{account} is not in the {name}") for account in missing]
        of_day = accounts[one.day]
        known = of_day.done | of_day.left.keys() | of_day.dead
        without += [
            (one.day, f"{account} has {jobs:,} archived jobs of it and no daily job, and is not in the results")
            for account, jobs in sorted(held[one.day].jobs.items())
            if account and account not in known
        ]
    severity = dg.AssetCheckSeverity.ERROR if wrong else dg.AssetCheckSeverity.WARN
    well = f"All {expected:,} days of accounts are there."
    return _result(key, ACCOUNTS, [*wrong, *without], well, {"expected": expected}, severity)


def nothing_left(
    key: dg.AssetKey, accounts: Mapping[str, Accounts], deadline: time, now: datetime
) -> dg.AssetCheckResult:
    """Return whether a job of a day is on the queue after its account's deadline."""
    wrong, left = [], 0
    for day, of_day in accounts.items():
        left += len(of_day.left)
        for account, zone in sorted(of_day.left.items()):
            try:
                until = due_at(date.fromisoformat(day), zone, deadline)
            except (ZoneInfoNotFoundError, ValueError, TypeError):
                wrong.append((day, f"{account} has the time zone {zone!r}, which is not known"))
                continue
            if until <= now:
                wrong.append((day, f"{account} was to be done by {display.moment(until)}"))
    return _result(key, LEFT, wrong, f"{left:,} jobs are on the queue, none past its deadline.", {"on_the_queue": left})


def no_event_open(key: dg.AssetKey, accounts: Mapping[str, Accounts]) -> dg.AssetCheckResult:
    """Return whether an account that is done with a day, or whose job is due, has events of it on the queue: it is
    computed when they have ended, and again if it was computed before.
    """
    wrong, events = [], 0
    for day, of_day in accounts.items():
        events += sum(of_day.open.values())
        for account in sorted(of_day.open.keys() & (of_day.done | of_day.takeable)):
            state = "is done, and" if account in of_day.done else "is left on the queue:"
            wrong.append((day, f"the job of {account} {state} {of_day.open[account]:,} events of it are open"))
    well = f"{events:,} events are open, none of an account that is done with its day or due."
    return _result(key, OPEN, wrong, well, {"open_events": events})


def no_event_late(key: dg.AssetKey, days: Sequence[str]) -> dg.AssetCheckResult:
    """That days were just computed, or are as they were computed: it is the sensor that notices later events."""
    well = f"{len(days):,} days are computed from what is archived."
    return _result(key, LATE, [], well, {"days": len(days)})


def _differences(day: DayOut) -> Iterable[str]:
    if any(found and found.rows != day.rows for found in day.outputs.values()):
        there = ", ".join(f"{found.rows if found else 0:,} in the {name}" for name, found in day.outputs.items())
        yield f"{day.rows:,} rows were computed; there are {there}"
    for name, found in day.outputs.items():
        if found is None:
            yield f"the {name} has nothing of it"
        elif found.total is not None and not day.low <= found.total <= day.high:
            expected = f"{day.low:,}" if day.low == day.high else f"{day.low:,} to {day.high:,}"
            yield f"{expected} jobs went in, {found.total:,} came out in the {name}"


def _result(
    key: dg.AssetKey,
    name: str,
    wrong: Sequence[tuple[str, str]],
    well: str,
    numbers: Mapping[str, Any],
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    said = well if not wrong else f"{len(wrong):,} wrong; the first: {wrong[0][0]}: {wrong[0][1]}."
    table = markdown.table(["day", "what"], wrong[:SHOWN]) + markdown.first_of(len(wrong), "differences")
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=not wrong,
        severity=severity,
        description=said,
        metadata={**numbers, "wrong": dg.MetadataValue.md(table if wrong else "There is nothing.")},
    )
