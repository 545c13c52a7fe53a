"""Assets of closed days of the archive: what is read, what is replaced, what is refused."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource, queue_asset_key
from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.resource import SparkResource
from tests.gate.patience import PATIENCE
from tests.spark.support import Done, archive
from tests.support import rows, until

SHARES_A_SCHEMA = True

ZONE = "America/New_York"
PARTITIONS = dg.DailyPartitionsDefinition(start_date="2013-03-09", end_offset=3, timezone=ZONE)
READS = ArchiveRead(
    "work",
    columns={
        "account": {"path": "payload.account", "type": "string"},
        "size": {"path": "payload.size", "type": "bigint"},
    },
    states=("succeeded", "failed", "cancelled"),
)
DAYS = ("2013-03-09", "2013-03-10", "2013-03-11")


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """A moment of March 2013 by New York's clocks, which were moved on at 2 o'clock of the 10th."""
    return datetime(2013, 3, day, hour, minute, tzinfo=ZoneInfo(ZONE)).astimezone(UTC)


JOBS = [
    (at(8, 23, 59), "ATL", 1, "succeeded"),
    (at(9, 0), "ATL", 2, "succeeded"),
    (at(9, 23, 59), "BOS", 4, "failed"),
    (at(10, 0), "ATL", 8, "succeeded"),
    (at(10, 3), "ATL", 16, "succeeded"),
    (at(10, 23, 59), "O'Hare", 32, "cancelled"),
    (at(11, 0), "BOS", 64, "succeeded"),
]
# In UTC these days begin at 05:00, 05:00 and 04:00: the second one has 23 hours.
SIZES = {
    DAYS[0]: [("ATL", 1, 2), ("BOS", 1, 4)],
    DAYS[1]: [("ATL", 2, 24), ("O'Hare", 1, 32)],
    DAYS[2]: [("BOS", 1, 64)],
}


def compute(jobs: DataFrame) -> DataFrame:
    return jobs.groupBy("day", "account").agg(sf.count("*").alias("jobs"), sf.sum("size").alias("size"))


def fill(queue: SqlQueue) -> None:
    archive(
        queue, [Done({"account": account, "size": size}, at=when, state=state) for when, account, size, state in JOBS]
    )


def expected(*days: str) -> list[tuple[Any, ...]]:
    return [(date.fromisoformat(day), *row) for day in days for row in SIZES[day]]


class Run:
    """Materialise days of an asset."""

    def __init__(self, queue: SqlQueue, url: str, output: Path, instance: dg.DagsterInstance) -> None:
        self.queue, self.output, self.instance = queue, output, instance
        self.table = f"{queue.database.schema}.sizes"
        self.resource = SqlQueueResource(url=url, schema_name=queue.database.schema)

    def asset(self, function: Callable[[DataFrame], DataFrame] = compute, **changes: Any) -> dg.AssetsDefinition:
        settings: dict[str, Any] = {
            "partitions_def": PARTITIONS,
            "table": self.table,
            "output": lambda: self.output,
            "counted": "jobs",
            **changes,
        }
        return sqlqueue_archive_asset(settings.pop("reads", READS), **settings, name="sizes")(function)

    def __call__(
        self,
        first: str,
        last: str | None = None,
        *,
        asset: dg.AssetsDefinition | None = None,
        spark: bool = True,
        **config: Any,
    ) -> dg.ExecuteInProcessResult:
        chosen: dict[str, Any] = {"partition_key": first}
        if last is not None:
            tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            chosen = {"tags": tags}
        return dg.materialize(
            [asset or self.asset()],
            **chosen,
            run_config={"ops": {"sizes": {"config": config}}},
            resources={
                "sqlqueue": self.resource,
                "spark": SparkResource(session_factory=None if spark else "no.such:session"),
            },
            instance=self.instance,
            raise_on_error=False,
        )

    def in_table(self) -> list[tuple[Any, ...]]:
        return rows(self.queue, "SELECT day, account, jobs, size FROM {s}.sizes ORDER BY day, account")

    def in_files(self) -> list[tuple[Any, ...]]:
        found = []
        for file in self.output.glob("day=*/*.parquet"):
            day = date.fromisoformat(file.parent.name.removeprefix("day="))
            found += [
                (day, row["account"], row["jobs"], row["size"]) for row in pq.ParquetFile(file).read().to_pylist()
            ]
        return sorted(found)


@pytest.fixture
def run(queue: SqlQueue, url: str, output: Path, tmp_path: Path) -> Iterator[Run]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Run(queue, url, output, instance)


def shown(done: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    events = done.asset_materializations_for_node("sizes")
    return {str(one.partition): {name: value.value for name, value in one.metadata.items()} for one in events}


def checks(done: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {one.check_name: one.passed for one in done.get_asset_check_evaluations()}


def reason(done: dg.ExecuteInProcessResult) -> str:
    assert not done.success
    (failed,) = done.get_step_failure_events()
    data = failed.step_failure_data.user_failure_data
    assert data is not None, failed.step_failure_data.error
    return data.description or ""


def test_days_by_the_clocks_of_a_zone_are_read_and_nothing_is_claimed(
    queue: SqlQueue, session: SparkSession, run: Run, spec: QueueSpec[Any]
) -> None:
    fill(queue)
    before = rows(queue, "SELECT id, state, lease_no, finished_at FROM {s}.job_archive ORDER BY id")
    done = run(DAYS[0], DAYS[2])
    assert done.success
    assert run.in_table() == run.in_files() == expected(*DAYS)
    assert rows(queue, "SELECT id, state, lease_no, finished_at FROM {s}.job_archive ORDER BY id") == before
    assert rows(queue, "SELECT FROM {s}.batch") == []
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}
    days = shown(done)
    assert [days[day]["jobs_read"] for day in DAYS] == [2, 3, 1]
    assert [days[day]["jobs_failed"] for day in DAYS] == [1, 0, 0]
    assert [days[day]["dagster/partition_row_count"] for day in DAYS] == [2, 2, 1]
    assert "23:00 " + "█" * 30 in days[DAYS[0]]["per_hour"]
    assert not list(run.output.glob(".staging/*"))


STAGING = """
import sys
from pathlib import Path
from dagster_sqlqueue.spark import outputs
output, told = map(Path, sys.argv[1:])
def write(staged):
    (staged / "day=2013-01-01").mkdir()
    told.touch()
    sys.stdin.read()
