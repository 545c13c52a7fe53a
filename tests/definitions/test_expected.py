import csv
import io
import math
import zipfile
from collections import Counter
from datetime import date
from decimal import Decimal

import pandas as pd
import pytest

from definitions.expected import FIELDS, KEYS, differences, expected_numbers, numbers_of
from definitions.flights import source_file

FIRST, LAST = date(2013, 1, 1), date(2013, 1, 3)


@pytest.fixture(scope="module")
def due() -> pd.DataFrame:
    return expected_numbers(FIRST, LAST)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def test_the_numbers_agree_with_a_plain_loop_over_the_file(due: pd.DataFrame) -> None:
    groups: dict[tuple[date, str], list[dict[str, str]]] = {}
    with zipfile.ZipFile(source_file("flights")) as archive, archive.open(archive.namelist()[0]) as member:
        for row in csv.DictReader(io.TextIOWrapper(member, encoding="utf-8")):
            day = date(int(row["year"]), int(row["month"]), int(row["day"]))
            if day > LAST:
                break
            groups.setdefault((day, row["dest"]), []).append(row)
    assert list(zip(due["day"], due["account"], strict=True)) == sorted(groups)
    for found in due.to_dict("records"):
        rows = groups[found["day"], found["account"]]
        delays = [float(row["arr_delay"]) for row in rows if row["arr_delay"] != "NA"]
        hours, carriers = (Counter(row[name] for row in rows) for name in ("hour", "carrier"))
        assert found["flights"] == len(rows)
        assert found["cancelled"] == sum(row["dep_time"] == "NA" for row in rows)
        assert found["busiest_hour"] == min(int(hour) for hour, n in hours.items() if n == max(hours.values()))
        assert found["top_carrier"] == min(name for name, n in carriers.items() if n == max(carriers.values()))
        if delays:
            assert found["mean_arr_delay"] == pytest.approx(sum(delays) / len(delays), abs=1e-9)
            assert found["p95_arr_delay"] == pytest.approx(percentile(delays, 0.95), abs=1e-9)
        else:
            assert math.isnan(found["mean_arr_delay"])
            assert math.isnan(found["p95_arr_delay"])


def test_columns_types_and_order(due: pd.DataFrame) -> None:
    assert tuple(due.columns) == KEYS + FIELDS
    assert {name: str(kind) for name, kind in due.dtypes.items()} == {
        "day": "object",
        "account": "object",
        "flights": "int64",
        "cancelled": "int64",
        "mean_arr_delay": "float64",
        "p95_arr_delay": "float64",
        "busiest_hour": "int64",
        "top_carrier": "object",
    }
    assert type(due["day"][0]) is date
    assert due.equals(due.sort_values(["day", "account"], ignore_index=True))
    assert (due["day"].min(), due["day"].max()) == (FIRST, LAST)


@pytest.mark.parametrize(
    ("first", "last", "rows", "flights", "without_arrival"),
    [
        (date(2013, 1, 1), date(2013, 1, 31), 2_620, 27_004, 16),
        pytest.param(date(2013, 1, 1), date(2013, 12, 31), 31_229, 336_776, 245, marks=pytest.mark.prove),
    ],
)
def test_totals(first: date, last: date, rows: int, flights: int, without_arrival: int) -> None:
    numbers = expected_numbers(first, last)
    assert len(numbers) == rows
    assert numbers["flights"].sum() == flights
    assert numbers["mean_arr_delay"].isna().sum() == numbers["p95_arr_delay"].isna().sum() == without_arrival


def test_ties_go_to_the_smallest_hour_and_the_first_carrier() -> None:
    rows = pd.DataFrame(
        [(18, "UA"), (9, "AA"), (9, "UA"), (18, "AA"), (10, "B6")],
        columns=["hour", "carrier"],
    ).assign(day="2013-01-01", dest="IAH", dep_time=[None, 2.0, 3.0, 4.0, 5.0], arr_delay=float("nan"))
    (found,) = numbers_of(rows).to_dict("records")
    assert (found["flights"], found["cancelled"]) == (5, 1)
    assert (found["busiest_hour"], found["top_carrier"]) == (9, "AA")
    assert math.isnan(found["mean_arr_delay"])


