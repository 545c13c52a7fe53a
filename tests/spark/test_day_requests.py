"""Which days the sensor of a daily asset asks for."""

import pytest

from dagster_sqlqueue.spark.day_requests import DueDay, next_range


def days(failures: str) -> list[DueDay]:
    """Due days that failed so often, by a digit each; `r`: it failed just now; `h`: it is held; `.`: nothing is due."""
    made = []
    for n, what in enumerate(failures, 1):
        state, attempt, ago = {
            "r": ("abandoned", 1, 0.0),
            "h": ("sealed", 1, -60.0),
            ".": (None, None, None),
            "0": ("published", 1, 5.0),
        }.get(what, ("abandoned", int(what) if what.isdigit() else 1, 10_000.0))
        jobs = 0 if what == "." else 3
        day = f"2013-01-{n:02}"
        made.append(DueDay(day, jobs, 0, False, state, attempt, [30, 2, 3600], ago, "x", "run/1", 0, False))
    return made


@pytest.mark.parametrize(
    ("failures", "most", "first", "last"),
    [
        ("0000", 31, 1, 4),
        ("00000", 3, 1, 3),
        ("0.00", 31, 1, 4),
        ("1000", 31, 2, 4),
        ("0010", 31, 1, 2),
        ("r000", 31, 2, 4),
        ("00h0", 31, 1, 2),
        ("r11h", 31, 2, 3),
        ("11111111", 8, 1, 4),
        ("22222222", 8, 1, 2),
        ("99999999", 8, 1, 1),
        ("2111", 8, 2, 4),
    ],
)
def test_a_range_is_of_days_that_failed_least_and_smaller_with_each_failure(
    failures: str, most: int, first: int, last: int
) -> None:
    chosen = next_range(days(failures), most)
    assert (chosen[0].day, chosen[-1].day) == (f"2013-01-{first:02}", f"2013-01-{last:02}")


@pytest.mark.parametrize("failures", ["", "...", "rh", "."])
def test_nothing_is_asked_for_where_all_rest(failures: str) -> None:
    assert next_range(days(failures), 31) == []
