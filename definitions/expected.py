"""The demo's results computed without the queue, straight from the source file, to check the real ones against.

Nothing here uses the queue, Spark or the event model: a mistake in any of those cannot hide in both computations.
"""

import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from definitions.flights import source_file

KEYS = ("day", "account")
FIELDS = ("flights", "cancelled", "mean_arr_delay", "p95_arr_delay", "busiest_hour", "top_carrier")
TOLERANCE = 1e-9
_NUMBER = (int, float, Decimal)
_Accounts = dict[str, list[tuple[Any, ...]]]
_Days = dict[str, _Accounts]
_SOURCE_COLUMNS = ["year", "month", "day", "dep_time", "arr_delay", "carrier", "dest", "hour"]


def expected_numbers(first: date, last: date) -> pd.DataFrame:
    """One row for each day from `first` to `last` and each destination with a flight on it, sorted by day, account.

    Columns: `day` (date), `account` (str), `flights` and `cancelled` (int), `mean_arr_delay` and `p95_arr_delay`
    (minutes, float, NaN where nothing arrived; the percentile is interpolated linearly), `busiest_hour` (int, the
    smallest of equals), `top_carrier` (str, the first of equals by alphabet).

    Raises `definitions.flights.SourceMissing` when the data is not installed.
    """
    source = pd.read_csv(source_file("flights"), usecols=_SOURCE_COLUMNS)
    days = pd.to_datetime(source[["year", "month", "day"]])
    wanted = (days >= pd.Timestamp(first)) & (days <= pd.Timestamp(last))
    return numbers_of(source[wanted].assign(day=days[wanted]))


def numbers_of(flights: pd.DataFrame) -> pd.DataFrame:
    """The numbers of `expected_numbers` for flights with the columns day, dest, dep_time, arr_delay, carrier, hour."""
    rows = flights.rename(columns={"dest": "account"})
    groups = rows.groupby(list(KEYS))
    numbers = pd.DataFrame(
        {
            "flights": groups.size(),
            "cancelled": groups.size() - groups["dep_time"].count(),
            "mean_arr_delay": groups["arr_delay"].mean(),
            "p95_arr_delay": groups["arr_delay"].quantile(0.95, interpolation="linear"),
            "busiest_hour": _most_frequent(rows, "hour"),
            "top_carrier": _most_frequent(rows, "carrier"),
        }
    ).reset_index()
    numbers["day"] = [stamp.date() for stamp in pd.to_datetime(numbers["day"])]
    return numbers.sort_values(list(KEYS), ignore_index=True)


def _most_frequent(rows: pd.DataFrame, column: str) -> pd.Series:
    counts = rows.groupby([*KEYS, column]).size().rename("count").reset_index()
    ordered = counts.sort_values([*KEYS, "count", column], ascending=[True, True, False, True])
    return ordered.drop_duplicates(list(KEYS)).set_index(list(KEYS))[column]


def differences(actual: pd.DataFrame, expected: pd.DataFrame, limit: int = 20) -> list[str]:
    """List the differences of `actual` from `expected`, a readable line each; an empty list means that they agree.

    Rows are matched by day (a date, a timestamp or ISO text) and account, in any order; columns that `expected` does
    not have are ignored. Numbers are equal within 1e-9, and None equals NaN. At most `limit` lines are returned,
    with a last one beside them that says how many were left out.
    """
    absent = [name for name in (*KEYS, *FIELDS) if name not in actual.columns]
    if absent:
        return [f"column {name} is missing" for name in absent]
    found, due = _by_day(actual), _by_day(expected)
    lines: list[str] = []
    for day in sorted(found.keys() | due.keys()):
        if day not in found:
            lines.append(f"{day}: missing, the whole day ({len(due[day])} accounts)")
        elif day not in due:
            lines.append(f"{day}: not expected, the whole day ({len(found[day])} accounts)")
        else:
            lines += _of_day(day, found[day], due[day])
    left_out = len(lines) - limit
    return [*lines[:limit], f"… and {left_out} more"] if left_out > 0 else lines


