"""Assets of closed days of the archive: what is read, and what is replaced."""

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration import queue_asset_key
from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset
from dagster_sqlqueue.spark.daily import ArchiveRead
from tests.gate.patience import PATIENCE
from tests.spark.archive_support import DAYS, PARTITIONS, READS, Run, at, checks, compute, expected, fill, reason
from tests.spark.asset_support import shown
from tests.spark.support import Done, archive
from tests.support import rows, until

SHARES_A_SCHEMA = True


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
output, ready = map(Path, sys.argv[1:])
def write(staged):
    (staged / "day=2013-01-01").mkdir()
    ready.touch()
    sys.stdin.read()
with outputs.own_name(output, "sizes", ready.name) as name:
    outputs.staged_files(output, name, write)
"""


@pytest.mark.prove
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


def test_jobs_without_an_account_and_of_an_empty_one_are_counted_and_in_no_check_of_accounts(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    named = [{"account": "ATL"}, {"account": ""}, {"account": ""}, {}, {}, {}]
    archive(queue, [Done({"size": 1, **payload}, at=at(9, 5 + hour)) for hour, payload in enumerate(named)])
    asset = run.asset(lambda jobs: compute(jobs.where("account <> ''")), counted=None)
    done = run(DAYS[0], asset=asset)
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}
    assert run.in_table() == run.in_files() == [(date(2013, 3, 9), "ATL", 1, 1)]
    for payload in ({"account": ""}, {}):
        assert shown(run(DAYS[0], asset=asset, spark=False))[DAYS[0]]["unchanged"]
        archive(queue, [Done({"size": 1, **payload}, at=at(9, 5))])
        assert not shown(run(DAYS[0], asset=asset))[DAYS[0]]["unchanged"]


def test_a_table_whose_days_are_moments_is_read_by_a_role_that_writes_dates_otherwise(
    queue: SqlQueue, session: SparkSession, url: str, output: Path, instance: dg.DagsterInstance
) -> None:
    fill(queue)
    rows(queue, "CREATE TABLE {s}.sizes (day timestamp, account text, jobs bigint, size bigint)")
    german = make_url(url).update_query_dict({"options": "-c datestyle=German"}).render_as_string(hide_password=False)
    run = Run(queue, german, output, instance)
    done = run(DAYS[1])
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}
    assert shown(run(DAYS[1], spark=False))[DAYS[1]]["unchanged"]
    assert [(at.date(), *row) for at, *row in run.in_table()] == run.in_files() == expected(DAYS[1])


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


@pytest.mark.prove
def test_days_with_more_rows_than_one_transaction_should_have_are_replaced_by_several(
    queue: SqlQueue, session: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(queue)
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 3)
    done = run(DAYS[0], DAYS[2])
    assert run.in_table() == run.in_files() == expected(*DAYS)
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}


def test_it_comes_from_its_queue(tmp_path: Path) -> None:
    asset = sqlqueue_archive_asset(READS, partitions_def=PARTITIONS, output=lambda: tmp_path, name="sizes")(compute)
    assert set(asset.asset_deps[dg.AssetKey("sizes")]) == {queue_asset_key("work")}
    assert {check.name for check in asset.check_specs} == {"rows_in_rows_out", "no_account_missing"}
