"""When schedules tick, above all on the days on which the clocks are moved."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.schedules.cron import Interval, cron_in, latest, timing_of, zone_of
from tests.gate.patience import sized

BERLIN = "Europe/Berlin"  # 2026: from 02:00 to 03:00 on 29 March, from 03:00 to 02:00 on 25 October
NEW_YORK = "America/New_York"  # 2026: from 02:00 to 03:00 on 8 March, from 02:00 to 01:00 on 1 November
LORD_HOWE = "Australia/Lord_Howe"  # 2026: from 02:00 to 01:30 on 5 April, from 02:00 to 02:30 on 4 October

MINUTE = timedelta(minutes=1)


def shown(expression: str, zone: str, day: str, count: int) -> list[str]:
    """What the clocks on the wall and their offset from UTC are at the ticks of a day."""
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    ticks = islice(timing_of(cron=expression, every_seconds=None, time_zone=zone).after(begin - MINUTE), count)
    return [f"{tick.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for tick in ticks]


@pytest.mark.parametrize(
    ("zone", "expression", "day", "expected"),
    [
        # A time that does not exist: at the moment the clocks are moved on, and as ever on the next day.
        (BERLIN, "30 2 * * *", "2026-03-29", ["29 03:00 +0200", "30 02:30 +0200"]),
        (NEW_YORK, "30 2 * * *", "2026-03-08", ["08 03:00 -0400", "09 02:30 -0400"]),
        (LORD_HOWE, "15 2 * * *", "2026-10-04", ["04 02:30 +1100", "05 02:15 +1100"]),
        # Several that do not exist are one tick; and so is one with another that falls on the same moment.
        (BERLIN, "0,20,40 2 * * *", "2026-03-29", ["29 03:00 +0200", "30 02:00 +0200"]),
        (BERLIN, "0 2,3 * * *", "2026-03-29", ["29 03:00 +0200", "30 02:00 +0200", "30 03:00 +0200"]),
        # A time that exists twice: at the first of them.
        (BERLIN, "30 2 * * *", "2026-10-25", ["25 02:30 +0200", "26 02:30 +0100"]),
        (NEW_YORK, "30 1 * * *", "2026-11-01", ["01 01:30 -0400", "02 01:30 -0500"]),
        (LORD_HOWE, "45 1 * * *", "2026-04-05", ["05 01:45 +1100", "06 01:45 +1030"]),
        # Times before and after the change are what they are called.
        (BERLIN, "59 1,3 * * *", "2026-03-29", ["29 01:59 +0100", "29 03:59 +0200", "30 01:59 +0200"]),
        (BERLIN, "59 1,3 * * *", "2026-10-25", ["25 01:59 +0200", "25 03:59 +0100", "26 01:59 +0100"]),
        # Whatever the clock shows: hours that do not exist have no tick, those that exist twice have two.
        (BERLIN, "0 * * * *", "2026-03-29", ["29 00:00 +0100", "29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]),
        (
            BERLIN,
            "0 * * * *",
            "2026-10-25",
            ["25 00:00 +0200", "25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"],
        ),
        (BERLIN, "*/30 2 * * *", "2026-03-29", ["30 02:00 +0200", "30 02:30 +0200"]),
        (
            BERLIN,
            "*/30 2 * * *",
            "2026-10-25",
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "26 02:00 +0100"],
        ),
        (NEW_YORK, "15 * * * *", "2026-03-08", ["08 00:15 -0500", "08 01:15 -0500", "08 03:15 -0400"]),
        (
            NEW_YORK,
            "15 * * * *",
            "2026-11-01",
            ["01 00:15 -0400", "01 01:15 -0400", "01 01:15 -0500", "01 02:15 -0500"],
        ),
        (LORD_HOWE, "*/20 2 * * *", "2026-10-04", ["04 02:40 +1100", "05 02:00 +1100"]),
        (LORD_HOWE, "*/20 6 * * *", "2026-10-04", ["04 06:00 +1100", "04 06:20 +1100", "04 06:40 +1100"]),
        (LORD_HOWE, "*/20 2 * * *", "2026-04-05", ["05 02:00 +1030", "05 02:20 +1030", "05 02:40 +1030"]),
        (
            LORD_HOWE,
            "*/20 1 * * *",
            "2026-04-05",
            ["05 01:00 +1100", "05 01:20 +1100", "05 01:40 +1100", "05 01:40 +1030", "06 01:00 +1030"],
        ),
    ],
)
def test_a_cron_expression_on_the_days_of_change(zone: str, expression: str, day: str, expected: Sequence[str]) -> None:
    assert shown(expression, zone, day, len(expected)) == expected


@pytest.mark.parametrize(
    ("name", "day", "expected"),
    [
        ("@hourly", "2026-10-25", ["25 00:00 +0200", "25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100"]),
        ("@daily", "2026-03-28", ["28 00:00 +0100", "29 00:00 +0100", "30 00:00 +0200"]),
        ("@midnight", "2026-03-28", ["28 00:00 +0100", "29 00:00 +0100", "30 00:00 +0200"]),
        ("@weekly", "2026-03-23", ["29 00:00 +0100", "05 00:00 +0200"]),
        ("@monthly", "2026-03-02", ["01 00:00 +0200", "01 00:00 +0200"]),
        ("@yearly", "2026-03-02", ["01 00:00 +0100"]),
        ("@annually", "2026-03-02", ["01 00:00 +0100"]),
        (" @Daily ", "2026-03-28", ["28 00:00 +0100"]),
    ],
)
def test_names_of_expressions(name: str, day: str, expected: Sequence[str]) -> None:
    assert shown(name, BERLIN, day, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        *((BERLIN, "2026-03-29", 23.0), (BERLIN, "2026-10-25", 25.0)),
        *((NEW_YORK, "2026-03-08", 23.0), (NEW_YORK, "2026-11-01", 25.0)),
        *((LORD_HOWE, "2026-10-04", 23.5), (LORD_HOWE, "2026-04-05", 24.5)),
    ],
)
def test_an_interval_counts_elapsed_time_across_the_change(zone: str, day: str, hours: float) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = begin + timedelta(days=1)
    assert (end.astimezone(UTC) - begin.astimezone(UTC)) == timedelta(hours=hours)
    timing = timing_of(cron=None, every_seconds=900, time_zone=zone, anchor=begin)
    ticks = list(islice(timing.after(begin.astimezone(UTC) - MINUTE), int(hours * 4) + 1))
    assert ticks[0] == begin
    assert ticks[-1] == end
    assert {after - before for before, after in pairwise(ticks)} == {timedelta(minutes=15)}


def test_an_interval_keeps_to_the_microsecond() -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC)
    timing = Interval(timedelta(seconds=0.1), anchor)
    assert next(timing.after(anchor - timedelta(seconds=0.05))) == anchor
    assert next(timing.after(anchor - timedelta(seconds=0.31))) == anchor - timedelta(seconds=0.3)
    far = next(timing.after(anchor + timedelta(days=30_000)))
    assert far == anchor + timedelta(days=30_000, milliseconds=100)
    assert list(Interval(timedelta(days=36_500), anchor).after(datetime(9000, 1, 1, tzinfo=UTC)))[-1].year < 10_000


def test_a_second_of_two_equal_times_is_not_answered_with_the_first() -> None:
    second = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN), fold=1)
    assert next(CronSim("45 2 * * *", second)).astimezone(UTC) < second.astimezone(UTC)
    timing = timing_of(cron="45 2 * * *", every_seconds=None, time_zone=BERLIN)
    assert next(timing.after(second.astimezone(UTC))) == datetime(2026, 10, 26, 1, 45, tzinfo=UTC)


ZONES = [BERLIN, NEW_YORK, LORD_HOWE, "UTC", "Asia/Kolkata", "America/Havana", "America/Santiago", "Africa/Casablanca"]
AROUND = [datetime(2026, month, day, tzinfo=UTC) for month in (2, 3, 4, 9, 10, 11) for day in (1, 4, 7, 14, 21, 24, 28)]
FIELD = {
    "minute": ["*", "*/7", "*/30", "0", "15,45", "5-20/5", "59"],
    "hour": ["*", "*/2", "0", "1", "2", "1-3", "0,23", "6"],
    "day": ["*", "*/2", "1-15", "8", "L"],
    "dow": ["*", "SUN", "0,6", "MON-FRI"],
}


def fields(expression: str) -> CronSim:
    """An expression as sets of numbers, with the library's match of a day."""
    return CronSim(expression, datetime(2001, 1, 1))


