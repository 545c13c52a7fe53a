"""The demo's days as partitions: the UI's query returns them, now and a year after the code was loaded."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.definitions.partitions.context import PartitionLoadingContext
from dagster._core.definitions.partitions.snap import PartitionsSnap
from dagster._core.definitions.temporal_context import TemporalContext

from dagster_sqlqueue.spark.day_asset import check_days
from definitions.days import past_days

LOADED = date(2026, 11, 26)
NOW = [
    datetime(2026, 1, 1, tzinfo=UTC),  # another process loaded the code at the beginning of the year
    datetime(2026, 11, 26, 13, tzinfo=UTC),
    datetime(2026, 11, 27, 0, 0, 1, tzinfo=UTC),
    datetime(2027, 1, 1, tzinfo=UTC),
    datetime(2027, 12, 31, 23, 59, tzinfo=UTC),
]


def keys(first: date, last: date) -> list[str]:
    return [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]


def pages(days: dg.PartitionsDefinition[str], now: datetime, *, ascending: bool, limit: int = 120) -> Sequence[str]:
    """The first page of keys, by the call of `partitionKeyConnection`, the field that the UI's plots query."""
    context = PartitionLoadingContext(
        temporal_context=TemporalContext(effective_dt=now, last_event_id=None), dynamic_partitions_store=None
    )
    return days.get_paginated_partition_keys(context=context, limit=limit, ascending=ascending).results


@pytest.mark.parametrize("now", NOW, ids=str)
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (date(2013, 1, 1), date(2013, 1, 31)),
        (date(2013, 12, 31), date(2013, 12, 31)),
        (date(2013, 1, 1), date(2013, 12, 31)),
    ],
    ids=["month", "day", "year"],
)
def test_the_keys_are_those_of_the_range(first: date, last: date, now: datetime) -> None:
    made = past_days(first, last, LOADED)
    check_days(made)
    # The web server makes the definition from what the code location sends.
    days = PartitionsSnap.from_def(made).get_partitions_definition()
    expected = keys(first, last)
    assert list(pages(days, now, ascending=False)) == expected[::-1][:120]
    assert list(pages(days, now, ascending=True)) == expected[:120]
    assert list(pages(days, now, ascending=False, limit=3)) == expected[::-1][:3]
    assert list(days.get_partition_keys(now)) == expected
    with dg.partition_loading_context(effective_dt=now):
        assert (days.get_first_partition_key(), days.get_last_partition_key()) == (expected[0], expected[-1])
        assert all(days.has_partition_key(key) for key in (expected[0], expected[-1]))
        outside = [first - timedelta(days=1), last + timedelta(days=1), LOADED]
        assert not any(days.has_partition_key(day.isoformat()) for day in outside)


def test_a_reload_in_the_same_year_makes_the_same_definition() -> None:
    first, last = date(2013, 1, 1), date(2013, 1, 31)
    assert past_days(first, last, date(2026, 1, 1)) == past_days(first, last, date(2026, 12, 31))
