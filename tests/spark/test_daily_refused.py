"""Daily results that are refused: nothing of them is published, and the jobs are due again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable, UnknownQueue
from dagster_sqlqueue.spark import daily
from tests.spark.daily_support import (
    DAYS,
    broken,
    compute,
    consume,
    endings,
    expected,
    in_files,
    in_table,
    nothing_was_done,
    once,
    prepare,
    waiting,
)
from tests.support import rows
from tests.support.few import few

SHARES_A_SCHEMA = True


def broken_in_spark(events: DataFrame) -> DataFrame:
    return compute(events.withColumn("size", sf.expr("raise_error('the café is closed')").cast("bigint")))


@pytest.mark.parametrize("bad", few([broken, broken_in_spark], 1))
def test_a_computation_that_raises_gives_the_jobs_back_at_once(
    queue: SqlQueue, spark: SparkSession, output: Path, bad: Callable[[DataFrame], DataFrame]
) -> None:
    prepare(queue)
    with pytest.raises(Exception, match="the café is closed"):
        consume(queue, spark, output, compute=bad)
    nothing_was_done(queue, output)
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    assert all("the café is closed" in str(error) for *_, error in waiting(queue))
    consume(queue, spark, output)
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()


@pytest.mark.parametrize(
    ("bad", "said"),
    few(
        [
            (lambda events: compute(events).withColumn("day", sf.expr("day + 100")), "that day was not asked for"),
            (lambda events: events.count(), "returned a int; it must return a Spark DataFrame"),
            (lambda events: compute(events).drop("account"), "no column 'account'; it has day, events, size"),
            (lambda events: compute(events).withColumn("list", sf.array("size")), "column 'list' .* has the type list"),
            (lambda events: compute(events).withColumn("day", sf.col("day").cast("string")), "it must be date"),
            (
                lambda events: compute(events).withColumn("account", sf.lit("all")),
                "one row with day 2013-01-01, account all",
            ),
            (lambda events: compute(events).withColumn("account", sf.lit(None).cast("string")), "account None; neither"),
            (lambda events: compute(events).select("*", sf.lit(1).alias("size")), "more than one column 'size'"),
        ],
        1,
    ),
)  # fmt: skip
def test_a_result_that_cannot_be_published_is_refused_and_the_jobs_are_due_again(
    queue: SqlQueue, spark: SparkSession, output: Path, bad: Any, said: str
) -> None:
    prepare(queue, DAYS[:1])
    with pytest.raises(InvalidInput, match=said):
        consume(queue, spark, output, DAYS[:1], compute=bad)
    nothing_was_done(queue, output)
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}


@pytest.mark.parametrize(
    ("definition", "said"),
    few(
        [
            ("(day date, account text, events bigint, size bigint CHECK (size < 0))", "violates check constraint"),
            (
                "(day date, account text)",
                "table .* does not take the results: it has no column 'events'; it has day, account",
            ),
            (
                "(day date, account text, events bigint, size bool)",
                "take the results: its column 'size' is boolean, .* is bigint",
            ),
        ],
        1,
    ),
)
def test_a_table_of_another_shape_is_named(
    queue: SqlQueue, spark: SparkSession, output: Path, definition: str, said: str
) -> None:
    prepare(queue, DAYS[:1])
    rows(queue, f"CREATE TABLE {{s}}.results {definition}")
    with pytest.raises(InvalidInput, match=said):
        consume(queue, spark, output, DAYS[:1])
    assert rows(queue, "SELECT FROM {s}.results") == []
    assert endings(queue) == []
    assert list(output.glob(".staging/*")) == []


def test_what_is_wrong_from_the_start_seals_nothing(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue, DAYS[:1])
    output.write_text("a file")
    with pytest.raises(OutputNotWritable, match=r"cannot be written to .*the output"):
        consume(queue, spark, output, DAYS[:1])
    output.unlink()
    for changes, error, said in (
        ({"table": "a.b.c"}, InvalidInput, "table 'a.b.c' is not usable"),
        ({"table": "x" * 64}, InvalidInput, "is not usable"),
        ({"days": []}, InvalidInput, "days is empty"),
        ({"days": ["01/31/2013"]}, InvalidInput, "write days as 2013-01-31"),
        ({"table": f"{queue.database.schema}.job"}, InvalidInput, "does not take the results: it has no column 'day'"),
        ({"daily_queue": "nope"}, UnknownQueue, "there is no queue 'nope'"),
        ({"read": daily.ArchiveRead("gone", {})}, UnknownQueue, "there is no queue 'gone'"),
    ):
        with pytest.raises(error, match=said):
            consume(queue, spark, output, **{"days": DAYS[:1], **changes})  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match="what is made of 'daily' has nowhere to go: give a table, an output, or both"
    ):
        consume(queue, spark, None, table=None)
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