def minute_by_minute(expression: str, zone: ZoneInfo, begin: datetime, days: int) -> list[datetime]:
    """The ticks of some days, found by looking at every minute: what the rules say, and nothing cleverer."""
    rule = fields(expression)

    def fits(wall: datetime) -> bool:
        return (
            wall.minute in rule.minutes
            and wall.hour in rule.hours
            and wall.month in rule.months
            and rule.match_day(wall.date())
        )

    minutes = [begin + n * MINUTE for n in range(days * 24 * 60)]
    if any(part.startswith("*") for part in expression.split()[:2]):
        return [moment for moment in minutes if fits(moment.astimezone(zone))]
    found: set[datetime] = set()
    seen: datetime | None = None
    for moment in minutes:
        wall = moment.astimezone(zone).replace(tzinfo=None)
        if seen is not None:
            # Every time that the wall has got to, or was taken past, since the latest time that it has shown.
            named = seen + MINUTE
            while named <= wall:
                if fits(named):
                    found.add(moment)
                named += MINUTE
        seen = wall if seen is None else max(seen, wall)
    return sorted(found)


@settings(max_examples=sized(50, 150), deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    begin=st.sampled_from(AROUND),
    parts=st.tuples(*(st.sampled_from(FIELD[name]) for name in ("minute", "hour", "day", "dow"))),
    asked=st.integers(0, 4 * 24 * 60 * 60),
)
def test_ticks_are_those_found_at_every_minute(
    zone: str, begin: datetime, parts: tuple[str, str, str, str], asked: int
) -> None:
    minute, hour, day, dow = parts
    expression = f"{minute} {hour} {day} * {dow}"
    # Looked at from a day earlier on, so that it is known what the wall has shown.
    expected = minute_by_minute(expression, ZoneInfo(zone), begin - timedelta(days=1), 8)
    moment = begin + timedelta(seconds=asked)
    until = begin + timedelta(days=7)
    ticks = []
    for tick in timing_of(cron=expression, every_seconds=None, time_zone=zone).after(moment):
        if tick >= until:
            break
        ticks.append(tick)
    assert ticks == [tick for tick in expected if moment < tick < until]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("0 4 1 1 *", datetime(2026, 1, 1, 4, tzinfo=UTC)), ("* * * * *", datetime(2026, 11, 1, tzinfo=UTC))],
)
def test_the_latest_of_many_is_found(expression: str, expected: datetime) -> None:
    timing = timing_of(cron=expression, every_seconds=None, time_zone="UTC")
    assert latest(timing, datetime(1990, 1, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)) == expected