with outputs.own_name(output, "sizes", told.name) as name:
    outputs.staged_files(output, name, write)
"""


def test_what_a_killed_run_left_staged_goes_and_what_another_run_stages_stays(
    queue: SqlQueue, session: SparkSession, run: Run, tmp_path: Path
) -> None:
    fill(queue)

    def staging(name: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", STAGING, str(run.output), str(tmp_path / name)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        until((tmp_path / name).exists, "the staging")
        return process

    with staging("killed") as killed, staging("alive") as alive:
        killed.kill()
        killed.wait(PATIENCE)
        assert run(DAYS[1]).success
        assert {path.name for path in run.output.glob(".staging/*")} == {"sizes-alive", "sizes-alive.lock"}
        alive.kill()
    assert run.in_files() == expected(DAYS[1])


def test_a_day_again_is_a_no_op_until_something_changed_in_it(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    fill(queue)
    first = run(DAYS[1])
    again = run(DAYS[1], spark=False)
    assert again.success
    assert shown(again)[DAYS[1]]["unchanged"]
    assert [shown(one)[DAYS[1]]["sqlqueue/contents"] for one in (first, again)] == [
        (made.tags or {})["dagster/data_version"]
        for one in (first, again)
        for made in one.asset_materializations_for_node("sizes")
    ]
    archive(queue, [Done({"account": "ATL", "size": 100}, at=at(10, 12))])
    assert "session_factory" in reason(run(DAYS[1], spark=False))
    assert not shown(run(DAYS[1]))[DAYS[1]]["unchanged"]
    assert (
        run.in_table()
        == run.in_files()
        == [
            (date(2013, 3, 10), "ATL", 3, 124),
            (date(2013, 3, 10), "O'Hare", 1, 32),
        ]
    )
    # Another version of the code computes every day again.
    assert "session_factory" in reason(run(DAYS[1], asset=run.asset(code_version="2"), spark=False))


def test_only_a_table_or_only_files(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    fill(queue)
    done = run(DAYS[0], asset=run.asset(table=None))
    assert done.success
    assert run.in_files() == expected(DAYS[0])
    assert rows(queue, "SELECT to_regclass(%s)", run.table) == [(None,)]
    assert run(DAYS[0], asset=run.asset(table=None), spark=False).success
    done = run(DAYS[1], asset=run.asset(output=None))
    assert done.success
    assert run.in_table() == expected(DAYS[1])
    assert run.in_files() == expected(DAYS[0])
    assert "parquet" not in shown(done)[DAYS[1]]
    again = run(DAYS[1], asset=run.asset(output=None), spark=False)
    assert shown(again)[DAYS[1]]["unchanged"]
    assert checks(again) == {"rows_in_rows_out": True, "no_account_missing": True}
    rows(queue, "DELETE FROM {s}.sizes WHERE account = 'ATL'")
    again = run(DAYS[1], asset=run.asset(output=None), spark=False)
    assert checks(again) == {"rows_in_rows_out": False, "no_account_missing": False}
    assert run.asset(output=None).get_asset_spec(dg.AssetKey("sizes")).kinds == {"spark", "postgres"}


def test_an_account_that_the_function_makes_up_is_not_looked_for_in_the_archive(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    fill(queue)
    reads = ArchiveRead(
        "work", columns={"who": READS.columns["account"], "size": READS.columns["size"]}, states=READS.states
    )
    asset = run.asset(
        lambda jobs: compute(jobs.withColumnRenamed("who", "account")), reads=reads, key=("day", "account")
    )
    assert {check.name for check in asset.check_specs} == {"rows_in_rows_out"}
    done = run(DAYS[0], asset=asset)
    assert checks(done) == {"rows_in_rows_out": True}
    assert run.in_table() == run.in_files() == expected(DAYS[0])


@pytest.mark.prove
def test_more_rows_than_the_driver_should_hold_are_written_by_the_tasks(
    queue: SqlQueue, session: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(queue)
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 1)
    both = run(DAYS[0], DAYS[1])
    assert run.in_table() == run.in_files() == expected(*DAYS[:2])
    assert checks(both) == {"rows_in_rows_out": True, "no_account_missing": True}
    stages = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'sqlqueue_stage%%'"
    assert rows(queue, stages, queue.database.schema) == [(0,)]
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 3)
    done = run(DAYS[0], DAYS[2], asset=run.asset(table=None))
    assert done.success
    assert run.in_files() == expected(*DAYS)
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}
    assert [shown(done)[day]["dagster/partition_row_count"] for day in DAYS] == [2, 2, 1]


def test_days_with_more_rows_than_one_transaction_should_have_are_replaced_by_several(
    queue: SqlQueue, session: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(queue)
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 3)
    done = run(DAYS[0], DAYS[2])
    assert run.in_table() == run.in_files() == expected(*DAYS)
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}


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


def test_days_of_which_the_jobs_were_removed_are_left_as_they_are(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    fill(queue)
    assert run(DAYS[0]).success
    rows(queue, "UPDATE {s}.queue SET retention_days = 30 WHERE name = 'work'")
    rows(queue, "DELETE FROM {s}.job_archive WHERE payload->>'account' = 'BOS'")
    said = reason(run(DAYS[0], spark=False))
    assert (
        "of 2013-03-09 the archive of 'work' holds 1 jobs, and held 2 when it was computed, the first finished at"
        " 2013-03-09"
    ) in said
    assert "they are kept for 30 days, and some were removed" in said
    assert run.in_table() == run.in_files() == expected(DAYS[0])
    assert run(DAYS[0], recompute=True).success
    assert run.in_table() == run.in_files() == expected(DAYS[0])[:1]


def test_nor_are_days_of_a_field_replaced_by_what_retention_left_and_what_finished_since(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    asset = run.asset(
        reads=ArchiveRead("work", columns={**READS.columns, "day": {"path": "payload.day", "type": "date"}})
    )
    late = datetime.now(UTC) - timedelta(days=3)
    first, second, third = ({"account": "ATL", "size": size, "day": DAYS[0]} for size in (1, 2, 4))
    rows(queue, "UPDATE {s}.queue SET retention_days = 30 WHERE name = 'work'")
    archive(queue, [Done(first), Done(second, at=late), Done({**first, "day": DAYS[1]}, at=late)])
    assert run(DAYS[0], DAYS[1], asset=asset).success
    assert run.in_table() == [(date(2013, 3, 9), "ATL", 2, 3), (date(2013, 3, 10), "ATL", 1, 1)]
    # As many as before: by their number alone it would go unnoticed.
    rows(queue, "DELETE FROM {s}.job_archive WHERE finished_at < %s", late)
    archive(queue, [Done(third, at=late + timedelta(days=1))])
    assert "holds 2 jobs, and held 2 when it was computed, the first finished at" in reason(
        run(DAYS[0], asset=asset, spark=False)
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
    assert "it must give a Spark DataFrame" in reason(run(DAYS[1], asset=run.asset(lambda jobs: None)))  # type: ignore[arg-type,return-value]
    blocked = run.output.parent / "a file"
    blocked.touch()
    assert "results cannot be written to" in reason(run(DAYS[1], asset=run.asset(output=lambda: blocked), spark=False))


def days(start: str = DAYS[0], **settings: Any) -> dg.DailyPartitionsDefinition:
    return dg.DailyPartitionsDefinition(start_date=start, timezone=ZONE, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": None, "output": None}, "the archive of 'work' has nowhere to go: give a table, an output, or both"),
        ({"table": "a.b.c"}, "table 'a.b.c' is not usable"),
        ({"key": ("account",)}, r"key is \['account'\]; its first column must be 'day'"),
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


def test_it_comes_from_its_queue(tmp_path: Path) -> None:
    asset = sqlqueue_archive_asset(READS, partitions_def=PARTITIONS, output=lambda: tmp_path, name="sizes")(compute)
    assert set(asset.asset_deps[dg.AssetKey("sizes")]) == {queue_asset_key("work")}
    assert {check.name for check in asset.check_specs} == {"rows_in_rows_out", "no_account_missing"}
