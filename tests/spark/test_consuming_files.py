"""Parquet files that a consumption writes: all of them or none, in directories that Spark names."""

import os
import shutil
import threading
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.gate.patience import sized
from tests.spark.consuming_support import (
    DAYS,
    SALES,
    endings,
    expected,
    in_files,
    left_behind,
    prepare,
    sales,
    waiting,
)
from tests.support.few import few

SHARES_A_SCHEMA = True

GOOD = ("day", "account", "1 AS sales", "amount")


def nothing_was_done(queue: SqlQueue, output: Path) -> None:
    assert in_files(output) == endings(queue) == left_behind(queue, output) == []
    assert [(state, attempt) for state, attempt, _ in waiting(queue)] == [("queued", 0)] * 30


def written_by_tasks(staging: Path) -> list[Path]:
    """The directories of tasks that have ended. Those of the others may be renamed while this reads."""
    places = [Path(place) for place, _, _ in os.walk(staging)]
    return [place for place in places if place.match("_temporary/0/task_*")]


@pytest.mark.parametrize("partition_by", few(["day", None], 1))
def test_rows_that_tasks_wrote_where_nobody_sees_them_are_not_published(
    queue: SqlQueue, spark: SparkSession, output: Path, partition_by: str | None
) -> None:
    prepare(queue)
    staging = output / ".staging"

    def take_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # One of two tasks takes away what the other has written: it is gone as from a disk that is not shared.
        if TaskContext.get().partitionId() == 1:  # type: ignore[union-attr]
            while not (written := written_by_tasks(staging)):
                threading.Event().wait(0.01)
            shutil.rmtree(written[0])
        yield from batches

    said = r"the tasks wrote 27 rows, and this process sees \d+ of them: .*the output must be on a disk"
    with (  # noqa: PT012
        pytest.raises(InvalidInput, match=said),
        consume(queue, spark, SALES, key="k") as work,
    ):
        good = work.jobs().where("amount > 0").selectExpr(*GOOD)
        by_two = good.repartition(2).mapInArrow(take_away, good.schema)
        work.write_parquet(by_two, output, partition_by=partition_by)
    nothing_was_done(queue, output)


@pytest.mark.parametrize("partition_by", few(["day", None], 1))
def test_files_go_to_this_machine_where_the_cluster_has_a_file_system_of_its_own(
    queue: SqlQueue, spark: SparkSession, output: Path, partition_by: str | None
) -> None:
    prepare(queue)
    spark.conf.set("fs.defaultFS", "hdfs://nowhere.invalid:1")
    try:
        with consume(queue, spark, SALES, key="k") as work:
            good = work.jobs().where("amount > 0").selectExpr(*GOOD)
            work.write_parquet(good, output, partition_by=partition_by)
    finally:
        spark.conf.unset("fs.defaultFS")
    assert in_files(output) == expected(sales())
    assert endings(queue) == [("succeeded", 30, 30)]


@pytest.mark.parametrize("partition_by", few(["day", None], 1))
def test_no_rows_are_none(queue: SqlQueue, spark: SparkSession, output: Path, partition_by: str | None) -> None:
    prepare(queue)
    values = DAYS if partition_by else ()
    with consume(queue, spark, SALES, key="k") as work:
        none = work.jobs().where("false").selectExpr(*GOOD)
        work.write_parquet(none, output, partition_by=partition_by, values=values)
    assert {found.name for found in output.glob("day=*")} == {f"day={day}" for day in values}
    assert endings(queue) == [("succeeded", 30, 30)]
    assert left_behind(queue, output) == []


@pytest.mark.parametrize("partition_by", few(["day", None], 1))
@pytest.mark.parametrize("by_tasks", few([True, False], 1))
def test_a_second_write_takes_the_place_of_no_first_one(
    queue: SqlQueue, spark: SparkSession, output: Path, partition_by: str | None, by_tasks: bool
) -> None:
    prepare(queue)
    output.mkdir()
    (output.parent / "link").symlink_to(output)
    with (  # noqa: PT012
        pytest.raises(InvalidInput, match=r"(day=2013-01-01|batch=.*) in .*link was written before in this block"),
        consume(queue, spark, SALES, key="k") as work,
    ):
        good = work.jobs().where("amount > 0").selectExpr(*GOOD)
        work.write_parquet(good.where("account = 'ATL'"), output, partition_by=partition_by)
        others = good.where("account <> 'ATL'")
        work.write_parquet(others if by_tasks else others.toArrow(), output.parent / "link", partition_by=partition_by)
    nothing_was_done(queue, output)