def test_the_latest_is_not_looked_for_among_all() -> None:
    class Counting:
        seen = 0

        def after(self, moment: datetime):  # type: ignore[no-untyped-def]
            for tick in Interval(timedelta(seconds=1), datetime(1990, 1, 1, tzinfo=UTC)).after(moment):
                self.seen += 1
                yield tick

    counting = Counting()
    until = datetime(2026, 11, 1, tzinfo=UTC)
    assert latest(counting, datetime(1990, 1, 1, tzinfo=UTC), until) == until
    assert counting.seen <= 3_700
    assert latest(counting, until + MINUTE, until) is None


@pytest.mark.parametrize(
    ("cron", "every", "zone", "said"),
    [
        ("* * * *", None, "UTC", "has 4 fields; write five fields"),
        ("*/5 * * * * *", None, "UTC", "has 6 fields"),
        ("@reboot", None, "UTC", "'@reboot' names no time: a database with several schedulers has no start of its own"),
        (" @Reboot ", None, "UTC", "enqueue the job where your application starts"),
        (
            "@fortnightly",
            None,
            "UTC",
            "'@fortnightly' is no name that cron has: @yearly, @annually, @monthly, @weekly,",
        ),
        ("@", None, "UTC", "or write five fields"),
        ("@daily 5", None, "UTC", "'@daily 5' is no name"),
        ("daily", None, "UTC", "has 1 fields"),
        ("", None, "UTC", "has 0 fields"),
        ("61 * * * *", None, "UTC", "does not parse: Bad minute"),
        ("0 24 * * *", None, "UTC", "does not parse: Bad hour"),
        ("0 0 30 2 *", None, "UTC", "does not parse: Bad day-of-month"),
        ("0 0 * FOO *", None, "UTC", "does not parse: Bad month"),
        ("0 0 */30 2 MON#5", None, "UTC", "never ticks"),
        ("1," * 200 + "1 * * * *", None, "UTC", "at most 200 characters"),
        (None, None, "UTC", "neither was given"),
        ("* * * * *", 60, "UTC", "both were given"),
        (None, 0.05, "UTC", "at least 0.1"),
        (None, float("nan"), "UTC", "at least 0.1"),
        (None, float("inf"), "UTC", "at most a hundred years"),
        (None, -1, "UTC", "at least 0.1"),
        (None, True, "UTC", "the interval is True"),
        ("* * * * *", None, "Europe/Berln", "no time zone 'Europe/Berln'; did you mean Europe/Berlin"),
        ("* * * * *", None, "europe/berlin", "did you mean Europe/Berlin"),
        ("* * * * *", None, "Europe", "no time zone 'Europe'"),
        ("* * * * *", None, "", "no time zone ''; give a name of the IANA database"),
        ("* * * * *", None, "../UTC", "no time zone"),
        ("* * * * *", None, "/etc/localtime", "no time zone"),
        ("* * * * *", None, "localtime", "no time zone"),
        ("* * * * *", None, "\x00", "no time zone"),
        ("* * * * *", None, "x" * 5_000, "no time zone"),
    ],
)
def test_bad_rules(cron: str | None, every: float | None, zone: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        timing_of(cron=cron, every_seconds=every, time_zone=zone)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


@settings(max_examples=sized(100, 300), deadline=None)
@given(st.text(alphabet="0123456789*/,-#LWMONJA @\x00é²", max_size=30))
def test_whatever_is_written_ticks_or_is_refused(expression: str) -> None:
    try:
        timing = cron_in(expression, zone_of("UTC"))
    except InvalidInput:
        with pytest.raises((CronSimError, StopIteration)):
            # Six fields are the library's own addition.
            next(CronSim(expression if len(expression.split()) == 5 else "", datetime(2001, 1, 1)))
    else:
        assert next(timing.after(datetime(2026, 1, 1, tzinfo=UTC))) > datetime(2026, 1, 1, tzinfo=UTC)
