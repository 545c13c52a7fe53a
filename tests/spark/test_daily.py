"""Daily jobs consumed with Spark, compared with the same numbers computed in plain Python."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import BatchLost, InvalidInput
from dagster_sqlqueue.spark import batches, sinks, stage_table
from dagster_sqlqueue.spark.batches import days as day_batches
from dagster_sqlqueue.spark.batches import keeper
from dagster_sqlqueue.spark.consumption import Consumption
from tests.gate.patience import PATIENCE
from tests.spark.consuming_support import NO_HEARTBEAT
from tests.spark.daily_support import (
    DAYS,
    add,
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
    wrong_in,
)
from tests.support import make_due, rows

SHARES_A_SCHEMA = True

PROJECT = Path(__file__).resolve().parents[2]


def test_days_are_computed_published_and_idempotent(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    done, computed = consume(queue, spark, output, DAYS[::-1])
    assert [tuple(row.values()) for row in computed.to_pylist()] == expected(DAYS)
    assert [(day.day, day.jobs, day.rows) for day in done] == [(DAYS[0], 3, 3), (DAYS[1], 3, 2), (DAYS[2], 3, 3)]
    for _ in range(2):
        assert in_table(queue) == expected(DAYS)
        assert in_files(output) == expected(DAYS)
        assert endings(queue) == once()
        assert waiting(queue) == []
        again, _ = consume(queue, spark, output)
        assert [(day.jobs, day.rows) for day in again] == [(0, 3), (0, 2), (0, 3)]
    assert list(output.glob(".staging/*")) == []
    assert spark.read.parquet(str(output)).where("account = 'ATL'").count() == 3


def test_jobs_of_other_accounts_extend_the_day(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue, DAYS[:1], ["ATL"])
    consume(queue, spark, output, DAYS[:1])
    assert in_table(queue) == expected(DAYS[:1], ["ATL"])
    add(queue, DAYS[:1], ["BOS"])
    done, _ = consume(queue, spark, output, DAYS[:1])
    assert (done[0].jobs, done[0].rows) == (1, 2)
    assert in_table(queue) == in_files(output) == expected(DAYS[:1], ["ATL", "BOS"])


def test_days_between_those_asked_for_are_left_alone(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    consume(queue, spark, output, DAYS[1:2])
    consume(queue, spark, output, [DAYS[2], DAYS[0], DAYS[2]])
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()


@pytest.mark.prove
def test_only_a_table(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    for jobs in (3, 0):
        done, _ = consume(queue, spark, None)
        assert [(day.jobs, day.rows) for day in done] == [(jobs, 3), (jobs, 2), (jobs, 3)]
        assert in_table(queue) == expected(DAYS)
        assert endings(queue) == once()
    assert not output.exists()


@pytest.mark.prove
def test_only_files(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    for jobs in (3, 0):
        done, computed = consume(queue, spark, output, table=None)
        assert [(day.jobs, day.rows) for day in done] == [(jobs, 3), (jobs, 2), (jobs, 3)]
        assert [tuple(row.values()) for row in computed.to_pylist()] == in_files(output) == expected(DAYS)
        assert endings(queue) == once()
    assert in_table(queue) == list(output.glob(".staging/*")) == []


def test_more_rows_than_the_driver_should_hold_go_to_files_only(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)
    monkeypatch.setattr(sinks, "MAX_ROWS", 3)
    done, computed = consume(queue, spark, output, table=None)
    assert [(day.jobs, day.rows) for day in done] == [(3, 3), (3, 2), (3, 3)]
    assert (computed.num_rows, computed.column_names) == (0, ["day", "account", "events", "size"])
    assert in_files(output) == expected(DAYS)
    assert list(output.glob(".staging/*")) == []


@pytest.mark.prove
def test_rows_that_tasks_wrote_where_nobody_sees_them_are_not_published(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)
    monkeypatch.setattr(sinks, "MAX_ROWS", 3)
    staging = output / ".staging"

    def take_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # One of two tasks takes away what the other has written: it is gone as from a disk that is not shared.
        if TaskContext.get().partitionId() == 1 and any(staging.glob("*")):  # type: ignore[union-attr]
            while not (written := list(staging.glob("*/_temporary/0/task_*"))):
                threading.Event().wait(0.01)
            shutil.rmtree(written[0])
        yield from batches

    def by_two(events: DataFrame) -> DataFrame:
        frame = compute(events)
        return frame.repartition(2).mapInArrow(take_away, frame.schema)

    said = r"the tasks wrote 8 rows, and this process sees \d of them: .*the output must be on a disk"
    with pytest.raises(InvalidInput, match=said):
        consume(queue, spark, output, table=None, compute=by_two)
    nothing_was_done(queue, output)
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}


def test_a_day_without_rows_is_emptied(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue, DAYS[:1])
    consume(queue, spark, output, DAYS[:1])
    consume(queue, spark, output, DAYS[:1], compute=lambda events: compute(events).where("false"))
    assert in_table(queue) == in_files(output) == []
    assert spark.read.parquet(str(output)).count() == 0


def test_every_type_that_has_a_counterpart_is_written(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue, DAYS[:1], ["ATL"])
    moment = "timestamp'2013-01-01 12:00:00' AS t"
    values = f"1.5D AS d, 12.30BD AS n, true AS b, {moment}, 'x\\ty\\n' AS s, CAST(NULL AS int) AS nil"
    consume(
        queue,
        spark,
        output,
        DAYS[:1],
        compute=lambda events: compute(events).selectExpr("day", "account", *values.split(", ")),
    )
    found = rows(queue, "SELECT d, n, b, t, s, nil FROM {s}.results")[0]
    assert (found[0], str(found[1]), found[2], found[3].isoformat(), *found[4:]) == (
        1.5, "12.30", True, "2013-01-01T12:00:00+00:00", "x\ty\n", None
    )  # fmt: skip


def kept_frames(spark: SparkSession) -> int:
    """How many frames the tasks keep."""
    return int(spark.sparkContext._jsc.sc().getPersistentRDDs().size())  # type: ignore[union-attr]


@pytest.mark.prove
def test_a_day_with_more_rows_than_the_driver_should_hold_is_published_as_a_whole(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tasks, which stage them; a driver that is killed before it has published leaves the rows that were there."""
    prepare(queue, DAYS[:1])
    day = date.fromisoformat(DAYS[0])
    before = kept_frames(spark)
    monkeypatch.setattr(sinks, "MAX_ROWS", 2)
    for bad, said in (
        (
            lambda events: compute(events).withColumn("account", sf.lit("all")),
            "3 rows of 2013-01-01, and 1 of day, account",
        ),
        (lambda events: compute(events).withColumn("day", sf.date_add("day", 7)), "3 of 3 rows .* are of another day"),
        (
            lambda events: compute(events).withColumn("account", sf.expr("nullif(account, 'ATL')")),
            "1 of 3 rows .* or lack",
        ),
    ):
        with pytest.raises(InvalidInput, match=said):
            consume(queue, spark, output, DAYS[:1], compute=bad)
    nothing_was_done(queue, output)
    rows(queue, "CREATE TABLE {s}.results (day date, account text, events bigint, size bigint)")
    rows(queue, "INSERT INTO {s}.results VALUES (%s, 'old', 1, 1), (%s, 'old', 1, 1)", day, date(2012, 12, 31))

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # What a killed driver does not do any more.
        patched.setattr(stage_table.Staged, "move", killed)
        patched.setattr(Consumption, "drop", lambda self: None)
        patched.setattr(keeper, "abandon", lambda *arguments: 0)
        with pytest.raises(KeyboardInterrupt):
            consume(queue, spark, output, DAYS[:1])
    assert [account for _, account, *_ in in_table(queue)] == ["old", "old"]
    stages = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'sqlqueue_stage%%'"
    assert rows(queue, stages, queue.database.schema) == [(1,)]
    assert endings(queue) == in_files(output) == []
    make_due(queue)
    done, computed = consume(queue, spark, output, DAYS[:1])
    assert [(one.jobs, one.rows) for one in done] == [(3, 3)]
    assert computed.num_rows == 0
    assert in_table(queue) == [(date(2012, 12, 31), "old", 1, 1), *expected(DAYS[:1])]
    assert in_files(output) == expected(DAYS[:1])
    assert endings(queue) == once(DAYS[:1])
    assert rows(queue, stages, queue.database.schema) == [(0,)]
    assert kept_frames(spark) == before


