"""Consume daily jobs with Spark, exactly once: seal, read, publish.

Each day's due jobs are sealed into a batch by the driver. Spark reads the batches and the archived events of the days,
and computes. One transaction then replaces the days' rows of the SQL table and ends the jobs; Parquet files are staged
before it and moved into place after it. A run that is killed at any point leaves its jobs to the next one, and a run
whose batch was taken over is refused.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.spark import batches, fields, finish_window, local_days, remote, result_columns, sinks
from dagster_sqlqueue.spark.closed_days import check_begun
from dagster_sqlqueue.spark.consume_verbs import consume_all
from dagster_sqlqueue.spark.contents import upstream_of
from dagster_sqlqueue.spark.day_results import Compute, computed
from dagster_sqlqueue.spark.options import FORMAT, OnBadValue, capped, choice, number
from dagster_sqlqueue.spark.source import ddl

KEY = ("day", "account")
"""The columns that identify a row of the results, which the events must have too."""

_ACCOUNT = {"day": {"path": "payload.day", "type": "date"}, "account": {"path": "payload.account", "type": "string"}}


@dataclass(frozen=True, slots=True)
class ArchiveRead:
    """What a computation reads of an archived queue.

    Args:
        queue: the queue whose finished jobs are read.
        columns: the name of each column, and where it comes from and as what, as the option `columns` of the `sqlqueue`
            data source takes it. It must hold `day` and `account`.
        states: the archive states to read.
        on_bad_value: `null`: a field that cannot be cast to its column's type is NULL; `fail`: it fails the read of the day
            that its job belongs to. A job belongs to a day if its `day` is that ISO date, alone or with a time after it;
            else to none.
        finished_within: how long after the end of its day, in the time zone where it ends last, a job with a column
            `day` finishes at the latest. Only that part of the archive is read for a day, from the day's beginning in
            the zone where it begins first; jobs of the day that finished outside of it do not belong to it. None:
            whenever they finished, which takes reading the whole archive of the queue.
        max_connections: how many tasks read at most, each with one connection, as the option of the data source; None: as
            many as the read has slices.
        payload: the model of the queue's payloads, which then has to have the fields that `columns` names; None: a field
            that no payload has is a column of NULLs.

    Raises:
        InvalidInput: `on_bad_value` is neither, a column is not usable, `finished_within` is out of range, there is no
            column `day` of type date beside it, or `max_connections` is less than 1.
    """

    queue: str
    columns: Mapping[str, Mapping[str, str]]
    states: tuple[str, ...] = ("succeeded", "failed")
    on_bad_value: OnBadValue = "fail"
    finished_within: timedelta | None = None
    max_connections: int | None = None
    payload: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        number(capped(self.max_connections), "max_connections")
        choice({"on_bad_value": self.on_bad_value}, "on_bad_value")
        fields.named(self.columns, fields.of_every_job(live=False), live=False)
        if self.payload is not None:
            result_columns.check_paths(self.payload, self.columns)
        finish_window.check(self.finished_within, self.columns)


@dataclass(frozen=True, slots=True)
class DayDone:
    """One day of a consumption: the jobs ended by it and the rows that its results now have."""

    day: str
    jobs: int
    rows: int


def consume_days(
    queue: SqlQueue,
    spark: SparkSession,
    compute: Compute,
    *,
    name: str,
    daily_queue: str,
    read: ArchiveRead,
    days: Sequence[str],
    owner: str,
    table: str | None = None,
    output: Path | str | None = None,
    lease_seconds: float = 60.0,
    backoff: Backoff = batches.BACKOFF,
) -> tuple[list[DayDone], pa.Table]:
    """Consume the due daily jobs of some days and replace the results of those days.

    An account that has events of the day on their queue is left out: the statement that seals checks that. A day's
    results cover the accounts whose job is in its batch and those whose job was done before, so that consuming a day
    again, or in several turns as the accounts' midnights come, always gives the whole day.

    Args:
        queue: where both queues are.
        spark: a session with the data source `sqlqueue` registered.
        compute: from the days' events (the columns of `read`) to the results, which have the columns `day` and
            `account` and one row for each of their pairs.
        name: what the batches are for; batch keys begin with it.
        daily_queue: the queue of the daily jobs, whose payloads hold `account` and `day`.
        read: the events to read.
        days: ISO dates.
        owner: who consumes, for people to read.
        table: the SQL table of the results, made if it is not there; None: files only.
        output: the directory of the Parquet files, `day=…` below it, or its URL; None: the table only.
        lease_seconds: how long the batches hold without a heartbeat.
        backoff: how long schedulers should wait before they consume a day again after a run that failed or died.

    Returns:
        What was done for each day, and the rows; none where they are too many for the driver.

    Raises:
        BatchLost: another owner consumes one of the days.
        InvalidInput: there is neither table nor output, or the days, the table's name or the results are not usable, or a
            day lies in the future.
            Nothing was written, and the jobs are due again.
        OutputNotWritable: nothing was consumed.
        UnknownQueue: one of the queues does not exist.
    """
    dates = _dates(days)
    ordered = [day.isoformat() for day in dates]
    sinks.check_given(f"what is made of {daily_queue!r}", table, output)
    output = None if output is None else remote.named(output)
    writes = [place for place in (output, table) if place is not None]
    migrations.check(queue.database)
    queue.settings(read.queue)
    if table is not None:
        result_columns.check_days(queue, table, KEY)
    check_begun(ordered, queue.database.run("clock", {})[0][0])
    upstream = upstream_of(read.queue, read.columns)
    closed = None if upstream is None else upstream.parameters()
    # Always in the order of the days: two runs that share some wait for each other without a deadlock. Several batches
    # end in one transaction, which only leased ones can.
    keys = {f"{name}/{day}": {"day": day} for day in ordered}
    settings = {"writes": writes, "lease_seconds": lease_seconds, "backoff": backoff, "closed": closed}
    with consume_all(queue, spark, daily_queue, keys, owner=owner, **settings) as work:  # type: ignore[arg-type]
        events = _events(
            spark, read, _accounts(spark, daily_queue, work.batches, ordered, read.max_connections), ordered
        )
        made = computed(compute, events, KEY, dates, queue=queue, table=table)
        with contextlib.closing(made):
            if output is not None:
                work.stage_files(output, made.stage)
            if table is not None:
                by_tasks = made.frame is not None
                rows = made.rows if made.frame is None else made.frame
                work.write_sql(rows, table, replace={"day": dates}, key=KEY, by_tasks=by_tasks)
    done = [DayDone(day, batch.job_count, made.counts[day]) for day, batch in zip(ordered, work.batches, strict=True)]
    return done, made.rows


def _dates(days: Sequence[str]) -> list[date]:
    try:
        dates = sorted({date.fromisoformat(day) for day in days})
    except ValueError as error:
        raise InvalidInput(f"days is {list(days)}: {error}; write days as 2013-01-31") from None
    if not dates:
        raise InvalidInput("days is empty; name at least one, as 2013-01-31")
    return dates


def _accounts(
    spark: SparkSession, daily_queue: str, sealed: Sequence[batches.Batch], days: Sequence[str], most: int | None
) -> DataFrame:
    done = _reader(spark, daily_queue, _ACCOUNT, most).option("state", "archive").option("states", "succeeded")
    done = done.option("where", local_days.condition(days))
    before = done.option("finished_from", finish_window.first_of(days).isoformat()).load()
    ids = [str(batch.id) for batch in sealed if batch.job_count]
    if not ids:
        return before.distinct()
    now = _reader(spark, daily_queue, _ACCOUNT, most).option("state", "batch").option("batch_id", ",".join(ids))
    both = before.union(now.load())
    # The tasks of both reads run at the same time.
    return (both if most is None else both.coalesce(most)).distinct()


def _events(spark: SparkSession, read: ArchiveRead, accounts: DataFrame, days: Sequence[str]) -> DataFrame:
    reader = (
        _reader(spark, read.queue, read.columns, read.max_connections)
        .option("state", "archive")
        .option("states", ",".join(read.states))
    )
    reader = reader.option("on_bad_value", read.on_bad_value).option("where", local_days.condition(days))
    events = finish_window.loaded(reader, types_of(read.columns), days, read.finished_within)
    return events.join(accounts.hint("broadcast"), ["day", "account"], "left_semi")


def _reader(
    spark: SparkSession, queue: str, columns: Mapping[str, Mapping[str, str]], most: int | None
) -> DataFrameReader:
    reader = spark.read.format(FORMAT).option("queue", queue).options(**capped(most))
    reader = reader.option("columns", json.dumps({name: dict(column) for name, column in columns.items()}))
    return reader.schema(ddl(types_of(columns)))


def types_of(columns: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the type of each column: string, where none is given."""
    return {name: column.get("type", "string") for name, column in columns.items()}
