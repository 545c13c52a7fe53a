"""The delay between a failed attempt and the next."""

from datetime import timedelta
from typing import Any

import pytest

from dagster_sqlqueue import Backoff
from dagster_sqlqueue.errors import InvalidInput


@pytest.mark.parametrize(
    "arguments",
    [
        {"seconds": -1},
        {"max_seconds": -1},
        {"factor": 0.5},
        {"jitter": 2},
        {"seconds": float("nan")},
        {"factor": float("inf")},
        {"seconds": "5"},
        {"seconds": timedelta(seconds=5)},
        {"seconds": None},
        {"seconds": True},
        {"factor": "2"},
        {"max_seconds": timedelta(hours=1)},
        {"jitter": "0.2"},
    ],
)
def test_a_backoff_refuses_what_makes_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is not usable"):
        Backoff(**arguments)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", timedelta(seconds=5), None])
def test_a_fixed_backoff_refuses_what_is_no_time(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="is not usable"):
        Backoff.fixed(seconds)


def test_a_backoff_grows_to_its_bound_and_never_beyond() -> None:
    assert [Backoff(1, 2, 10, jitter=0)(attempt) for attempt in (0, 1, 2, 3, 4, 5, 10_000)] == [
        1,
        1,
        2,
        4,
        8,
        10,
        10,
    ]
    assert Backoff(1, 1e300, 10, jitter=0)(50) == 10
    assert all(5 <= Backoff(10, jitter=0.5)(1) <= 10 for _ in range(100))
