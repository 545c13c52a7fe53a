"""How long a retry waits. No I/O."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dagster_sqlqueue.errors import InvalidInput

MAX_DELAY_SECONDS = 100 * 366 * 86_400.0
"""Leases, delays and backoffs end within the range of the database's timestamps."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits for its next attempt: `seconds * factor ** (attempt - 1)`, at most `max_seconds`.

    Args:
        seconds: after the first attempt.
        factor: 1.0 for a fixed delay.
        max_seconds: the upper bound.
        jitter: the share of the delay that is drawn at random, 0.0 to 1.0, so that jobs that failed together do not come
            back together.

    Raises:
        InvalidInput: a value out of range.
    """

    seconds: float = 5.0
    factor: float = 2.0
    max_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        usable = (
            0 <= self.seconds < math.inf
            and 0 <= self.max_seconds <= MAX_DELAY_SECONDS
            and 1 <= self.factor < math.inf
            and 0 <= self.jitter <= 1
        )
        if not usable:
            raise InvalidInput(
                f"{self} is not usable: seconds and max_seconds must not be negative, max_seconds at most a hundred years,"
                " factor at least 1, jitter 0 to 1"
            )

    def __call__(self, attempt: int) -> float:
        """Seconds to wait after this attempt (1 is the first)."""
        try:
            full = min(self.seconds * self.factor ** max(attempt - 1, 0), self.max_seconds)
        except OverflowError:
            full = self.max_seconds if self.seconds else 0.0
        return full * (1 - self.jitter * random.random())

    @classmethod
    def fixed(cls, seconds: float) -> "Backoff":
        """The same delay after every attempt."""
        return cls(seconds, factor=1.0, max_seconds=max(seconds, 0.0), jitter=0.0)


BackoffPolicy: TypeAlias = Backoff | Callable[[int], float]
"""A `Backoff`, or a function of one's own from the attempt (1 is the first) to the seconds to wait, at most a hundred years.
Where it fails, or returns no number, the backoff that the database has for the queue holds.
"""