def test_writes_to_several_directories_of_one_output_are_published_together(
    queue: SqlQueue, spark: SparkSession, output: Path
) -> None:
    prepare(queue)
    with consume(queue, spark, SALES, key="k") as work:
        good = work.jobs().where("amount > 0").selectExpr(*GOOD)
        for day in DAYS:
            work.write_parquet(good.where(f"day = '{day}'"), output, partition_by="day", values=[day])
    assert in_files(output) == expected(sales())


CODES = sized([1, 10, *map(ord, " \"#%'*+./:=?@[]\\^{}~"), 127], range(1, 128))
TEXTS = [*(f"a{chr(code)}b" for code in CODES), "a/b", "%2F", "größe", "..", "", None]


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    few(
        [
            ("part", "string", TEXTS),
            ("a:part", "string", ["a/b", None]),
            ("part", "bigint", [-1, 0, 12_345_678_901, None]),
            ("part", "boolean", [True, False, None]),
            ("part", "date", [date(2013, 1, 31), date(33, 4, 3), None]),
        ],
        1,
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("by_tasks", few([True, False], 1))
def test_values_name_the_directories_that_rows_are_written_to(
    queue: SqlQueue, spark: SparkSession, output: Path, column: str, kind: str, values: list[Any], by_tasks: bool
) -> None:
    prepare(queue)
    rows = spark.createDataFrame([(one, 1) for one in values], f"`{column}` {kind}, n int").coalesce(1)
    with consume(queue, spark, SALES, key="k") as work:
        work.write_parquet(rows if by_tasks else rows.toArrow(), output / "filled", partition_by=column)
        none = rows.where("false")
        work.write_parquet(none if by_tasks else none.toArrow(), output / "none", partition_by=column, values=values)
    filled = {found.name for found in (output / "filled").glob("*=*")}
    assert filled == {found.name for found in (output / "none").glob("*=*")}
    if by_tasks:
        return
    rows.write.partitionBy(column).parquet(f"file://{output / 'by spark'}")
    assert filled == {found.name for found in (output / "by spark").glob("*=*")}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"values": ["a"]}, r"values is \['a'\].*name the column in partition_by"),
        ({"partition_by": "Account"}, "partition_by is 'Account'; it must be one of the columns day, account"),
        ({"partition_by": "account", "values": "ATL"}, "values is 'ATL'; give a list"),
        ({"partition_by": "amount", "values": [1.5]}, r"1\.5 in 'amount' has no certain name"),
        ({"partition_by": "amount", "values": [Decimal("1.50")]}, "has no certain name"),
    ],
)
@pytest.mark.parametrize("by_tasks", [True, False])
def test_values_that_name_no_directory_are_refused(
    queue: SqlQueue, spark: SparkSession, output: Path, settings: dict[str, Any], said: str, by_tasks: bool
) -> None:
    prepare(queue)
    with (  # noqa: PT012
        pytest.raises(InvalidInput, match=said),
        consume(queue, spark, SALES, key="k") as work,
    ):
        good = work.jobs().where("amount > 0").selectExpr(*GOOD)
        work.write_parquet(good if by_tasks else good.toArrow(), output, **settings)
    nothing_was_done(queue, output)


def test_a_table_in_directories_without_certain_names_is_refused(queue: SqlQueue, output: Path) -> None:
    prepare(queue)
    rows = pa.table({"part": [1.5], "n": [1]})
    with (
        pytest.raises(InvalidInput, match=r"1\.5 in 'part' has no certain name"),
        consume(queue, None, SALES, key="k") as work,
    ):
        work.write_parquet(rows, output, partition_by="part")
    nothing_was_done(queue, output)