def test_equal_tables_have_no_difference(due: pd.DataFrame) -> None:
    assert differences(due.copy(), due) == []


def test_order_types_and_further_columns_make_no_difference(due: pd.DataFrame) -> None:
    absent = due["mean_arr_delay"].isna()
    assert absent.any()
    other = due.sample(frac=1, random_state=1).assign(batch="b")
    other["day"] = other["day"].map(str).astype("category")
    other["account"] = other["account"].astype("category")
    other["flights"] = other["flights"].map(Decimal)
    other["mean_arr_delay"] = other["mean_arr_delay"].astype(object).where(~absent, None)
    other["p95_arr_delay"] = other["p95_arr_delay"] + 1e-12
    assert differences(other, due) == []
    assert differences(due.assign(day=pd.to_datetime(due["day"])), due) == []


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("flights", 99, "flights is 99, expected {}"),
        ("cancelled", 7, "cancelled is 7, expected {}"),
        ("mean_arr_delay", None, "mean_arr_delay is nothing, expected {}"),
        ("p95_arr_delay", 1.5, "p95_arr_delay is 1.5, expected {}"),
        ("busiest_hour", 1, "busiest_hour is 1, expected {}"),
        ("top_carrier", "ZZ", "top_carrier is 'ZZ', expected {!r}"),
        ("top_carrier", None, "top_carrier is nothing, expected {!r}"),
    ],
)
def test_a_planted_value_is_found(due: pd.DataFrame, field: str, value: object, line: str) -> None:
    other = due.astype(object)
    at = 3
    other.loc[at, field] = value
    where = f"{due['day'][at]} {due['account'][at]}: "
    assert differences(other, due) == [where + line.format(due[field].tolist()[at])]


def test_a_difference_just_above_the_tolerance_is_found(due: pd.DataFrame) -> None:
    other = due.copy()
    other.loc[0, "mean_arr_delay"] += 1e-6
    assert len(differences(other, due)) == 1


def test_a_number_where_none_is_due_is_found(due: pd.DataFrame) -> None:
    at = due.index[due["mean_arr_delay"].isna()][0]
    other = due.copy()
    other.loc[at, "mean_arr_delay"] = 0.0
    (line,) = differences(other, due)
    assert line.endswith("mean_arr_delay is 0.0, expected nothing")


def test_missing_unexpected_and_doubled_rows_are_found(due: pd.DataFrame) -> None:
    extra = due.iloc[[0]].assign(account="ZZZ")
    other = pd.concat([due.drop(index=[1]), extra, due.iloc[[2]]])
    assert differences(other, due) == [
        f"2013-01-01 {due['account'][1]}: missing",
        f"2013-01-01 {due['account'][2]}: 2 rows, expected 1",
        "2013-01-01 ZZZ: not expected",
    ]


def test_whole_days_are_reported_in_one_line(due: pd.DataFrame) -> None:
    accounts = int((due["day"] == LAST).sum())
    assert differences(due[due["day"] != LAST], due) == [f"{LAST}: missing, the whole day ({accounts} accounts)"]
    assert differences(due, due[due["day"] != LAST]) == [f"{LAST}: not expected, the whole day ({accounts} accounts)"]
    assert len(differences(due.iloc[:0], due)) == 3


def test_rows_without_a_key_are_found(due: pd.DataFrame) -> None:
    other = due.astype(object)
    other.loc[0, "day"] = None
    other.loc[1, "account"] = None
    assert differences(other, due) == [
        "(no day): not expected, the whole day (1 accounts)",
        "2013-01-01 (no account): not expected",
        f"2013-01-01 {due['account'][0]}: missing",
        f"2013-01-01 {due['account'][1]}: missing",
    ]


def test_a_missing_column_is_found(due: pd.DataFrame) -> None:
    assert differences(due.drop(columns=["flights", "day"]), due) == [
        "column day is missing",
        "column flights is missing",
    ]


def test_long_lists_are_cut(due: pd.DataFrame) -> None:
    lines = differences(due.assign(flights=0), due)
    assert len(lines) == 21
    assert lines[-1] == f"… and {len(due) - 20} more"
    assert len(differences(due.assign(flights=0), due, limit=len(due))) == len(due)
