"""How a handler says what became of a job. No I/O."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import in_seconds, is_delay

Json: TypeAlias = "dict[str, Any] | list[Any] | str | int | float | bool | None"

UNSAID = "no reason was given"
"""The reason of an outcome whose own is blank."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job succeeded. `result` is JSON, kept in the archive."""

    result: Json = None
    text: str | None = field(default=None, init=False, repr=False, compare=False)
    """The result as it is stored, once it was found to be JSON; None before, and for none."""


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """The attempt failed: again after `after`, a timedelta or seconds (None: the queue's backoff), or the dead letter if it
    was the last. The attribute `after` is in seconds.
    """

    error: str
    after: float | None

    def __init__(
        self, error: str = "the handler asked for another attempt", after: float | timedelta | None = None
    ) -> None:
        object.__setattr__(self, "error", _reason("Retry", error))
        object.__setattr__(self, "after", None if after is None else _delay("Retry", after))


@dataclass(frozen=True, slots=True, init=False)
class Snooze:
    """Not now, and this attempt does not count: again after a timedelta or so many seconds, or at a moment with a time zone.
    The attribute `until` is a moment, or in seconds.
    """

    until: float | datetime

    def __init__(self, until: float | timedelta | datetime) -> None:
        object.__setattr__(self, "until", _moment(until) if isinstance(until, datetime) else _delay("Snooze", until))


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the job, no attempt spent, until an operator releases, completes or cancels it."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _reason("Hold", self.reason))


@dataclass(frozen=True, slots=True)
class Reject:
    """The job can never succeed: the dead letter at once."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _reason("Reject", self.reason))


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job is not wanted any more: archived as cancelled."""

    reason: str = "cancelled by its handler"

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _reason("Cancel", self.reason))


Outcome: TypeAlias = Done | Retry | Snooze | Hold | Reject | Cancel


def check_reason(reason: object) -> str:
    """Return a reason for later readers of the job, checked.

    Raises:
        InvalidInput: it is no text, or says nothing.
    """
    if not isinstance(reason, str) or _says_nothing(reason):
        raise InvalidInput(f"the reason is {reason!r}; give a text that says why, for later readers of the job")
    return reason


def _reason(outcome: str, reason: object) -> str:
    if not isinstance(reason, str):
        raise InvalidInput(f"{outcome} was given {reason!r} as its reason; give a text, such as str(error)")
    # Many exceptions have no message. What the handler has decided holds nevertheless.
    return UNSAID if _says_nothing(reason) else reason


def _says_nothing(reason: str) -> bool:
    return not reason.replace("\x00", "").strip()


def _moment(until: datetime) -> datetime:
    if until.utcoffset() is None:
        raise InvalidInput(f"Snooze was given {until!r}, a time without a zone; give one, such as datetime.now(UTC)")
    try:
        until.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidInput(f"Snooze was given {until!r}; in UTC it must lie within the years 1 to 9999") from None
    return until


def _delay(outcome: str, delay: object) -> float:
    seconds = in_seconds(delay)
    if not is_delay(seconds):
        raise InvalidInput(
            f"{outcome} was given {delay!r} as its delay; give a timedelta or seconds, not negative and at most a hundred"
            " years"
        )
    return seconds
