"""How a handler says what became of a job. No I/O."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_delay

Json: TypeAlias = "dict[str, Any] | list[Any] | str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class Done:
    """The job succeeded. `result` is JSON, kept in the archive."""

    result: Json = None
    text: str | None = field(default=None, init=False, repr=False, compare=False)
    """The result as it is stored, once it was found to be JSON; None before, and for none."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: again after `after` seconds (None: the queue's backoff), or the dead letter if it was the last."""

    error: str = "the handler asked for another attempt"
    after: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.error, str):
            raise InvalidInput(f"Retry was given {self.error!r} as its reason; give a text, such as str(error)")
        if self.after is not None:
            _check_delay("Retry", self.after)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now, and this attempt does not count: again after so many seconds, or at a moment with a time zone."""

    until: float | datetime

    def __post_init__(self) -> None:
        if not isinstance(self.until, datetime):
            _check_delay("Snooze", self.until)
        elif self.until.utcoffset() is None:
            raise InvalidInput(
                f"Snooze was given {self.until!r}, a time without a zone; give one, such as datetime.now(UTC)"
            )
        else:
            try:
                self.until.astimezone(UTC)
            except (OverflowError, ValueError):
                raise InvalidInput(
                    f"Snooze was given {self.until!r}; in UTC it must lie within the years 1 to 9999"
                ) from None


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the job, no attempt spent, until an operator releases, completes or cancels it."""

    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason, "Hold")


@dataclass(frozen=True, slots=True)
class Reject:
    """The job can never succeed: the dead letter at once."""

    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason, "Reject")


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job is not wanted any more: archived as cancelled."""

    reason: str = "cancelled by its handler"

    def __post_init__(self) -> None:
        check_reason(self.reason, "Cancel")


Outcome: TypeAlias = Done | Retry | Snooze | Hold | Reject | Cancel


def check_reason(reason: object, of: str | None = None) -> str:
    """Return a reason for later readers of the job, checked.

    Args:
        reason: as it was given.
        of: what it was given to, for the message.

    Raises:
        InvalidInput: it is no text, or says nothing.
    """
    if not isinstance(reason, str) or not reason.replace("\x00", "").strip():
        given = f"the reason is {reason!r}" if of is None else f"{of} was given {reason!r} as its reason"
        raise InvalidInput(f"{given}; give a text that says why, for later readers of the job")
    return reason


def _check_delay(outcome: str, seconds: object) -> None:
    if not is_delay(seconds):
        raise InvalidInput(
            f"{outcome} was given {seconds!r} as its delay; give seconds, not negative and at most a hundred years"
        )
