"""Consuming daily jobs with Spark, exactly once: seal, read, publish.

Each day's due jobs are sealed into a batch by the driver. Spark reads the batches and the archived events of the days,
and computes. One transaction then swaps the days' rows of the SQL table in and ends the jobs; Parquet files are staged
before it and moved into place after it. A run that is killed at any point leaves its jobs to the next one, and a run
that was overtaken is refused.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from dagster_sqlqueue import batches
from dagster_sqlqueue.errors import BatchLost, InvalidInput, OutputNotWritable
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import results
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import ddl

logger = logging.getLogger("dagster_sqlqueue")

STAGING = ".staging"

_KEY = ("day", "account")

_ACCOUNT = {"day": {"path": "payload.day", "type": "date"}, "account": {"path": "payload.account", "type": "string"}}


@dataclass(frozen=True, slots=True)
class ArchiveRead:
    """What of an archived queue a computation reads.

    Args:
        queue: the queue whose finished jobs are read.
        columns: the name of each column, and where it comes from and as what, as the option `columns` of the `sqlqueue`
            data source takes it. It must hold `day` and `account`.
        states: the archive states to read.
    """

    queue: str
    columns: Mapping[str, Mapping[str, str]]
    states: tuple[str, ...] = ("succeeded", "failed")


@dataclass(frozen=True, slots=True)
class DayDone:
    """One day of a consumption: the jobs ended by it and the rows that its results now have."""

    day: str
    jobs: int
    rows: int


Compute = Callable[[DataFrame], DataFrame]


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
    table: str,
    output: Path,
    lease_seconds: float = 60.0,
) -> tuple[list[DayDone], pa.Table]:
    """Consume the due daily jobs of some days and replace the results of those days.

    A day's results cover the accounts whose job is in its batch and those whose job was done before, so that consuming
    a day again, or in several turns as the accounts' midnights come, always gives the whole day.

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
        table: the SQL table of the results, made if it is not there.
        output: the directory of the Parquet files, `day=…` below it.
        lease_seconds: how long the batches hold without a heartbeat.

    Returns:
        What was done for each day, and the rows.

    Raises:
        BatchLost: somebody else consumes one of the days.
        InvalidInput: the days, the table's name or the results are not usable. Nothing was written, and the jobs are due
            again.
        OutputNotWritable: nothing was consumed.
        UnknownQueue: one of the queues does not exist.
    """
    dates = _dates(days)
    ordered = [day.isoformat() for day in dates]
    output = results.writable(output.absolute())
    results.table_identifier(table)
    queue.check_schema()
    queue.settings(read.queue)
    sealed: list[batches.Batch] = []
    with batches.kept(queue, sealed, lease_seconds=lease_seconds) as still_ours:
        # Always in the order of the days: two runs that share some wait for each other, and never in a circle.
        for day in ordered:
            key = f"{name}/{day}"
            sealed.append(
                batches.seal(queue, daily_queue, key, owner=owner, filter={"day": day}, lease_seconds=lease_seconds)
            )
            _finish_earlier(queue, key)
        staging = output / STAGING
        for batch in sealed:
            results.discard(staging, str(batch.id))
        events = _events(spark, read, _accounts(spark, daily_queue, sealed, ordered), ordered)
        rows = _computed(compute, events, dates)
        still_ours()
        staged = staging / f"{sealed[0].id}-{sealed[0].token}"
        place = {"staged": str(staged), "output": str(output), "days": ordered, "table": table}
        try:
            results.stage(rows, staged, "day", dates)
            with queue.database.transaction() as transaction:
                results.replace_days(transaction.connection, table, rows, "day", _KEY, dates)
                for batch in sealed:
                    batches.publish(queue, batch, transaction, output=place)
        except (InvalidInput, BatchLost, OutputNotWritable):
            # After any other error the transaction may have been committed all the same, and then the files are due.
            results.discard(staging, str(sealed[0].id))
            raise
    results.move_into_place(staged, output, "day", ordered)
    counts = Counter(day.isoformat() for day in rows.column("day").to_pylist())
    return [DayDone(day, batch.job_count, counts[day]) for day, batch in zip(ordered, sealed, strict=True)], rows


def _dates(days: Sequence[str]) -> list[date]:
    try:
        dates = sorted({date.fromisoformat(day) for day in days})
    except ValueError as error:
        raise InvalidInput(f"days is {list(days)}: {error}; write days as 2013-01-31") from None
    if not dates:
        raise InvalidInput("days is empty; name at least one, as 2013-01-31")
    return dates


def _computed(compute: Compute, events: DataFrame, dates: Sequence[date]) -> pa.Table:
    frame = compute(events)
    if not isinstance(frame, DataFrame):
        raise InvalidInput(f"the computation gave a {type(frame).__name__}; it must give a Spark DataFrame")
    # One row more than may be published: enough to tell, and never more than the driver can hold.
    rows = frame.limit(results.MAX_ROWS + 1).toArrow()
    results.check(rows, _KEY, dates)
    return rows.sort_by([(name, "ascending") for name in _KEY])


def _finish_earlier(queue: SqlQueue, key: str) -> None:
    """A run that was killed between its transaction and the move of its files has it done here."""
    for place in batches.outputs(queue, key):
        staged = Path(place["staged"])
        if staged.is_dir():
            logger.info("moving the files of %s into place, which an earlier run could not", key)
            results.move_into_place(staged, Path(place["output"]), "day", place["days"])


def _accounts(spark: SparkSession, daily_queue: str, sealed: Sequence[batches.Batch], days: Sequence[str]) -> DataFrame:
    source = _reader(spark, daily_queue, _ACCOUNT)
    before = source.option("state", "archive").option("states", "succeeded").option("where", _of(days)).load()
    ids = [str(batch.id) for batch in sealed if batch.job_count]
    if not ids:
        return before.distinct()
    now = source.option("state", "batch").option("batch_id", ",".join(ids)).option("where", "[]").load()
    return before.union(now).distinct()


def _events(spark: SparkSession, read: ArchiveRead, accounts: DataFrame, days: Sequence[str]) -> DataFrame:
    reader = _reader(spark, read.queue, read.columns).option("state", "archive").option("states", ",".join(read.states))
    events = reader.option("where", _of(days)).load()
    return events.join(accounts.hint("broadcast"), ["day", "account"], "left_semi")


def _reader(spark: SparkSession, queue: str, columns: Mapping[str, Mapping[str, str]]) -> DataFrameReader:
    reader = spark.read.format(FORMAT).option("queue", queue)
    reader = reader.option("columns", json.dumps({name: dict(column) for name, column in columns.items()}))
    return reader.schema(ddl({name: column["type"] for name, column in columns.items()}))


def _of(days: Sequence[str]) -> str:
    return json.dumps([{"column": "day", "op": "in", "value": list(days)}])