def test_a_hostile_table_name_is_a_name(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue, DAYS[:1])
    name = 'x"; DROP TABLE job; --'
    consume(queue, spark, output, DAYS[:1], table=f"{queue.database.schema}.{name}")
    assert rows(queue, 'SELECT count(*) FROM {s}."x""; DROP TABLE job; --"') == [(3,)]


def test_a_run_that_was_overtaken_writes_nothing(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)

    def overtaken(events: DataFrame) -> DataFrame:
        make_due(queue)
        batches.seal(queue, "daily", f"test/{DAYS[1]}", owner="another", filter={"day": DAYS[1]})
        return compute(events)

    with pytest.raises(BatchLost, match=f"batch 'test/{DAYS[1]}'"):
        consume(queue, spark, output, compute=overtaken, lease_seconds=NO_HEARTBEAT)
    nothing_was_done(queue, output)
    states = rows(
        queue, "SELECT payload->>'day', state, count(*) FROM {s}.job WHERE queue = 'daily' GROUP BY 1, 2 ORDER BY 1"
    )
    assert states == [(DAYS[0], "queued", 3), (DAYS[1], "running", 3), (DAYS[2], "queued", 3)]


def test_a_day_that_somebody_else_holds_gives_the_others_back(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)
    opened = day_batches.open_batch
    monkeypatch.setattr(day_batches, "open_batch", lambda queue, wanted, patience: opened(queue, wanted, 0.0))
    held = batches.seal(queue, "daily", f"test/{DAYS[1]}", owner="somebody", filter={"day": DAYS[1]}, lease_seconds=300)
    with pytest.raises(BatchLost, match="is held by 'somebody'"):
        consume(queue, spark, output)
    nothing_was_done(queue, output)
    assert [state for state, _, _ in waiting(queue)].count("running") == held.job_count == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark import daily, day_results, sinks
