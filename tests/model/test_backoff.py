"""The delay between a failed attempt and the next."""

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
    ],
)
def test_a_backoff_refuses_what_makes_no_sense(arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="is not usable"):
        Backoff(**arguments)


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
