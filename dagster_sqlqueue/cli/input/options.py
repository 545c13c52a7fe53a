"""Arguments and options that several commands take, and how their texts are read."""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args
from uuid import UUID

import typer

from dagster_sqlqueue.cli.input import completion
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import UniqueUntil as JobUniqueUntil
from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS
from dagster_sqlqueue.model.queue import RateLimit

NONE = "none"
"""The word that removes a limit or another setting."""

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)?\s*(ms|s|min|m|h|d)?")
_LARGEST = 2**31 - 1
_MOST_SHOWN = 10_000

Value = TypeVar("Value")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=completion.queue_names)]
OneQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE",
        show_default=False,
        help="The queue. Default: all queues.",
        autocompletion=completion.queue_names,
    ),
]
UniqueUntil = Annotated[
    str,
    typer.Option(
        metavar="end|claim",
        help="How long a job holds its unique key: until it ends, or only until it is first claimed.",
    ),
]
Limit = Annotated[str, typer.Option(metavar="N", help=f"Maximum number to show, 1 to {_MOST_SHOWN}.")]


def unique_until(text: str, key: str | None) -> JobUniqueUntil:
    """Return how long a job holds its unique key.

    Args:
        text: the option's value.
        key: the unique key; None: there is none.

    Raises:
        InvalidInput: it is neither of the two values, or it is `claim` without a key.
    """
    found: dict[str, JobUniqueUntil] = {choice: choice for choice in get_args(JobUniqueUntil)}
    if text not in found:
        raise InvalidInput(f"--unique-until is {text!r}; it must be {' or '.join(map(repr, found))}")
    if text != "end" and key is None:
        raise InvalidInput(f"--unique-until {text} needs --unique-key, which is not given")
    return found[text]


def seconds(option: str, text: str) -> float:
    """Return a duration in seconds, from a text such as `90`, `90s`, `5m` (or `5min`), `1.5h` or `7d`.

    Raises:
        InvalidInput: it is not a duration, or is longer than a hundred years.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match or match[1] is None:
        raise InvalidInput(
            f"{option} is {text!r}; write a number of seconds, or one with a unit: 90, 500ms, 5m, 2h, 7d"
        )
    value = float(match[1]) * _UNITS[match[2] or "s"]
    if value > MAX_DELAY_SECONDS:
        raise InvalidInput(f"{option} is too long: {text!r:.100}; it must be at most a hundred years")
    return value


def whole(option: str, text: str) -> int:
    """Return a whole number.

    Raises:
        InvalidInput: it is not a whole number, or is out of the range of the database's integers.
    """
    if not re.fullmatch(r"-?[0-9]{1,11}", text.strip()) or abs(int(text)) > _LARGEST:
        raise InvalidInput(f"{option} is {text!r}; it must be a whole number, at most {_LARGEST:,}")
    return int(text)


def limit(text: str, most: int = _MOST_SHOWN) -> int:
    """Return the number of `--limit`.

    Raises:
        InvalidInput: it is not a whole number from 1 to `most`.
    """
    found = whole("--limit", text)
    if not 1 <= found <= most:
        raise InvalidInput(f"--limit is {found}; it must be 1 to {most:,}")
    return found


def percentage(option: str, text: str) -> float:
    """Return a percentage.

    Raises:
        InvalidInput: it is not a number from 0 to 100.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:
        raise InvalidInput(f"{option} is {text!r}; it must be a number from 0 to 100")
    return value


def rate(option: str, text: str) -> RateLimit:
    """Return a rate limit, from a text such as `100/60s`, `5/s` or `1000/h`.

    Raises:
        InvalidInput: it is not a rate.
    """
    starts, slash, interval = text.partition("/")
    match = _DURATION.fullmatch(interval.strip())
    if not slash or not match or not (match[1] or match[2]):
        raise InvalidInput(f"{option} is {text!r}; write starts/interval: 100/60s, 5/s or 1000/h")
    return RateLimit(whole(option, starts), float(match[1] or 1) * _UNITS[match[2] or "s"])


def moment(option: str, text: str) -> datetime:
    """Return a time with a time zone, in UTC.

    Raises:
        InvalidInput: it is not a time, or has no zone.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a time; write it as 2026-01-31T08:00:00Z") from None
    if when.utcoffset() is None:
        raise InvalidInput(f"{option} {text!r} has no time zone; end it with Z for UTC, or an offset such as +02:00")
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{option} {text!r} is not within the years 1 to 9999 in UTC") from None


def json_value(option: str, text: str) -> Any:
    """Return any JSON value.

    Raises:
        InvalidInput: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option} {text!r:.200} is not JSON: {error}") from None


def job_id(option: str, text: str) -> UUID:
    """Return a job's id.

    Raises:
        InvalidInput: it is not a UUID.
    """
    try:
        return UUID(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r} is not a job's id; ids look like 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b, as `sqlqueue list`"
            " shows them"
        ) from None


def kept(option: str, text: str | None, before: Value, read: Callable[[str, str], Value]) -> Value:
    """Return the option's value, or the value before if the option was not given."""
    return before if text is None else read(option, text)


def removable(option: str, text: str | None, before: Value | None, read: Callable[[str, str], Value]) -> Value | None:
    """Do the same for a setting that the word `none` removes."""
    return None if text == NONE else kept(option, text, before, read)
