"""The options of the data source, and the check of each by itself."""

import difflib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import MAX_BUCKETS

FORMAT = "sqlqueue"
OnBadValue: TypeAlias = Literal["fail", "null"]
"""What becomes of a field that cannot be cast: the read fails, or it is NULL."""
PLACE = ("url", "url_env", "database_schema")
"""The options that say where the queue is."""
KNOWN = (
    *PLACE,
    *("queue", "state", "batch_id", "states"),
    *("columns", "payload", "payload_prefix", "on_bad_value", "where", "buckets"),
    *("finished_from", "finished_until", "created_from", "created_until"),
    *("split", "target_rows", "max_connections", "limit"),
    *("consistent", "snapshot_seconds", "statement_timeout", "batch_bytes"),
)
MOMENTS = ("finished_from", "finished_until", "created_from", "created_until")
"""The options that are moments."""

_CHOICES = {
    "state": ("archive", "live", "batch"),
    "split": ("time", "bucket"),
    "on_bad_value": ("fail", "null"),
    "consistent": ("as_of", "snapshot"),
}
_NUMBERS = {
    "target_rows": 250_000,
    "max_connections": None,
    "limit": None,
    "snapshot_seconds": 600,
    "statement_timeout": None,
    "batch_bytes": 2**22,
}
_STATES = {
    "archive": ("succeeded", "failed", "cancelled"),
    "live": ("queued", "running", "held"),
}
_BUCKETS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")

T = TypeVar("T")


def check(options: Mapping[str, str]) -> None:
    """Check the options that do not depend on others.

    Raises:
        InvalidInput: one is missing, misspelt or out of range.
    """
    if "provider" in options:
        raise InvalidInput(
            f"a table of Spark's catalogue cannot have the format {FORMAT!r}: Spark would read it without its options."
            f" Make a view of the session: CREATE TEMPORARY VIEW name USING {FORMAT} OPTIONS (…)"
        )
    # Spark adds the path of `load(path)` by itself, and it is as unknown here as a misspelt name.
    if unknown := [name for name in options if name.lower() not in KNOWN]:
        near = difflib.get_close_matches(unknown[0].lower(), KNOWN, 1)
        raise InvalidInput(
            f"the option {unknown[0]!r} is not known to the format {FORMAT!r}"
            + (f"; did you mean {near[0]!r}?" if near else "")
            + f"; it has {', '.join(KNOWN)}"
        )
    for name in _CHOICES:
        choice(options, name)
    required(options, "queue")
    for name in _NUMBERS:
        number(options, name)
    for name in MOMENTS:
        moment(options, name)
    for begin, end in ((MOMENTS[0], MOMENTS[1]), (MOMENTS[2], MOMENTS[3])):
        first, last = moment(options, begin), moment(options, end)
        if first and last and last < first:
            raise InvalidInput(
                f"the option {end!r} is {options[end]!r}, which is before {begin!r}, {options[begin]!r}: exchange them"
            )
    states(options)
    buckets(options)
    if state_of(options) == "batch":
        batch_ids(options)
    elif "batch_id" in options:
        raise InvalidInput("the option 'batch_id' is for state 'batch' only")
    if state_of(options) != "archive" and options.get("split") == "time":
        raise InvalidInput(
            "the option 'split' is 'time', which is for state 'archive' only: live jobs are split by bucket"
        )
    if state_of(options) != "archive" and (given := [n for n in ("finished_from", "finished_until") if n in options]):
        raise InvalidInput(f"the option {given[0]!r} is for state 'archive' only: a live job has not finished")


def state_of(options: Mapping[str, str]) -> str:
    """What is read: `archive`, `live` or `batch`."""
    return options.get("state", "archive")


def by_snapshot(options: Mapping[str, str]) -> bool:
    """Return whether all tasks of a read share one snapshot of the database."""
    default = "snapshot" if state_of(options) == "live" else "as_of"
    return options.get("consistent", default) == "snapshot"


