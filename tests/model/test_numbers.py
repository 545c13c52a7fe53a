"""What counts as a number: truth values, NaN and other types do not."""

import math

import pytest

from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS, is_delay, is_number, is_seconds, is_whole


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, 0, 11])
def test_no_whole_number_from_one_to_ten(value: object) -> None:
    assert not is_whole(value, 1, 10)


def test_whole_numbers_within_their_bounds() -> None:
    assert is_whole(1, 1, 10)
    assert is_whole(10, 1, 10)
    assert is_whole(2**31 - 1, 0)
    assert not is_whole(2**31, 0), "the database's integers end before"


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, -1, MAX_DELAY_SECONDS * 2])
def test_neither_seconds_nor_a_delay(value: object) -> None:
    assert not is_seconds(value)
    assert not is_delay(value)


def test_a_delay_may_be_nothing_and_a_length_may_not() -> None:
    assert is_delay(0)
    assert not is_seconds(0)
    assert is_seconds(1e-9)
    assert is_seconds(MAX_DELAY_SECONDS)
    assert is_delay(MAX_DELAY_SECONDS)


def test_numbers_without_bounds() -> None:
    assert is_number(math.inf)
    assert not is_number(math.nan)
    assert not is_number(True)