def _by_day(frame: pd.DataFrame) -> _Days:
    days: _Days = {}
    for row in zip(*(frame[name].tolist() for name in (*KEYS, *FIELDS)), strict=True):
        day = "(no day)" if pd.isna(row[0]) else str(pd.Timestamp(row[0]).date())
        account = "(no account)" if pd.isna(row[1]) else str(row[1])
        days.setdefault(day, {}).setdefault(account, []).append(row[len(KEYS) :])
    return days


def _of_day(day: str, found: _Accounts, due: _Accounts) -> Iterator[str]:
    for account in sorted(found.keys() | due.keys()):
        if account not in found:
            yield f"{day} {account}: missing"
        elif account not in due:
            yield f"{day} {account}: not expected"
        elif len(found[account]) != len(due[account]):
            yield f"{day} {account}: {len(found[account])} rows, expected {len(due[account])}"
        else:
            for is_row, due_row in zip(found[account], due[account], strict=True):
                for name, is_value, due_value in zip(FIELDS, is_row, due_row, strict=True):
                    if not _same(is_value, due_value):
                        yield f"{day} {account}: {name} is {_text(is_value)}, expected {_text(due_value)}"


def expected_reminders(day: date) -> pd.DataFrame:
    """Compute how the reminders of the day's flights have to end, by the flight's key.

    Columns: `account`, `ending` (succeeded, cancelled or failed), `retried` (whether it takes more than one attempt),
    `leaves` (hhmm, as the reminder says it), `late` (whether it is put off).

    A cancelled flight's is cancelled; that of an account which the airports table does not have fails. A flight that
    leaves 15 to 59 minutes late is announced with its new time, a later one is put off. 9E takes two attempts.
    """
    source = pd.read_csv(source_file("flights"))
    days = pd.to_datetime(source[["year", "month", "day"]])
    rows = source[days == pd.Timestamp(day)]
    listed = pd.read_csv(source_file("airports"))["faa"]
    flies = rows["dep_time"].notna()
    known = rows["dest"].isin(listed)
    moved = rows["dep_delay"].between(15, 59)
    return pd.DataFrame(
        {
            "key": [
                f"{row.carrier}|{row.flight}|{day}|{row.sched_dep_time}|{row.origin}"
                for row in rows.itertuples(index=False)
            ],
            "account": rows["dest"].array,
            "ending": np.select([~flies, ~known], ["cancelled", "failed"], "succeeded"),
            "retried": (flies & known & (rows["carrier"] == "9E")).array,
            "leaves": rows["dep_time"].where(moved, rows["sched_dep_time"]).astype(int).array,
            "late": (rows["dep_delay"] >= 60).array,
        }
    ).set_index("key")


def reminder_differences(actual: pd.DataFrame, expected: pd.DataFrame, limit: int = 20) -> list[str]:
    """List the differences of the reminders in `actual` from `expected`, a readable line each.

    `actual` has the columns `key`, `account`, `ending`, `attempts`, `leaves`, `late` and `early`. A reminder that was
    early, that ended twice or not at all, is a difference, too. At most `limit` lines, with a last one beside them that
    says how many were left out.
    """
    found = actual.assign(retried=actual["attempts"] > 1)
    lines = [f"{key}: ended more than once" for key in found["key"][found["key"].duplicated()]]
    found = found.drop_duplicates("key").set_index("key")
    lines += [f"{key}: no reminder ended" for key in expected.index.difference(found.index)]
    lines += [f"{key}: not expected" for key in found.index.difference(expected.index)]
    both = expected.index.intersection(found.index)
    for name in expected.columns:
        for key, is_value, due_value in zip(both, found[name][both], expected[name][both], strict=True):
            if is_value != due_value:
                lines.append(f"{key}: {name} is {is_value}, expected {due_value}")
    lines += [f"{key}: was sent before its moment" for key in found.index[found["early"].astype(bool)]]
    left_out = len(lines) - limit
    return [*lines[:limit], f"… and {left_out} more"] if left_out > 0 else lines


def _same(actual: object, expected: object) -> bool:
    if _absent(actual) or _absent(expected):
        return _absent(actual) and _absent(expected)
    if isinstance(actual, _NUMBER) and isinstance(expected, _NUMBER):
        return math.isclose(float(actual), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return actual == expected


def _absent(value: object) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, _NUMBER) and math.isnan(value))


def _text(value: object) -> str:
    return "nothing" if _absent(value) else repr(value) if isinstance(value, str) else str(value)
