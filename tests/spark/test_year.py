"""Flights from New York, in full all of 2013's: every day and carrier as pandas has it from the source file."""

import json
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark.daily import ArchiveRead, consume_days
from definitions.flights import source_file
from tests.gate.patience import PATIENCE, sized
from tests.gate.plugin import note_figures
from tests.support import rows, value

FLIGHTS, DAYS = sized((2_699, 3), (336_776, 365))
DAILY = QueueSpec("daily", DailyAccount, bucket_count=2, lease_seconds=300, max_attempts=5)
READS = ArchiveRead(
    "work",
    columns={
        "day": {"path": "payload.day", "type": "date"},
        "account": {"path": "payload.carrier", "type": "string"},
        "dep_time": {"path": "payload.dep_time", "type": "int"},
        "arr_delay": {"path": "payload.arr_delay", "type": "double"},
        "distance": {"path": "payload.distance", "type": "bigint"},
    },
)


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    columns = ["year", "month", "day", "carrier", "dep_time", "arr_delay", "distance"]
    found = pd.read_csv(source_file("flights"), usecols=columns, dtype={"dep_time": "Int64"})
    found["day"] = pd.to_datetime(found[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    found = found.drop(columns=["year", "month"])
    return found[found["day"].isin(sorted(set(found["day"]))[:DAYS])]


@pytest.fixture
def archived(queue: SqlQueue, flights: pd.DataFrame) -> SqlQueue:
    """The flights as finished jobs, each a while after its day."""
    names = ("day", "carrier", "dep_time", "arr_delay", "distance")
    copy = "COPY flight (n, payload) FROM STDIN"
    insert = f"""
        INSERT INTO "{queue.database.schema}".job_archive (id, queue, bucket, priority, state, lease_no, attempt,
            max_attempts, run_at, created_at, started_at, finished_at, region, tags, payload)
        SELECT gen_random_uuid(), 'work', n % 4, 5, 'succeeded', 1, 1, 3, at, at, at, at + n * interval '1 millisecond',
            'local', '{{}}', payload
        FROM (SELECT n, CAST(payload ->> 'day' AS timestamptz) + interval '1 day' AS at, payload FROM flight) AS f
    """
    with queue.database.connection() as connection:
        connection.execute("CREATE TEMPORARY TABLE flight (n integer, payload jsonb)")
        with connection.cursor() as cursor, cursor.copy(copy) as into:
            columns = [flights[name].astype(object).where(flights[name].notna(), None) for name in names]
            for n, row in enumerate(zip(*columns, strict=True)):
                into.write_row((n, json.dumps(dict(zip(names, row, strict=True)))))
        connection.execute(insert.encode())
        connection.execute("DROP TABLE flight")
        connection.commit()
    queue.create_queue(DAILY)
    jobs = [
        DailyAccount(account=account, day=day, zone="America/New_York")
        for day in sorted(set(flights["day"]))
        for account in sorted(set(flights["carrier"]))
    ]
    queue.enqueue_many(DAILY, map(NewJob, jobs))
    return queue


def compute(events: DataFrame) -> DataFrame:
    return events.groupBy("day", "account").agg(
        sf.count("*").alias("flights"),
        sf.count("dep_time").alias("departed"),
        sf.sum("arr_delay").alias("arr_delay"),
        sf.sum("distance").alias("distance"),
    )


@pytest.mark.timeout(10 * PATIENCE)
def test_every_day_and_carrier_is_as_in_the_source(
    archived: SqlQueue, spark: SparkSession, flights: pd.DataFrame, output: Path
) -> None:
    days = sorted(set(flights["day"]))
    done, _ = consume_days(
        archived,
        spark,
        compute,
        name="year",
        daily_queue="daily",
        read=READS,
        days=days,
        owner="test",
        table=f"{archived.database.schema}.year",
        output=output,
    )
    groups = flights.groupby(["day", "carrier"])
    expected = pd.DataFrame(
        {
            "flights": groups.size(),
            "departed": groups["dep_time"].count(),
            "arr_delay": groups["arr_delay"].sum(min_count=1),
            "distance": groups["distance"].sum(),
        }
    )
    names = ["day", "account", *expected.columns]
    in_table = rows(archived, f"SELECT CAST(day AS text), {', '.join(names[1:])} FROM {{s}}.year")
    in_files = spark.read.parquet(str(output)).selectExpr("CAST(day AS string) AS day", *names[1:]).collect()
    for found in in_table, in_files:
        frame = pd.DataFrame([tuple(row) for row in found], columns=names).set_index(["day", "account"]).sort_index()
        pd.testing.assert_frame_equal(frame, expected, check_names=False, check_dtype=False, check_exact=True)
    assert int(expected["flights"].sum()) == FLIGHTS
    assert len(days) == DAYS
    jobs = len(days) * flights["carrier"].nunique()
    assert sum(day.jobs for day in done) == jobs
    assert value(archived, "SELECT count(*) FROM {s}.job_archive WHERE queue = 'daily'") == jobs
    assert value(archived, "SELECT count(*) FROM {s}.job WHERE queue = 'daily'") == 0
    note_figures(flights=FLIGHTS, days=len(days), jobs=jobs)
