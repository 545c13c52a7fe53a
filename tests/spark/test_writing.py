"""Data frames and streams that become jobs of a queue: what arrives, once, and what is refused."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.spark import staged_jobs
from dagster_sqlqueue.spark.options import FORMAT
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, rows
from tests.support.few import few

SHARES_A_SCHEMA = True

ONE = UUID("0190a0a0-0000-7000-8000-000000000001")


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format(FORMAT).mode("append").options(**{"queue": "work", **options}).save()


def payloads(queue: SqlQueue) -> list[Any]:
    found = [payload for (payload,) in rows(queue, "SELECT payload FROM {s}.job ORDER BY id")]
    return sorted(found, key=lambda payload: json.dumps(payload, sort_keys=True))


def nothing_is_left(queue: SqlQueue) -> None:
    assert rows(queue, "SELECT 1 FROM {s}.staged_job UNION ALL SELECT 1 FROM {s}.staged_attempt") == []


def test_every_column_says_what_it_says_in_an_enqueue(queue: SqlQueue, spark: SparkSession) -> None:
    schema = (
        "id string, priority int, run_at timestamp, ordering_key string, unique_key string, tags array<string>,"
        " max_attempts int, timeout_seconds double, payload string"
    )
    due = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    full = (str(ONE), 9, due, "k", "u", ["a", "b'c"], 7, 1.5, '{"n": 1, "note": "ünï"}')
    write(spark.createDataFrame([full, (*[None] * 8, '{"n": 2}')], schema))
    found = rows(
        queue,
        "SELECT id, priority, run_at, available_at, ordering_key, unique_key, tags, max_attempts, timeout_seconds, payload,"
        " state FROM {s}.job ORDER BY CAST(payload ->> 'n' AS integer)",
    )
    assert found[0] == (ONE, 9, due, due, "k", "u", ["a", "b'c"], 7, 1.5, {"n": 1, "note": "ünï"}, "queued")
    assert found[1][1] == 0
    assert found[1][4:9] == (None, None, [], 3, None)
    assert [json.loads(job.payload) for job in claim(queue)] == [{"n": 2}]
    nothing_is_left(queue)


def test_payloads_of_structs_and_of_columns(queue: SqlQueue, spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT named_struct('n', 1, 'deep', array(map('k', 1.5D)), 'day', DATE '2013-01-02', 'at',"
        " TIMESTAMP '2013-01-02 03:04:05Z', 'price', 1.10BD, 'raw', X'00ff', 'none', CAST(NULL AS int)) AS payload"
    )
    write(frame)
    expected: dict[str, Any] = {
        "n": 1,
        "deep": [{"k": 1.5}],
        "day": "2013-01-02",
        "at": "2013-01-02T03:04:05+00:00",
        "price": "1.10",
        "raw": "AP8=",
        "none": None,
    }
    assert payloads(queue) == [expected]
    write(spark.sql("SELECT 2 AS n, 'x' AS note, 5 AS priority"), payloadColumns="*")
    write(spark.sql("SELECT 3 AS n, 4 AS priority"), payloadColumns="n, priority")
    found = rows(queue, "SELECT payload, priority FROM {s}.job WHERE payload ->> 'n' <> '1' ORDER BY payload ->> 'n'")
    assert found == [({"n": 2, "note": "x"}, 5), ({"n": 3, "priority": 4}, 0)]
    assert Decimal("1.10") == Decimal(expected["price"])


@pytest.mark.prove
def test_many_rows_of_many_partitions_arrive_spread_over_the_buckets(queue: SqlQueue, spark: SparkSession) -> None:
    write(spark.range(3_000).repartition(5).withColumnRenamed("id", "n"), payloadColumns="n")
    assert sorted(payload["n"] for payload in payloads(queue)) == list(range(3_000))
    assert len(rows(queue, "SELECT DISTINCT bucket FROM {s}.job")) == 4
    assert sorted(json.loads(job.payload)["n"] for job in claim(queue, 5_000)) == list(range(3_000))


def test_jobs_that_are_there_are_left_out(queue: SqlQueue, spark: SparkSession, spec: QueueSpec[Work]) -> None:
    schema = "id string, unique_key string, payload string"
    ids = [str(uuid4()) for _ in range(3)]
    write(spark.createDataFrame([(one, None, '{"n": 1}') for one in ids[:2]], schema))
    queue.complete(claim(queue, 1))
    again = [(one, None, '{"n": 1}') for one in ids] + [(None, "k", '{"n": 1}'), (None, "k", '{"n": 1}')]
    write(spark.createDataFrame(again, schema), writeName="again")
    done = staged_jobs.written(queue, "work", "again")
    assert done is not None
    assert (done.jobs, done.duplicates, done.repeats) == (2, 3, 0)
    assert len(payloads(queue)) == 3


def test_a_write_of_one_name_happens_once(queue: SqlQueue, spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS n")
    for _ in range(3):
        write(frame, payloadColumns="n", writeName="day/2013-01-01")
    write(frame, payloadColumns="n", writeName="day/2013-01-02")
    assert payloads(queue) == [{"n": 1}] * 2
    done = staged_jobs.written(queue, "work", "day/2013-01-01")
    assert done is not None
    assert (done.jobs, done.repeats) == (1, 2)
    assert staged_jobs.written(queue, "work", "day/2013-01-03") is None
    # The name is kept for 30 days, and then forgotten.
    rows(queue, "UPDATE {s}.spark_write SET committed_at = now() - interval '29 days' WHERE name LIKE '%%01'")
    rows(queue, "UPDATE {s}.spark_write SET committed_at = now() - interval '31 days' WHERE name LIKE '%%02'")
    assert queue.maintain().expired_removed == 1
    assert staged_jobs.written(queue, "work", "day/2013-01-01") is not None
    assert staged_jobs.written(queue, "work", "day/2013-01-02") is None
    nothing_is_left(queue)


@pytest.mark.parametrize(
    ("payload", "message"),
    few(
        [
            (None, r"row \d+: the payload is NULL"),
            ('"nothing"', r"row \d+: the payload is not a JSON object"),
            ("{", r"row \d+: the payload is not a JSON object"),
            ('{"a": "\\u0000"}', r"row \d+: the payload cannot be stored: a holds a NUL"),
            (json.dumps({"a": "x" * 1_000_001}), r"row \d+: the payload has .* bytes, the limit is"),
            ('{"a": 1e999}', r"row \d+: the payload is not a JSON object: NaN, Infinity"),
        ],
        2,
    ),
)
def test_a_bad_row_fails_the_write_and_nothing_is_enqueued(
    queue: SqlQueue, spark: SparkSession, payload: str | None, message: str
) -> None:
    frame = spark.createDataFrame([('{"n": 1}',), ('{"n": 2}',), (payload,), ('{"n": 3}',)], "payload string")
    # One task: another one could go on staging after the write was given up, until maintenance removes that.
    frame = frame.coalesce(1)
    with pytest.raises(PySparkException, match=rf"partition \d+, {message}.*nothing was enqueued"):
        write(frame)
    assert payloads(queue) == []
    nothing_is_left(queue)


def test_numbers_of_a_json_text_keep_their_digits_and_dates_without_a_year_are_named(
    queue: SqlQueue, spark: SparkSession
) -> None:
    write(spark.sql("""SELECT '{"n": 1234567890.12345678901234}' AS payload"""))
    assert rows(queue, "SELECT payload ->> 'n' FROM {s}.job") == [("1234567890.12345678901234",)]
    late = spark.sql("SELECT date_add(DATE '9999-12-31', n) AS day FROM (SELECT explode(sequence(0, 1)) AS n)")
    with pytest.raises(PySparkException, match=r"partition 0, row 1: column 'day' holds .* within the years 1 to 9999"):
        write(late.coalesce(1), payloadColumns="*")


@pytest.mark.parametrize(
    ("query", "options", "message"),
    few(
        [
            ("SELECT '{}' AS payload, 1 AS n", {}, "column 'n' says nothing about a job.*payloadColumns"),
            ("SELECT '{}' AS payload, 'x' AS id", {}, "partition 0, row 0: id is 'x', which is no UUID"),
            ("SELECT '{}' AS payload, 'mars' AS region", {}, "region of a job has no bucket"),
            ("SELECT 1 AS n", {}, "has no column 'payload'.*payloadColumns"),
            ("SELECT 1 AS payload", {}, "column 'payload' is of the type int; it must be a JSON text"),
            ("SELECT '{}' AS payload, 'high' AS priority", {}, "column 'priority' is of the type string; it must be"),
            (
                "SELECT '{}' AS payload, 'x' AS tags",
                {},
                "column 'tags' is of the type string; it must be array<string>",
            ),
            ("SELECT 1 AS n", {"payloadColumns": "m"}, "payloadColumns' names 'm'; the data frame has n"),
            ("SELECT 1 AS priority", {"payloadColumns": "*"}, "leaves no column for the payload"),
            (
                "SELECT map(1, 2) AS n",
                {"payloadColumns": "*"},
                "column 'n' is of the type map<int,int>, which JSON cannot",
            ),
            ("SELECT '{}' AS payload", {"queue": "nothing"}, "nothing"),
            ("SELECT '{}' AS payload", {"color": "red"}, "'color' is not known"),
            ("SELECT '{}' AS payload", {"writeName": "stream/x"}, "'writeName' is 'stream/x'"),
            ("SELECT '{}' AS payload, 10 AS priority", {}, "partition 0, row 0: priority is 10; it must be 0 to 9"),
        ],
        2,
    ),
)
def test_what_cannot_be_written(
    queue: SqlQueue, spark: SparkSession, query: str, options: Mapping[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(query), **options)
    assert payloads(queue) == []
    nothing_is_left(queue)


def test_a_queue_cannot_be_overwritten(queue: SqlQueue, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"a queue cannot be overwritten.*append"):
        spark.sql("SELECT '{}' AS payload").write.format(FORMAT).mode("overwrite").option("queue", "work").save()


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> tuple[Path, DataFrame]:
    """A directory and the stream of the JSON files in it."""
    directory = tmp_path / "landing"
    directory.mkdir()
    return directory, spark.readStream.schema("n int").json(str(directory))


def test_a_stream_writes_each_batch_once_also_when_spark_did_not_note_it(
    queue: SqlQueue, landing: tuple[Path, DataFrame], tmp_path: Path
) -> None:
    directory, stream = landing
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        writer = stream.withColumn("priority", sf.lit(3)).writeStream.format(FORMAT)
        writer = writer.options(queue="work", payloadColumns="n", checkpointLocation=str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)

    (directory / "0.json").write_text('{"n": 0}\n{"n": 1}\n')
    run()
    (directory / "1.json").write_text('{"n": 2}\n')
    run()
    assert [payload["n"] for payload in payloads(queue)] == [0, 1, 2]
    # As a driver leaves it that is killed between the commit of batch 1 and Spark's note of it.
    for noted in (checkpoint / "commits").glob("*1*"):
        noted.unlink()
    run()
    assert [payload["n"] for payload in payloads(queue)] == [0, 1, 2]
    (directory / "2.json").write_text('{"n": 3}\n')
    run()
    assert [payload["n"] for payload in payloads(queue)] == [0, 1, 2, 3]
    ((name, batch, jobs, repeats),) = rows(queue, "SELECT name, batch, jobs, repeats FROM {s}.spark_write")
    assert name.startswith(staged_jobs.STREAM)
    assert (batch, jobs, repeats) == (2, 4, 1)
    nothing_is_left(queue)
