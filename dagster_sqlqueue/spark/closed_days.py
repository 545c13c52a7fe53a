"""Days of the archive that are over: from when to when they are, and whether anything may still be added to one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from dagster_sqlqueue.display import moment
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.fanout import due_at
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import finish_window
from dagster_sqlqueue.spark.contents import Days, Held

SETTLED = timedelta(minutes=1)
"""A job that finished just before midnight may be committed a little later."""
_ZONE_LAST = "Etc/GMT+12"
"""Where a day ends last."""
_SHORTEST_RETENTION = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Computed:
    """What a day was computed from the last time.

    Attributes:
        jobs: how many jobs of it the archive held.
        first_finished: when the first of them finished.
    """

    jobs: int
    first_finished: datetime


def begins(day: str, zone: str) -> datetime:
    """Return the moment at which a day begins by the clocks of a zone."""
    return due_at(date.fromisoformat(day) - timedelta(days=1), zone, datetime.min.time())


def ends(day: str, zone: str) -> datetime:
    """Return the moment at which a day ends by the clocks of a zone."""
    return begins((date.fromisoformat(day) + timedelta(days=1)).isoformat(), zone)


def check_begun(days: Sequence[str], now: datetime) -> None:
    """Check that no day lies in the future in every time zone: it could have no jobs yet.

    Raises:
        InvalidInput: one does.
    """
    for day in days:
        begin = begins(day, "UTC") - finish_window.LEAD
        if now < begin:
            raise InvalidInput(
                f"{day} lies in the future: nowhere on earth does it begin before {moment(begin)}. Materialise days"
                " that have begun"
            )


def check_closed(queue: SqlQueue, about: Days, days: Sequence[str], now: datetime) -> None:
    """Check that nothing is added any more to the archive of some days.

    Raises:
        InvalidInput: a day lies in the future, is not over by the clocks that say which day it is, or has jobs on the queue.
    """
    zone, field = about.clocks
    # By clocks that each job names for itself, a day is over when it is wherever it ends last.
    zone = zone or (_ZONE_LAST if field is not None else about.zone)
    for day in days:
        if now < begins(day, zone):
            raise InvalidInput(
                f"{day} lies in the future: it begins at {moment(begins(day, zone))} ({zone}). Materialise days"
                " that are over"
            )
        if now < (until := ends(day, zone) + SETTLED):
            raise InvalidInput(
                f"{day} is not over: it ends at {moment(ends(day, zone))} ({zone}), and can be materialised from"
                f" {moment(until)} on"
            )
    if about.day is None:
        return
    rows = queue.database.run("live_by_day", about.parameters(days))
    open_days: dict[str, int] = {str(day): int(jobs) for day, jobs in rows}
    if open_days:
        first = min(open_days)
        raise InvalidInput(
            f"{first} is not closed: {open_days[first]:,} jobs of it are on the queue {about.queue!r}"
            f"{f', and more of {len(open_days) - 1:,} other days' if len(open_days) > 1 else ''}. Have them finished first"
        )


def check_kept(
    queue: SqlQueue, name: str, held: Mapping[str, Held], before: Mapping[str, Computed], now: datetime
) -> None:
    """Check that no day is replaced by what retention may have left of its jobs.

    Jobs of a day are missing if the archive holds fewer of them than when the day was computed, or if the first of them
    finished later. Retention may have removed them if that first job finished longer ago than the queue keeps ended jobs
    now, or if the archive holds no job of the queue that finished as early: retention removes whole days of UTC, the oldest
    first, so this also finds what a shorter retention removed that was set before.

    Args:
        queue: where the archive is.
        name: of the queue whose jobs they are.
        held: what the archive holds of the days to compute.
        before: what each day was computed from the last time, of those that had jobs.
        now: by the database's clock.

    Raises:
        InvalidInput: jobs of a day are missing, and retention may have removed them.
    """
    missing = [day for day, then in before.items() if _some_missing(held[day], then)]
    if not missing:
        return
    kept = queue.settings(name).retention_days
    begins_at = queue.database.run("spark_bounds", {"queue": name, "from_time": None, "until_time": None})[0][0]
    for day in missing:
        then = before[day]
        if why := _trimmed(then.first_finished, kept, begins_at, now):
            raise InvalidInput(
                f"the results of {day} were computed from {_jobs(then.jobs)} of queue {name!r}, the first of which finished"
                f" at {moment(then.first_finished)}; now the archive holds {_of_day(held[day])}. Retention may have removed"
                f" others: {why}. The results are left as they are. If the jobs that are there are the right ones, because"
                " others were deleted or redriven, or the asset reads fewer of them, launch the run with recompute: it"
                " computes the day from them"
            )


def _some_missing(one: Held, then: Computed) -> bool:
    first = one.first_finished()
    return first is None or first > then.first_finished or one.total() < then.jobs


def _trimmed(finished: datetime, kept: int, begins_at: datetime | None, now: datetime) -> str | None:
    """Return why retention may have removed a job that finished then; None: it has not."""
    if kept and finished < now - timedelta(days=kept):
        return f"the queue keeps ended jobs for {kept} days"
    if finished >= now - _SHORTEST_RETENTION:
        return None
    if begins_at is None:
        return "the archive of the queue is empty"
    if begins_at.astimezone(UTC).date() > finished.astimezone(UTC).date():
        return f"the archive of the queue begins at {moment(begins_at)}"
    return None


def _jobs(number: int) -> str:
    return f"{number:,} {'job' if number == 1 else 'jobs'}"


def _of_day(one: Held) -> str:
    first = one.first_finished()
    return (
        "none of that day"
        if first is None
        else f"{one.total():,} of that day, the first of which finished at {moment(first)}"
    )


def check_zone(zone: str) -> None:
    """Check that a time zone is known.

    Raises:
        InvalidInput: it is not.
    """
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"the time zone {zone!r} is not known; write a name such as Europe/Berlin") from None