def keeping(options: Mapping[str, str]) -> str:
    """Return the SQL file that keeps what is read from being dropped; a user who may run it may read all of that."""
    return "spark_keep_archive" if state_of(options) == "archive" else "spark_keep_live"


def by_bucket(options: Mapping[str, str]) -> bool:
    """Return whether a read is split by buckets; only the archive can be split otherwise."""
    return state_of(options) != "archive" or options.get("split") == "bucket"


def null_for_bad(options: Mapping[str, str]) -> bool:
    """Return whether a field that cannot be cast is NULL."""
    return options.get("on_bad_value") == "null"


def target_rows(options: Mapping[str, str]) -> int:
    """Return about how many rows a slice should have."""
    return number(options, "target_rows") or 0


def choice(options: Mapping[str, str], name: str) -> None:
    """Check an option that is one of some words.

    Raises:
        InvalidInput: it is another one.
    """
    choices = _CHOICES[name]
    if (value := options.get(name)) is not None and value not in choices:
        raise InvalidInput(f"the option {name!r} is {value!r}; it is {' or '.join(choices)}")


def number(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a whole number; its default where it is not given."""
    text = options.get(name)
    if text is None:
        return _NUMBERS[name]
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:12]) < 2**31:
        raise InvalidInput(f"the option {name!r} is {text!r}; it is a whole number from 1")
    return int(text)


def capped(max_connections: int | None) -> dict[str, str]:
    """Return the option that caps the tasks of a read; None: there is no cap."""
    return {} if max_connections is None else {"max_connections": str(max_connections)}


def moment(options: Mapping[str, str], name: str) -> datetime | None:
    """Return an option that is a moment; None where it is not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.min
    if found.tzinfo is None:
        raise InvalidInput(f"the option {name!r} is {text!r}; write an ISO timestamp with a zone")
    return found


def states(options: Mapping[str, str]) -> list[str]:
    """Return the states to read; none: all of them."""
    if not options.get("states"):
        return []
    of = state_of(options)
    if of == "batch":
        raise InvalidInput("the option 'states' is not for state 'batch': a sealed batch's jobs are all running")
    names = [name.strip() for name in options["states"].split(",")]
    if unknown := [name for name in names if name not in _STATES[of]]:
        raise InvalidInput(f"the option 'states' names {unknown[0]!r}; {of} states are {', '.join(_STATES[of])}")
    return names


def buckets(options: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return the buckets to read, as ranges with both ends; none: all of them."""
    found = []
    for part in options["buckets"].split(",") if "buckets" in options else ():
        match = _BUCKETS.fullmatch(part.strip())
        low = int(match[1]) if match else 1
        high = int(match[2] or match[1]) if match else 0
        if low > high:
            raise InvalidInput(f"the option 'buckets' holds {part.strip()!r}; write it like: 0,3,8-15")
        if high >= MAX_BUCKETS:
            # Up to there a queue may have had more buckets than now, and the archive has jobs of them.
            raise InvalidInput(f"the option 'buckets' holds {part.strip()!r}; the last bucket is {MAX_BUCKETS - 1}")
        found.append((low, high))
    return found


def batch_ids(options: Mapping[str, str]) -> list[UUID]:
    """Return the batches to read."""
    return [_uuid(part.strip()) for part in required(options, "batch_id").split(",")]


def required(options: Mapping[str, str], name: str) -> str:
    """Return an option that must be there."""
    if not options.get(name):
        raise InvalidInput(f"the option {name!r} of the format {FORMAT!r} is missing")
    return options[name]


def json_option(options: Mapping[str, str], name: str, default: T) -> T:
    """Return an option that is JSON, of the type of its default."""
    try:
        value = json.loads(options.get(name) or json.dumps(default))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"the option {name!r} is not JSON: {error}") from None
    if not isinstance(value, type(default)):
        raise InvalidInput(f"the option {name!r} must be a JSON {'object' if default == {} else 'list'}")
    return value


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"the option 'batch_id' holds {text!r}, which is no UUID") from None
