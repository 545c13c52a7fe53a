"""When a schedule ticks: a cron expression in a time zone, or an interval. No I/O, and no clock: moments are given.

What happens where daylight saving moves the clocks is that of Debian's cron, as `cronsim` does it:

- A cron expression with fixed times (neither the minute nor the hour begins with `*`) ticks once for each time that it
  names on a day. A time that is skipped ticks at the moment the clocks were moved on; times that would tick at the same
  moment tick once. A time that comes twice ticks at the first.
- Any other cron expression (`*/15 * * * *`, `0 * * * *`) ticks whenever the clock on the wall shows a time that fits: not
  at all at times that are skipped, twice at those that come twice.
- An interval counts elapsed time, whatever the clocks show.

`cronsim` is asked for these rules in two ways. It walks by whole hours of elapsed time, which steps over times that fit
where clocks are moved by half an hour (Australia/Lord_Howe); so for expressions of the second kind it is given a clock
that never moves, one stretch between two changes after the other. And it may answer with the first of two equal times
when it is asked at the second, which is in the past; such answers are left out.
"""

import contextlib
import difflib
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS, is_number

MIN_EVERY_SECONDS = 0.1
_LONGEST_CRON = 200
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""The names that cron has for some expressions; the library that reads those has none."""
_MACHINES_OWN = {"localtime", "Factory", "posixrules"}
"""Names whose meaning is another one on each machine, or none."""
_EXAMPLE = "write five fields, minute, hour, day of the month, month and day of the week, such as 30 2 * * MON-FRI"
_SECOND = timedelta(seconds=1)
_JUST_BEFORE = timedelta(microseconds=1)


class Timing(Protocol):
    """The moments at which a schedule ticks."""

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The ticks after a moment, in order and in UTC; they end where the calendar does."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so many microseconds of elapsed time, counted from an anchor in UTC, forwards and back, as far as the
    calendar of a zone goes.
    """

    every: timedelta
    anchor: datetime
    zone: tzinfo = UTC

    def after(self, moment: datetime) -> Iterator[datetime]:
        """See `Timing`."""
        number = (moment - self.anchor) // self.every + 1
        while True:
            try:
                tick = self.anchor + number * self.every
                # Jobs and people are given it in the zone, where the year 10000 may have begun.
                tick.astimezone(self.zone)
            except OverflowError:
                return
            yield tick
            number += 1


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields in a time zone. It has been found in order: see `cron_in`."""

    expression: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """See `Timing`."""
        minute, hour = self.expression.split()[:2]
        as_shown = minute.startswith("*") or hour.startswith("*")
        with contextlib.suppress(OverflowError):
            yield from self._as_the_clock_shows(moment) if as_shown else self._at_fixed_times(moment)

    def _at_fixed_times(self, moment: datetime) -> Iterator[datetime]:
        for local in CronSim(self.expression, moment.astimezone(self.zone)):
            tick = local.astimezone(UTC)
            if tick > moment:
                yield tick

    def _as_the_clock_shows(self, moment: datetime) -> Iterator[datetime]:
        start = moment.astimezone(UTC).replace(microsecond=0) + _SECOND
        while True:
            offset = self._offset(start)
            same_until = start
            change: datetime | None = None
            for shown in CronSim(self.expression, (start + offset - _SECOND).replace(tzinfo=None)):
                tick = (shown - offset).replace(tzinfo=UTC)
                change = self._change(same_until, tick, offset)
                if change is not None:
                    break
                yield tick
                same_until = tick
            if change is None:
                return
            start = change

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self.zone).utcoffset()
        assert offset is not None
        return offset

    def _change(self, since: datetime, until: datetime, offset: timedelta) -> datetime | None:
        """The first second up to `until` at which the clocks have left the offset that they have at `since`."""
        while since < until:
            ahead = min(since + timedelta(days=1), until)
            if self._offset(ahead) != offset:
                while ahead - since > _SECOND:
                    middle = since + (ahead - since) // (2 * _SECOND) * _SECOND
                    if self._offset(middle) == offset:
                        since = middle
                    else:
                        ahead = middle
                return ahead
            since = ahead
        return None


def latest(timing: Timing, since: datetime, until: datetime) -> datetime | None:
    """The latest tick from `since` to `until`, both included; it computes few of those before it, however many they are."""
    span = timedelta(hours=1)
    while True:
        begin = max(since, until - span)
        found = None
        for tick in timing.after(begin - _JUST_BEFORE):
            if tick > until:
                break
            found = tick
        if found is not None or begin == since:
            return found
        span *= 4


def timing_of(
    *, cron: str | None, every_seconds: float | None, time_zone: str, anchor: datetime | None = None
) -> Timing:
    """The ticks of a rule.

    Args:
        cron: a cron expression of five fields, or a name such as `@daily`; or
        every_seconds: the length of an interval, of at least 0.1 seconds.
        time_zone: an IANA name.
        anchor: from which an interval counts.

    Raises:
        InvalidInput: neither or both are given, the expression does not parse or never ticks, the interval is out of
            range, or there is no such time zone.
    """
    zone = zone_of(time_zone)
    if (cron is None) == (every_seconds is None):
        given = "neither was" if cron is None else "both were"
        raise InvalidInput(f"a schedule has a cron expression or an interval, and {given} given: name one of them")
    if cron is not None:
        return cron_in(cron, zone)
    if not is_number(every_seconds, MIN_EVERY_SECONDS, MAX_DELAY_SECONDS):
        raise InvalidInput(
            f"the interval is {every_seconds!r}; give seconds, such as 900, at least {MIN_EVERY_SECONDS} and at most a"
            " hundred years"
        )
    # In UTC: sums within another zone are of what its clocks show.
    first = datetime.fromtimestamp(0, UTC) if anchor is None else anchor.astimezone(UTC)
    return Interval(timedelta(microseconds=round(every_seconds * 1_000_000)), first, zone)


def cron_in(expression: str, zone: ZoneInfo) -> Cron:
    """A cron expression, or the name of one such as `@daily`, found in order.

    Raises:
        InvalidInput: it does not parse, or names a day that never comes.
    """
    if not isinstance(expression, str) or len(expression) > _LONGEST_CRON:
        raise InvalidInput(
            f"the cron expression {expression!r:.100} is not a text of at most {_LONGEST_CRON} characters"
        )
    if expression.strip().startswith("@"):
        return Cron(_named(expression.strip()), zone)
    fields = expression.split()
    if len(fields) != 5:
        raise InvalidInput(f"the cron expression {expression!r} has {len(fields)} fields; {_EXAMPLE}")
    try:
        first = next(CronSim(expression, datetime(2001, 1, 1)), None)
    except CronSimError as error:
        raise InvalidInput(f"the cron expression {expression!r} does not parse: {error}; {_EXAMPLE}") from None
    if first is None:
        raise InvalidInput(f"the cron expression {expression!r} never ticks: no day fits in fifty years; {_EXAMPLE}")
    return Cron(expression, zone)


def _named(name: str) -> str:
    """The expression that a name stands for; as in cron, capitals do not matter."""
    if (found := _NAMED.get(name.casefold())) is not None:
        return found
    if name.casefold() == "@reboot":
        raise InvalidInput(
            f"the cron expression {name!r} names no time: a database with several schedulers has no start of its own;"
            " enqueue the job where your application starts"
        )
    raise InvalidInput(f"the cron expression {name!r} is no name that cron has: {', '.join(_NAMED)}; or {_EXAMPLE}")


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name.

    Raises:
        InvalidInput: there is none; the message names those that are spelt alike.
    """
    try:
        if isinstance(name, str) and name not in _MACHINES_OWN:
            return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = {zone.casefold(): zone for zone in zoneinfo.available_timezones() - _MACHINES_OWN}
    alike = [known[found] for found in difflib.get_close_matches(str(name)[:100].casefold(), known, 3)]
    hint = f"did you mean {' or '.join(alike)}?" if alike else "give a name of the IANA database, such as Europe/Berlin"
    raise InvalidInput(f"there is no time zone {name!r:.100}; {hint}")
