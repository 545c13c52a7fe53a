"""The position of a stream in the archive of a queue, and the options that set where it begins. No I/O.

A snapshot of the database defines what a stream has read: the jobs that were ended by the transactions that were over
then. finished_at cannot define it: the transaction that wrote an earlier one may commit later. Between two snapshots
lies a window: what the later snapshot sees and the earlier one does not, a set that never grows. Within a window, which
may hold a whole backlog, batches go on by (finished_at, id).
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput

NOTHING = "1:1:"
"""The snapshot that sees no transaction."""
FIRST = str(UUID(int=0))
_SNAPSHOT = re.compile(r"\d+:\d+:[\d,]*")

OPTIONS = ("startingposition", "maxrowsperbatch", "failondataloss")
"""Of the stream alone; those of a batch read go with them."""


@dataclass(frozen=True, slots=True)
class Position:
    """An offset of the stream.

    Attributes:
        after: the snapshot before the window.
        until: the snapshot at its end.
        time: when that was taken; None: at the very beginning.
        since: jobs that ended before it are none of the stream's; None: all are.
        low: the smallest finished_at of the window; None: it is empty.
        at: the finished_at of the last row that was read of the window; None: all of it was.
        id: the id of that row.
        rows: how many rows the batch has that ended here, about.
        left: how many rows of the window follow, about.
    """

    after: str = NOTHING
    until: str = NOTHING
    time: str | None = None
    since: str | None = None
    low: str | None = None
    at: str | None = None
    id: str | None = None
    rows: int = 0
    left: int = 0

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self:
        """Return the position that an offset of a checkpoint says.

        Raises:
            InvalidInput: it is none of this source.
        """
        try:
            found = cls(**offset)
            for snapshot in (found.after, found.until):
                if not _SNAPSHOT.fullmatch(snapshot):
                    raise ValueError(snapshot)
            for moment in (found.time, found.since, found.low, found.at):
                _ = moment and datetime.fromisoformat(moment)
            _ = found.id and UUID(found.id)
            return found
        except (TypeError, ValueError, AttributeError):
            raise InvalidInput(
                f"the checkpoint holds the offset {dict(offset)}, which is none of this source; begin with a new checkpoint"
            ) from None

    def offset(self) -> dict[str, Any]:
        """Return the position as Spark keeps it."""
        return asdict(self)

    def begins(self) -> tuple[str, str]:
        """Return the row after which the window is still to be read: its finished_at and id."""
        assert self.low is not None
        return (self.low, FIRST) if self.at is None or self.id is None else (self.at, self.id)

    def up_to(self, last: tuple[datetime, UUID] | None, rows: int, left: int) -> "Position":
        """Return the position after a batch of this window that ends with a row; None: with the window."""
        at, row = (None, None) if last is None else (last[0].isoformat(), str(last[1]))
        return replace(self, at=at, id=row, rows=rows, left=left)


def batch_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those that a stream alone has."""
    return {name: value for name, value in options.items() if name.lower() not in OPTIONS}


def given(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a stream alone has, by their names in lower case."""
    return {name.lower(): value for name, value in options.items() if name.lower() in OPTIONS}


def starting(options: Mapping[str, str]) -> str | datetime:
    """Return where a stream begins that has no checkpoint: `earliest`, `latest` or a moment.

    Raises:
        InvalidInput: the option is none of them.
    """
    text = options.get("startingposition", "earliest")
    if text in ("earliest", "latest"):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise InvalidInput(
            f"the option 'startingPosition' is {text!r}; it is earliest, latest, or an ISO timestamp with a zone"
        )
    return moment


def most_rows(options: Mapping[str, str]) -> int | None:
    """Return how many rows a batch has at most; None for no bound.

    Raises:
        InvalidInput: the option is no whole number from 1.
    """
    text = options.get("maxrowsperbatch")
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise InvalidInput(f"the option 'maxRowsPerBatch' is {text!r}; it is a whole number from 1")
    return int(text)


def fails_on_loss(options: Mapping[str, str]) -> bool:
    """Return whether the stream ends if jobs may have been trimmed unread.

    Raises:
        InvalidInput: the option is neither true nor false.
    """
    text = options.get("failondataloss", "true").lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"the option 'failOnDataLoss' is {text!r}; it is true or false")
    return text == "true"
