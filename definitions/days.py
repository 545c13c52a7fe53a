"""The days of the demo, as partitions."""

import os
from datetime import UTC, date, datetime, time, timedelta

import dagster as dg

from definitions.flights import parse_range


def past_days(first: date, last: date, today: date) -> dg.DailyPartitionsDefinition:
    """Build the partitions of a range of days of past years, so that the UI plots them.

    The UI asks for the latest 120 keys, and Dagster counts these back from today whatever `end_date` is. A negative
    `end_offset` leaves out the days since the end. It is a fixed number while the time goes on, so it counts only the days
    up to the beginning of this year, and the days of this year and the next are excluded one by one. The keys are
    therefore the same until the end of next year without a reload, and the definition is the same in all processes that
    load it within a year. There is no `end_date`: with it, Dagster applies the offset a second time, and pages from the
    first key on are empty.

    Args:
        first: the first day.
        last: the last day, of an earlier year than `today`.
        today: the current day, UTC.
    """
    begins = date(today.year, 1, 1)
    coming = (date(today.year + 2, 1, 1) - begins).days
    return dg.DailyPartitionsDefinition(
        start_date=first.isoformat(),
        end_offset=-(begins - last).days + 1,
        exclusions=[datetime.combine(begins + timedelta(days=n), time()) for n in range(coming)],
    )


first_day, last_day = parse_range(os.environ.get("FLIGHTS"))
days = past_days(first_day, last_day, datetime.now(UTC).date())
