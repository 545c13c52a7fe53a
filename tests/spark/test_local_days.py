"""The day of an event that says when it happened: by the clocks of its account, on both sides of the date line, and on the
days on which the clocks are changed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark import batches, contents
from dagster_sqlqueue.spark.closed_days import check_closed
from dagster_sqlqueue.spark.contents import Days
from dagster_sqlqueue.spark.daily import ArchiveRead, consume_days
from tests.spark.asset_support import PARTITIONS, daily_asset
from tests.spark.daily_support import DAILY
from tests.spark.support import NOON, Done, archive
from tests.spark.test_daily_sensor import Tick
from tests.support import rows

SHARES_A_SCHEMA = True

AUCKLAND, CHATHAM, HAWAII, PAGO, NEW_YORK, BERLIN = (
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Honolulu",
    "Pacific/Pago_Pago",
    "America/New_York",
    "Europe/Berlin",
)
KIRITIMATI = "Pacific/Kiritimati"
SPRING, AUTUMN = "2013-03-10", "2013-11-03"
"""New York: a day of 23 hours, and one of 25."""
DAY = {"path": "payload.at", "type": "date", "zone": "payload.where.zone"}


def edges(day: str, zone: str) -> list[tuple[str, str, str]]:
    """The last microsecond before a day, its first one, its last and the one after, as the zone data of Python has them."""
    first = datetime.combine(date.fromisoformat(day), datetime.min.time(), ZoneInfo(zone)).astimezone(UTC)
    last = datetime.combine(date.fromisoformat(day) + timedelta(days=1), datetime.min.time(), ZoneInfo(zone))
    step = timedelta(microseconds=1)
    moments = [first - step, first, last.astimezone(UTC) - step, last.astimezone(UTC)]
    return [(at.isoformat(), zone, at.astimezone(ZoneInfo(zone)).date().isoformat()) for at in moments]


def days_of(queue: SqlQueue, pairs: list[tuple[Any, str]]) -> list[str | None]:
    asked = json.dumps([{"at": at, "zone": zone} for at, zone in pairs])
    found = rows(
        queue,
        "SELECT {s}.local_day(one ->> 'at', one ->> 'zone') FROM jsonb_array_elements(CAST(%s AS jsonb))"
        " WITH ORDINALITY AS all_of (one, n) ORDER BY n",
        asked,
    )
    return [day for (day,) in found]


def test_days_end_by_the_clocks_of_each_zone(queue: SqlQueue) -> None:
    expected = [
        one
        for day in ("2013-01-01", SPRING, AUTUMN, "2013-04-07", "2013-09-29", "2013-10-27", "2012-02-29")
        for zone in (AUCKLAND, CHATHAM, KIRITIMATI, HAWAII, PAGO, NEW_YORK, BERLIN, "UTC", "Asia/Kolkata")
        for one in edges(day, zone)
    ]
    assert days_of(queue, [(at, zone) for at, zone, _ in expected]) == [day for *_, day in expected]
    hours = [datetime(2013, 3, 9, tzinfo=UTC) + timedelta(hours=n) for n in range(72)]
    hours += [datetime(2013, 11, 2, tzinfo=UTC) + timedelta(hours=n) for n in range(72)]
    found = Counter(days_of(queue, [(at.isoformat(), NEW_YORK) for at in hours]))
    assert (found[SPRING], found[AUTUMN]) == (23, 25)


def test_a_day_that_a_zone_leaves_out(queue: SqlQueue) -> None:
    """Samoa went over the date line in the night to what would have been the thirtieth."""
    expected = [("2011-12-30T09:59:59Z", "Pacific/Apia"), ("2011-12-30T10:00:00Z", "Pacific/Apia")]
    assert days_of(queue, expected) == ["2011-12-29", "2011-12-31"]


def test_what_is_an_instant(queue: SqlQueue) -> None:
    good = [
        "2013-01-01T04:59:59Z",
        "2013-01-01 04:59Z",
        "2013-01-01T04:59:59.999999999",
        "2013-01-01T06:59:59+02:00",
        "2012-12-31 23:59:59-0500",
        "2013-01-01T06:59:59 +02",
    ]
    assert days_of(queue, [(at, NEW_YORK) for at in good]) == ["2012-12-31"] * len(good)
    bad = [
        "soon",
        "",
        "now",
        "infinity",
        "2013-01-01",
        "2013-02-30T00:00:00Z",
        "2013-13-01T00:00Z",
        "2013-01-01T24:00Z",
    ]
    bad += ["0000-01-01T00:00Z", "2013-01-01T00:00:00+15:00", "20130101T000000Z", "2013-01-01T00:00Z; SELECT 1"]
    assert days_of(queue, [(at, NEW_YORK) for at in bad]) == [None] * len(bad)
    assert days_of(queue, [(12, "UTC"), (None, "UTC"), ("0001-01-01T00:00+14:00", "UTC")])[:2] == [None, None]


def about(clocks: Any = (None, ["where", "zone"]), **more: Any) -> Days:
    return Days("work", ("succeeded",), "UTC", day="payload.at", account="payload.account", clocks=clocks, **more)


def event(at: Any, account: str, zone: Any) -> dict[str, Any]:
    return {"at": at, "account": account, "where": {"zone": zone}}


EVENTS = [
    # One moment, on three days.
    event("2013-01-02T10:30:00Z", "line", KIRITIMATI),
    event("2013-01-02T10:30:00Z", "line", BERLIN),
    event("2013-01-02T10:30:00Z", "line", PAGO),
    event("2013-01-02T04:59:59Z", "jfk", NEW_YORK),
    event("2013-01-02T05:00:00Z", "jfk", NEW_YORK),
]
ODD = [
    event("soon", "odd", BERLIN),
    event("2013-01-02T10:30:00Z", "odd", "Mars/Olympus"),
    event("2013-01-02T10:30:00Z", "odd", "UTC+3"),
    event("2013-01-02T10:30:00Z", "odd", "europe/berlin"),
    event("2013-01-02T10:30:00Z", "odd", 7),
    event(None, "odd", BERLIN),
    event("2013-01-02T10:30:00Z", "odd", None),
    {"account": "odd", "at": "2013-01-02T10:30:00Z", "where": "nowhere"},
]
ALL = ["2013-01-01", "2013-01-02", "2013-01-03"]
BY_DAY: Mapping[str, Mapping[str, int]] = {
    "2013-01-01": {"line": 1, "jfk": 1},
    "2013-01-02": {"line": 1, "jfk": 1},
    "2013-01-03": {"line": 1},
}


def test_what_the_archive_holds_of_a_day(queue: SqlQueue) -> None:
    archive(queue, [Done(one) for one in [*EVENTS, *ODD]])
    held = contents.held(queue, about(), ALL)
    assert {day: one.jobs for day, one in held.items()} == BY_DAY
    assert {day: one.jobs for day, one in contents.stats(queue, about(), ALL).items()} == {
        day: sum(counts.values()) for day, counts in BY_DAY.items()
    }
    named = contents.held(queue, about((NEW_YORK, None)), ALL)
    assert named["2013-01-01"].jobs == {"jfk": 1}
    assert named["2013-01-02"].jobs == {"jfk": 1, "line": 3, "odd": 6}
    # Another event of a day is another watermark of that day alone.
    archive(queue, [Done(event("2013-01-03T09:59:59.999999Z", "line", KIRITIMATI))])
    again = contents.held(queue, about(), ALL)
    assert [day for day in ALL if again[day].watermark() != held[day].watermark()] == ["2013-01-03"]


class Event(BaseModel, extra="allow"):
    """Whatever somebody enqueues."""


def put(queue: SqlQueue, payloads: list[dict[str, Any]]) -> None:
    queue.enqueue_many(QueueSpec("work", Event), [NewJob(Event.model_validate(one)) for one in payloads])


def daily(queue: SqlQueue, *jobs: tuple[str, str, str]) -> None:
    queue.create_queue(DAILY)
    made = [
        NewJob(DailyAccount(account=account, day=date.fromisoformat(day), zone=zone)) for day, account, zone in jobs
    ]
    queue.enqueue_many(DAILY, made)


def seal(queue: SqlQueue, days: list[str], clocks: Any = (None, ["where", "zone"])) -> dict[str, int]:
    events = contents.Upstream("work", ["at"], ["account"], clocks)
    held: list[batches.Batch] = []
    batches.seal_days(
        queue, "daily", {f"t/{day}": day for day in days}, owner="t", held=held, closed=events.parameters()
    )
    found = {day: batch.job_count for day, batch in zip(days, held, strict=True)}
    for batch in held:
        batches.abandon(queue, batch, "the test is over")
    rows(queue, "UPDATE {s}.job SET available_at = now() WHERE queue = 'daily'")
    return found


def test_an_account_with_an_event_of_its_own_day_is_open(queue: SqlQueue) -> None:
    put(queue, [EVENTS[0], EVENTS[3], *ODD])
    daily(queue, *((day, account, "UTC") for day in ALL for account in ("line", "jfk", "odd")))
    events = contents.Upstream("work", ["at"], ["account"], (None, ["where", "zone"]))
    stand = contents.accounts(queue, "daily", ALL, events)
    assert {day: one.open for day, one in stand.items()} == {
        "2013-01-01": {"jfk": 1},
        "2013-01-02": {},
        "2013-01-03": {"line": 1},
    }
    assert seal(queue, ALL) == {"2013-01-01": 2, "2013-01-02": 3, "2013-01-03": 2}
    now = datetime.now(UTC)
    check_closed(queue, about(), ["2013-01-02"], now)
    for day in ("2013-01-01", "2013-01-03"):
        with pytest.raises(InvalidInput, match=f"{day} is not closed: 1 jobs of it"):
            check_closed(queue, about(), [day], now)


def test_a_day_that_is_not_over_where_the_account_lives_is_open(queue: SqlQueue) -> None:
    """Whenever this runs: there are always three days on earth, or two and the one to come."""
    now = datetime.now(UTC)
    first, last = (now.astimezone(ZoneInfo(zone)).date() for zone in (KIRITIMATI, PAGO))
    day = (first - timedelta(days=1)).isoformat()
    over = last > date.fromisoformat(day)
    daily(queue, (day, "kiribati", KIRITIMATI), (day, "samoa", PAGO), (day, "nowhere", "Mars/Olympus"))
    everywhere = now.astimezone(ZoneInfo("Etc/GMT+12")).date() > date.fromisoformat(day)
    assert seal(queue, [day]) == {day: 1 + over + everywhere}
    assert seal(queue, [day], (KIRITIMATI, None)) == {day: 3}
    assert seal(queue, [day], (PAGO, None)) == {day: 3 * over}
    assert seal(queue, [day], (None, None)) == {day: 3}
    with pytest.raises(InvalidInput, match=f"{first} is not over|lies in the future"):
        check_closed(queue, about(), [first.isoformat()], now)


@pytest.fixture
def zoned(queue: SqlQueue, output: Any) -> dg.AssetsDefinition:
    columns = {"day": DAY, "account": {"path": "payload.account", "type": "string"}}
    return daily_asset(queue, output, reads=ArchiveRead("work", columns=columns), counted=None, statistics=None)


def test_the_sensor_waits_for_open_days_and_sees_late_events(
    zoned: dg.AssetsDefinition, queue: SqlQueue, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    tick = Tick(zoned, resources, instance)
    put(queue, [EVENTS[0]])
    daily(queue, ("2013-01-03", "line", KIRITIMATI))
    assert "1 jobs due for 2013-01-03 to 2013-01-03; waiting for work" in str(tick().skip_message)
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'work'")
    assert tick().tags["dagster/asset_partition_range_start"] == "2013-01-03"
    # As if it had been computed.
    held: list[batches.Batch] = []
    with batches.kept(queue, held):
        batches.seal_days(queue, "daily", {"sizes/2013-01-03": "2013-01-03"}, owner="t", held=held)
        with queue.database.transaction() as transaction:
            batches.publish(queue, held[0], transaction, output={})
    archive(queue, [Done(one) for one in [*EVENTS[1:], *ODD]])
    assert not hasattr(tick(), "tags")
    archive(queue, [Done(EVENTS[0])])
    assert tick().tags["dagster/asset_partition_range_start"] == "2013-01-03"
    assert PARTITIONS.timezone == "UTC"


def test_a_read_has_the_same_days(queue: SqlQueue, spark: SparkSession, reader: DataFrameReader) -> None:
    archive(queue, [Done(one, at=NOON + timedelta(days=1)) for one in [*EVENTS, *ODD]])
    daily(queue, *((day, account, "UTC") for day in ALL for account in ("line", "jfk", "odd")))
    columns = {"day": DAY, "account": {"path": "payload.account", "type": "string"}}

    def count(events: DataFrame) -> DataFrame:
        return events.groupBy("day", "account").agg(sf.count("*").alias("events"))

    read = ArchiveRead("work", columns=columns, finished_within=timedelta(days=1))
    settings: dict[str, Any] = {"name": "t", "daily_queue": "daily", "read": read, "days": ALL, "owner": "t"}
    _, made = consume_days(queue, spark, count, table=f"{queue.database.schema}.results", **settings)
    found: dict[str, dict[str, int]] = {day: {} for day in ALL}
    for row in made.to_pylist():
        found[row["day"].isoformat()][row["account"]] = row["events"]
    assert found == BY_DAY
    every = reader.option("columns", json.dumps(columns)).schema("account string, day date")
    assert every.option("on_bad_value", "null").load().where("day IS NULL").count() == len(ODD)
    rows(queue, "DELETE FROM {s}.job_archive WHERE payload -> 'where' ->> 'zone' IS DISTINCT FROM 'UTC+3'")
    ((job,),) = rows(queue, "SELECT CAST(id AS text) FROM {s}.job_archive WHERE queue = 'work'")
    said = rf"job {job}: the field 'payload.at' is '2013-01-02T10:30:00Z in the time zone UTC\+3', and the column 'day'"
    with pytest.raises(Exception, match=said):
        every.option("on_bad_value", "fail").load().collect()


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"path": "payload.at", "type": "date", "zone": "Mars/Olympus"}, "'Mars/Olympus' is no time zone"),
        ({"path": "payload.at", "type": "date", "zone": "result.zone"}, "'result.zone' is no time zone"),
        ({"path": "payload.at", "type": "date", "zone": 7}, "7 is no time zone"),
        ({"path": "payload.at", "type": "date", "zone": ""}, "'' is no time zone"),
        ({"path": "payload.at", "type": "date", "zone": "payload..zone"}, "'payload..zone' is no time zone"),
        ({"path": "payload.at", "zone": "UTC"}, "give it the type date"),
    ],
)
def test_zones_that_are_none(column: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ArchiveRead("work", columns={"day": column, "account": {"path": "payload.account"}})