from tests.spark.daily_support import DAYS, as_arrow, consume, expected

url, schema, output, point, form = sys.argv[1:]
def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)
def then_die(function):
    def both(*arguments, **keywords):
        function(*arguments, **keywords)
        die()
    return both
# What is to be published is handed in, so that this process needs no Spark.
daily._accounts = daily._events = lambda *arguments: None
daily.computed = lambda compute, jobs, key, dates, **options: day_results.of_rows(as_arrow(expected(DAYS)), dates)
if point == "sealed":
    daily.computed = die
elif point == "staged":
    sinks.stage = then_die(sinks.stage)
elif point == "written":
    sinks.replace_days = then_die(sinks.replace_days)
elif point == "published":
    sinks.move_into_place = die
elif point == "moving":
    rename = Path.rename
    def one(path, target):
        rename(path, target)
        if path.name == f"day={DAYS[1]}" and path.parent == Path(output):
            die()
    Path.rename = one
with SqlQueue(url, schema=schema) as queue:
    only = {"table": None} if form == "files" else {}
    consume(queue, None, Path(output), owner="killed", lease_seconds=300, **only)
"""


@pytest.mark.parametrize(
    ("point", "form"),
    [
        pytest.param("staged", "both", marks=pytest.mark.prove),
        pytest.param("moving", "files", marks=pytest.mark.prove),
        *(
            pytest.param(point, "both", marks=pytest.mark.prove)
            for point in ("sealed", "written", "published", "moving")
        ),
        *(pytest.param(point, "files", marks=pytest.mark.prove) for point in ("staged", "published")),
    ],
)
def test_a_run_that_is_killed_is_finished_by_the_next(
    queue: SqlQueue, spark: SparkSession, output: Path, url: str, point: str, form: str
) -> None:
    prepare(queue)
    for day in DAYS:  # an earlier result, which has to go
        sinks.stage(
            pa.table({"day": [date.fromisoformat(day)], "account": ["old"], "events": [0], "size": [0]}),
            output / "old",
            "day",
            [date.fromisoformat(day)],
        )
        (output / "old" / f"day={day}").rename(output / f"day={day}")
    (output / "old").rmdir()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, url, queue.database.schema, str(output), point, form],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert killed.returncode == -9, killed.stderr
    published = point in ("published", "moving")
    assert endings(queue) == (once() if published else [])
    assert in_table(queue) == (expected(DAYS) if published and form == "both" else [])
    assert in_files(output) != expected(DAYS)
    make_due(queue)
    done, _ = consume(queue, spark, output, **({"table": None} if form == "files" else {}))
    assert [day.jobs for day in done] == ([0] * 3 if published else [3] * 3)
    assert wrong_in(queue, output, in_a_table=form == "both") == []
    assert {path.name for path in output.iterdir()} == {".staging", *(f"day={day}" for day in DAYS)}


def test_the_files_of_a_killed_run_are_moved_even_when_the_next_one_fails(
    queue: SqlQueue, spark: SparkSession, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sinks, "move_into_place", killed)
        with pytest.raises(KeyboardInterrupt):
            consume(queue, spark, output)
    assert in_table(queue) == expected(DAYS)
    with pytest.raises(RuntimeError):
        consume(queue, spark, output, DAYS[2:], compute=broken)
    assert in_files(output) == expected(DAYS)
