"""How long a retry waits. No I/O."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_delay, is_number


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits for its next attempt: `seconds * factor ** (attempt - 1)`, at most `max_seconds`.

    Args:
        seconds: to wait after the first attempt.
        factor: by which each further wait is longer; 1.0 for a fixed delay.
        max_seconds: the longest wait, at most a hundred years.
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
            is_number(self.seconds, 0)
            and self.seconds < math.inf
            and is_delay(self.max_seconds)
            and is_number(self.factor, 1)
            and self.factor < math.inf
            and is_number(self.jitter, 0, 1)
        )
        if not usable:
            raise InvalidInput(
                f"{self} is not usable: all are numbers; seconds and max_seconds must not be negative, max_seconds at most a"
                " hundred years, factor at least 1, jitter 0 to 1"
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
        """The same delay after every attempt.

        Args:
            seconds: how long, at most a hundred years.

        Raises:
            InvalidInput: it is no number, negative or longer.
        """
        return cls(seconds, factor=1.0, max_seconds=seconds, jitter=0.0)


BackoffPolicy: TypeAlias = Backoff | Callable[[int], float]
"""A `Backoff`, or a function of one's own from the attempt (1 is the first) to the seconds to wait, at most a hundred years.
Where it fails, or returns no number, the backoff that the database has for the queue holds.
"""
