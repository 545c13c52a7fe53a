"""When the jobs of a day finish, if an asset declares it: only that much of the archive is read for it.

The day is a field of the job, and may be one of any time zone.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as sf

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.kinds import ddl

LEAD = timedelta(hours=14)
"""How long before its midnight in UTC a day begins in the first time zone."""
_ENDS = timedelta(hours=24 + 12)
_MOST = timedelta(days=36_500)
_FINISHED = "finished_at"
_DAY_MICROSECONDS = 86_400_000_000


def check(within: timedelta | None, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Check that a bound, and the columns of the jobs that it is for, can be used.

    Raises:
        InvalidInput: they cannot.
    """
    if within is None:
        return
    if not isinstance(within, timedelta) or not timedelta() <= within <= _MOST:
        raise InvalidInput(
            f"finished_within is {within!r}; give a timedelta from 0 to {_MOST.days:,} days: how long after the end of its"
            " day a job finishes at the latest"
        )
    if columns.get("day", {}).get("type") != "date":
        raise InvalidInput(
            f"finished_within is given, and of the columns {sorted(columns)} none is 'day' with the type date, from whose"
            " end it is counted. Where the day is the one on which a job finished, leave it out: only that day is read"
        )


def lag(within: timedelta) -> timedelta:
    """Return how long after its midnight in UTC the jobs of a day have finished."""
    return _ENDS + within


def first_of(days: Sequence[str]) -> datetime:
    """When the first of some days begins in the first time zone."""
    return datetime.combine(date.fromisoformat(min(days)), time(), UTC) - LEAD


def window(days: Sequence[str], within: timedelta) -> tuple[datetime, datetime]:
    """From when on the jobs of some days finish, and until when, exclusive."""
    return first_of(days), datetime.combine(date.fromisoformat(max(days)), time(), UTC) + lag(within)


def loaded(
    reader: DataFrameReader, types: Mapping[str, str], days: Sequence[str], within: timedelta | None
) -> DataFrame:
    """Return the jobs of some days.

    Args:
        reader: of the archive, with the condition on `day` set.
        types: Spark's names of the types of the columns that are wanted, with `day` as date among them.
        days: ISO dates.
        within: how long after a day's end its jobs finish; None: at any time.
    """
    if within is None:
        return reader.schema(ddl(types)).load()
    first, until = window(days, within)
    reader = reader.option("finished_from", first.isoformat()).option("finished_until", until.isoformat())
    jobs = reader.schema(ddl({_FINISHED: "timestamp", **types})).load()
    # Each day by itself, so that it has the same jobs whichever days it is read with.
    midnight = sf.unix_date("day").cast("long") * _DAY_MICROSECONDS
    after = sf.unix_micros(_FINISHED) - midnight
    step = timedelta(microseconds=1)
    return jobs.where((after >= -LEAD // step) & (after < lag(within) // step)).select(*types)
