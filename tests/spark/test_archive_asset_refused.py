"""Assets of closed days of the archive: the days, results and settings that are refused."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.display import moment
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset
from dagster_sqlqueue.spark.daily import ArchiveRead
from tests.spark.archive_support import DAYS, PARTITIONS, READS, ZONE, Run, compute, expected, fill, reason
from tests.spark.support import NOON, Done, archive
from tests.support import rows

SHARES_A_SCHEMA = True


def test_the_day_can_be_a_field_and_is_closed_when_no_job_of_it_is_on_the_queue(
    queue: SqlQueue, session: SparkSession, run: Run, spec: QueueSpec[Any]
) -> None:
    reads = ArchiveRead("work", columns={**READS.columns, "day": {"path": "payload.day", "type": "date"}})
    asset = run.asset(reads=reads)
    archive(
        queue,
        [Done({"account": "ATL", "size": 3, "day": DAYS[0]}), Done({"account": "ATL", "size": 4, "day": DAYS[1]})],
    )
    queue.enqueue(spec, {"n": 1})
    rows(queue, "UPDATE {s}.job SET payload = payload || %s", Jsonb({"day": DAYS[1]}))
    assert "2013-03-10 is not closed: 1 jobs of it are on the queue 'work'" in reason(
        run(DAYS[0], DAYS[1], asset=asset)
    )
    assert run(DAYS[0], asset=asset).success
    assert run.in_table() == run.in_files() == [(date(2013, 3, 9), "ATL", 1, 3)]


def test_a_day_that_is_not_over_is_refused(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    today = datetime.now(ZoneInfo(ZONE)).date()
    tomorrow = (today + timedelta(days=1)).isoformat()
    assert f"{tomorrow} lies in the future" in reason(run(tomorrow, spark=False))
    assert f"{today} is not over: it ends at " in reason(run(today.isoformat(), spark=False))
    assert rows(queue, "SELECT to_regclass(%s)", run.table) == [(None,)]


UNLESS = (
    " The results are left as they are. If the jobs that are there are the right ones, because others were deleted or"
    " redriven, or the asset reads fewer of them, launch the run with recompute: it computes the day from them"
)


def keep(queue: SqlQueue, days: int) -> None:
    rows(queue, "UPDATE {s}.queue SET retention_days = %s WHERE name = 'work'", days)


def since(queue: SqlQueue, day: date) -> int:
    """The retention that removes what finished before a day, and nothing else."""
    today: date = queue.database.run("clock", {})[0][0].astimezone(UTC).date()
    return (today - day).days


def test_days_of_which_the_jobs_were_removed_are_left_as_they_are(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    fill(queue)
    keep(queue, 0)
    assert run(DAYS[0], DAYS[1]).success
    # Of the first day, which ends at 05:00 in UTC, one job is left.
    kept = since(queue, date(2013, 3, 10))
    keep(queue, kept)
    assert queue.trim("work").rows_deleted == {"work": 2}
    before = (
        "the results of 2013-03-09 were computed from 2 jobs of queue 'work', the first of which finished at 2013-03-09"
        " 05:00:00Z; now the archive holds 1 of that day, the first of which finished at 2013-03-10 04:59:00Z. Retention may"
        " have removed others: "
    )
    keeps = f"the queue keeps ended jobs for {kept} days."
    assert reason(run(DAYS[0], DAYS[1], spark=False)) == before + keeps + UNLESS
    # However long jobs are kept from now on, those are gone.
    begins = "the archive of the queue begins at 2013-03-10 04:59:00Z."
    for longer in (0, kept + 30):
        keep(queue, longer)
        assert reason(run(DAYS[0], DAYS[1], spark=False)) == before + begins + UNLESS
    assert run.in_table() == run.in_files() == expected(*DAYS[:2])
    assert run(DAYS[1], spark=False).success
    assert run(DAYS[0], recompute=True).success
    assert run.in_table() == run.in_files() == expected(*DAYS[:2])[1:]
    assert run(DAYS[0], spark=False).success


def test_a_day_whose_jobs_are_all_gone_is_left_as_it_is(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    fill(queue)
    keep(queue, 0)
    assert run(DAYS[0]).success
    keep(queue, 30)
    queue.trim("work")
    keep(queue, 0)
    assert reason(run(DAYS[0], spark=False)) == (
        "the results of 2013-03-09 were computed from 2 jobs of queue 'work', the first of which finished at 2013-03-09"
        " 05:00:00Z; now the archive holds none of that day. Retention may have removed others: the archive of the queue is"
        " empty." + UNLESS
    )
    assert run.in_table() == run.in_files() == expected(DAYS[0])


def test_a_day_of_which_somebody_deleted_jobs_is_computed_again(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    fill(queue)
    keep(queue, 0)
    assert run(DAYS[0], DAYS[1]).success
    # Retention removes the oldest jobs first, and older ones are there.
    rows(queue, "DELETE FROM {s}.job_archive WHERE payload->>'size' IN ('2', '32')")
    assert run(DAYS[0], DAYS[1]).success
    (_, boston), (atlanta, _) = expected(DAYS[0]), expected(DAYS[1])
    assert run.in_table() == run.in_files() == [boston, atlanta]


def test_nor_are_days_of_a_field_replaced_by_what_retention_left_and_what_finished_since(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    asset = run.asset(
        reads=ArchiveRead("work", columns={**READS.columns, "day": {"path": "payload.day", "type": "date"}})
    )
    late = datetime.now(UTC) - timedelta(days=3)
    first, second, third = ({"account": "ATL", "size": size, "day": DAYS[0]} for size in (1, 2, 4))
    keep(queue, 30)
    archive(queue, [Done(first), Done(second, at=late), Done({**first, "day": DAYS[1]}, at=late)])
    assert run(DAYS[0], DAYS[1], asset=asset).success
    assert run.in_table() == [(date(2013, 3, 9), "ATL", 2, 3), (date(2013, 3, 10), "ATL", 1, 1)]
    # As many as before: by their number alone it would go unnoticed.
    assert queue.trim("work").rows_deleted == {"work": 1}
    archive(queue, [Done(third, at=late + timedelta(days=1))])
    assert reason(run(DAYS[0], asset=asset, spark=False)) == (
        "the results of 2013-03-09 were computed from 2 jobs of queue 'work', the first of which finished at"
        f" {moment(NOON)}; now the archive holds 2 of that day, the first of which finished at {moment(late)}. Retention may"
        " have removed others: the queue keeps ended jobs for 30 days." + UNLESS
    )
    # Retention has removed nothing of this day yet: somebody else took the job away.
    rows(queue, "DELETE FROM {s}.job_archive WHERE payload->>'day' = %s", DAYS[1])
    assert run(DAYS[1], asset=asset).success
    assert run.in_table() == [(date(2013, 3, 9), "ATL", 2, 3)]
    assert run(DAYS[0], asset=asset, recompute=True).success
    assert run.in_table() == run.in_files() == [(date(2013, 3, 9), "ATL", 2, 6)]


def test_results_that_do_not_fit_leave_everything_as_it_was(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    fill(queue)
    assert run(DAYS[0]).success
    wrong = run.asset(lambda jobs: compute(jobs).withColumn("day", sf.date_add("day", 1)), code_version="2")
    assert "that day was not asked for" in reason(run(DAYS[0], asset=wrong))
    assert run.in_table() == run.in_files() == expected(DAYS[0])
    assert not list(run.output.glob(".staging/*"))
    assert "no column 'account'" in reason(run(DAYS[1], asset=run.asset(lambda jobs: jobs.groupBy("day").count())))
    assert "it must return a Spark DataFrame" in reason(run(DAYS[1], asset=run.asset(lambda jobs: None)))  # type: ignore[arg-type,return-value]
    blocked = run.output.parent / "a file"
    blocked.touch()
    assert "results cannot be written to" in reason(run(DAYS[1], asset=run.asset(output=lambda: blocked), spark=False))


def days(start: str = DAYS[0], **settings: Any) -> dg.DailyPartitionsDefinition:
    return dg.DailyPartitionsDefinition(start_date=start, timezone=ZONE, **settings)


def test_a_table_that_refuses_the_rows_in_the_end_is_named_and_has_those_of_before(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    fill(queue)
    assert run(DAYS[1]).success
    rows(queue, "CREATE TABLE {s}.accounts_of (account text PRIMARY KEY)")
    rows(queue, "INSERT INTO {s}.accounts_of SELECT account FROM {s}.sizes")
    foreign = "FOREIGN KEY (account) REFERENCES {s}.accounts_of DEFERRABLE INITIALLY DEFERRED"
    rows(queue, f"ALTER TABLE {{s}}.sizes ADD {foreign}")
    assert f"the table '{run.table}' does not take the results: insert or update on table" in reason(run(DAYS[2]))
    assert run.in_table() == run.in_files() == expected(DAYS[1])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": None, "output": None}, "the archive of 'work' has nowhere to go: give a table, an output, or both"),
        ({"table": "a.b.c"}, "table 'a.b.c' is not usable"),
        ({"key": ("account",)}, r"key is \['account'\]; its first column must be 'day'"),
        (
            {"partitions_def": dg.WeeklyPartitionsDefinition("2013-03-03")},
            "is a WeeklyPartitionsDefinition, .* is a day",
        ),
        ({"partitions_def": days(hour_offset=6)}, "partitions_def has hour_offset=6, and a day .* begins at midnight"),
        ({"partitions_def": days(minute_offset=1)}, "partitions_def has minute_offset=1, and .*: leave it out"),
        ({"partitions_def": days("20130309", fmt="%Y%m%d")}, "has fmt='%Y%m%d', and the days .* are ISO dates"),
    ],
)
def test_settings_that_are_not_usable(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    given = {"partitions_def": PARTITIONS, "table": "t", "output": lambda: tmp_path, **settings}
    with pytest.raises(InvalidInput, match=said):
        sqlqueue_archive_asset(READS, **given)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"path": "size", "type": "bigint"}, "column 'size' is .*; write path as payload.field or result.field"),
        ({"path": "payload.size", "type": "number"}, "column 'size' is .* type as one of"),
    ],
)
def test_columns_that_are_not_usable(column: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ArchiveRead("work", {"size": column})
