"""What counts as a number where a caller gives one: no truth value, though Python's are numbers. No I/O."""

import math
from datetime import timedelta
from typing import TypeGuard

MAX_DELAY_SECONDS = 100 * 366 * 86_400.0
"""Leases, delays and backoffs end within the range of the database's timestamps."""


def is_whole(value: object, least: int, most: int = 2**31 - 1) -> TypeGuard[int]:
    """Return whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[float]:
    """Return whether a value is a number within bounds; NaN is within none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def in_seconds(value: object) -> object:
    """Return how many seconds a timedelta is; anything else as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def is_seconds(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of seconds above 0, at most a hundred years."""
    return is_number(value, most=MAX_DELAY_SECONDS) and value > 0


def is_delay(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of seconds to wait: not negative, at most a hundred years."""
    return is_number(value, 0, MAX_DELAY_SECONDS)
