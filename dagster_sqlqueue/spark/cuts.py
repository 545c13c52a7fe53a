"""Where a read of the archive is cut, in the order of (finished_at, id), and what lies between two cuts, as SQL."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from dagster_sqlqueue.spark.literals import literal, moment

STEP = timedelta(microseconds=1)
"""From one moment to the next one that the database can distinguish."""
_LAST_ID = UUID(int=2**128 - 1)


class Cut(NamedTuple):
    """A place in the archive: before all rows of a moment, or before a row of it, which need not exist."""

    at: datetime
    id: UUID | None = None

    @property
    def last(self) -> datetime:
        """The last moment of which there are rows before the cut."""
        return self.at - STEP if self.id is None else self.at


def after(at: datetime, row: UUID) -> Cut:
    """Return the cut that follows a row."""
    return Cut(at + STEP) if row == _LAST_ID else Cut(at, UUID(int=row.int + 1))


def ranges(first: Cut, cuts: Sequence[Cut], last: Cut | None) -> list[tuple[Cut, Cut | None]]:
    """From each cut to the next one, of rows that are known to lie between the first and the last; None: it is open.

    An end that is before a row is one before or after its moment, unless the moment is cut: few other rows are there.
    """
    lows = [first, *cuts]
    following = cuts[0] if cuts else last
    if following is None or following.at != first.at:
        lows[0] = Cut(first.at)
    if last is not None and lows[-1].at != last.at:
        last = Cut(last.at + STEP)
    return list(zip(lows, [*lows[1:], last], strict=True))


def between(low: Cut, high: Cut | None) -> list[str]:
    """What lies between two cuts, as conditions that no row fulfils two of; None: what lies after the first.

    A moment that is cut is asked for by itself: an index serves a moment, or the ids of a moment, or a range of moments,
    and a comparison of (finished_at, id) would read all rows of both moments.
    """
    if high is not None and low.at == high.at:
        return [_of(low.at, low.id, high.id)]
    found = [] if low.id is None else [_of(low.at, low.id, None)]
    start = low.at if low.id is None else low.at + STEP
    if high is None:
        return [*found, f"finished_at >= {moment(start)}"]
    if start < high.at:
        found.append(f"finished_at >= {moment(start)} AND finished_at < {moment(high.at)}")
    return found if high.id is None else [*found, _of(high.at, None, high.id)]


def _of(at: datetime, low: UUID | None, high: UUID | None) -> str:
    ids = [f"id {sign} {literal(str(row))}" for sign, row in ((">=", low), ("<", high)) if row is not None]
    return " AND ".join([f"finished_at = {moment(at)}", *ids])
