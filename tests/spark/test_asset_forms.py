"""The daily asset that writes a table, files, or both: what it says of itself, finds unchanged, and checks."""

import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.assets import sqlqueue_daily_asset
from dagster_sqlqueue.spark.daily import ArchiveRead
from tests.gate.patience import PATIENCE
from tests.spark.asset_support import NOBODYS, PARTITIONS, Run, checks, daily_asset, not_passed, shown, versions
from tests.spark.daily_support import (
    DAILY,
    DAYS,
    READS,
    add,
    compute,
    endings,
    expected,
    in_files,
    in_table,
    once,
    prepare,
    table,
)
from tests.support import rows
from tests.support.few import few

SHARES_A_SCHEMA = True

FORMS: dict[str, dict[str, Any]] = {"both": {}, "table": {"output": None}, "files": {"table": None}}
ONE = [name if name == "both" else pytest.param(name, marks=pytest.mark.prove) for name in FORMS]
CHECKS = ("rows_in_rows_out", "no_account_missing", "nothing_queued_past_deadline", "no_event_open", "no_event_late")

Make = Callable[..., Run]


@pytest.fixture
def make(queue: SqlQueue, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance) -> Make:
    """Runs of the asset with some settings."""

    def made(**changes: Any) -> Run:
        return Run(daily_asset(queue, output, **changes), resources, instance)

    return made


def lose(form: str, queue: SqlQueue, output: Path) -> None:
    """Lose a day's rows, though not the day."""
    if form != "files":
        rows(queue, "DELETE FROM {s}.results WHERE day = %s", date.fromisoformat(DAYS[0]))
    if form != "table":
        (output / f"day={DAYS[0]}" / "part-0.parquet").unlink()


@pytest.mark.parametrize("form", FORMS)
def test_it_says_what_it_writes(queue: SqlQueue, output: Path, form: str) -> None:
    asset = daily_asset(queue, output, **FORMS[form])
    spec = asset.get_asset_spec(dg.AssetKey("sizes"))
    kinds = {"both": {"postgres", "parquet"}, "table": {"postgres"}, "files": {"parquet"}}
    assert spec.kinds == {"spark", *kinds[form]}
    assert spec.metadata.get("dagster/table_name") == (None if form == "files" else table(queue))
    where = {"both": "the table and the Parquet files", "table": "the table", "files": "the Parquet files"}[form]
    said = {check.name: check.description for check in asset.check_specs}
    assert set(said) == set(CHECKS)
    assert said["rows_in_rows_out"] == (
        f"As many rows of a day as were computed are in {where}. The sum of `events` is the number of archived jobs that"
        " belong to the day."
    )
    assert str(said["no_account_missing"]).endswith(
        f"has a row in {where}. Every account that has archived jobs of a day has a job of that day; if not, it is a"
        " warning."
    )


@pytest.mark.parametrize("form", few(["files", "both", "table"], 1))
def test_days_are_written_where_they_are_to_go_and_are_a_no_op_the_second_time(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make, form: str
) -> None:
    prepare(queue)
    run = make(**FORMS[form])
    done = run(DAYS[0], DAYS[-1])
    assert done.success
    assert in_table(queue) == ([] if form == "files" else expected(DAYS))
    assert in_files(output) == ([] if form == "table" else expected(DAYS))
    assert output.exists() == (form != "table")
    assert endings(queue) == once()
    days = shown(done)
    assert [days[day]["dagster/partition_row_count"] for day in DAYS] == [3, 2, 3]
    assert {day.get("parquet") for day in days.values()} == {None if form == "table" else str(output)}
    assert checks(done) == {
        "rows_in_rows_out": (True, "16 archived jobs of 3 days are in the results."),
        "no_account_missing": (
            False,
            f"3 wrong; the first: {DAYS[0]}: nobody's has 4 archived jobs of it and no daily job, and is not in the"
            " results.",
        ),
        "nothing_queued_past_deadline": (True, "0 jobs are on the queue, none past its deadline."),
        "no_event_late": (True, "3 days are computed from what is archived."),
        "no_event_open": (True, "0 events are open, none of an account that is done with its day or due."),
    }
    again = run.without_spark()(DAYS[0], DAYS[-1])
    assert again.success
    for day in DAYS:
        assert {**shown(again)[day], "unchanged": False, "days_computed": "3 of 3"} == days[day]
    assert checks(again) == checks(done)
    one = run(DAYS[0], recompute=True)
    assert versions(one) == versions(run.without_spark()(DAYS[0])) == [days[DAYS[0]]["sqlqueue/contents"]]


@pytest.mark.prove
@pytest.mark.parametrize("form", ONE)
def test_an_output_that_is_gone_or_another_one_has_the_day_computed_again(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make, form: str
) -> None:
    prepare(queue)
    run = make(**FORMS[form])
    assert run(DAYS[0]).success
    for other in FORMS.keys() - {form}:
        assert not make(**FORMS[other]).without_spark()(DAYS[0]).success
    if form == "table":
        rows(queue, "DROP TABLE {s}.results")
    else:
        shutil.rmtree(output / f"day={DAYS[0]}")
    assert not run.without_spark()(DAYS[0]).success
    assert run(DAYS[0]).success
    assert in_table(queue) == ([] if form == "files" else expected(DAYS[:1]))
    assert in_files(output) == ([] if form == "table" else expected(DAYS[:1]))


@pytest.mark.parametrize("form", ONE)
@pytest.mark.prove
@pytest.mark.parametrize("counted", ["events", None])
def test_a_check_finds_what_was_lost(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make, form: str, counted: str | None
) -> None:
    prepare(queue)
    run = make(**FORMS[form], counted=counted)
    well = "6 archived jobs" if counted else "3 rows"
    assert checks(run(DAYS[0]))["rows_in_rows_out"] == (True, f"{well} of 1 days are in the results.")
    lose(form, queue, output)
    found = checks(run.without_spark()(DAYS[0]))
    where = {"both": ["table", "Parquet files"], "table": ["table"], "files": ["Parquet files"]}[form]
    there = ", ".join(f"0 in the {name}" for name in where)
    wrong = 1 + (len(where) if counted else 0)
    assert found["rows_in_rows_out"] == (
        False,
        f"{wrong} wrong; the first: {DAYS[0]}: 3 rows were computed; there are {there}.",
    )
    first = f"{DAYS[0]}: ATL is not in the {where[0]}."
    assert found["no_account_missing"] == (False, f"{3 * len(where) + 1} wrong; the first: {first}")
    assert found["nothing_queued_past_deadline"][0]


@pytest.mark.prove
def test_more_rows_than_the_driver_should_hold_are_written_by_the_tasks_where_there_is_no_table(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 2)
    run = make(**FORMS["files"])
    done = run(DAYS[0], DAYS[-1])
    assert done.success
    assert in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert [shown(done)[day]["dagster/partition_row_count"] for day in DAYS] == [3, 2, 3]
    assert not_passed(done) == NOBODYS
    assert not list(output.glob(".staging/*"))
    assert run.without_spark()(DAYS[0], DAYS[-1]).success


@pytest.mark.prove
def test_days_with_more_accounts_than_one_transaction_should_have_rows_are_published_by_several(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 6)
    done = make(**FORMS["both"])(DAYS[0], DAYS[-1])
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert [shown(done)[day]["dagster/partition_row_count"] for day in DAYS] == [3, 2, 3]
    assert not_passed(done) == NOBODYS
    # The first two days, and the third.
    outputs = rows(queue, "SELECT DISTINCT output ->> 'owner' FROM {s}.batch WHERE state = 'published'")
    assert len(outputs) == 2


@pytest.mark.prove
@pytest.mark.own_schema
@pytest.mark.timeout(10 * PATIENCE)
def test_a_year_of_275_accounts_is_published_by_several_transactions(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make
) -> None:
    """More rows than one transaction publishes, of one event each: every day is as a whole in one of them."""
    days = [(date(2013, 1, 1) + timedelta(days=n)).isoformat() for n in range(365)]
    accounts = [f"a{n:03}" for n in range(275)]
    assert len(days) * len(accounts) > sinks.MAX_ROWS
    queue.create_queue(DAILY)
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), 'work', n % 4, 5, 'succeeded', 1, 1, 3, d, d, d, d + interval '1 hour', 'local', '{{}}',"
        " jsonb_build_object('day', CAST(d AS date), 'account', to_char(n, '\"a\"FM000'), 'size', n)"
        " FROM generate_series(timestamptz '2013-01-01 UTC', '2013-12-31 UTC', '1 day') AS d,"
        " generate_series(0, 274) AS n",
    )
    add(queue, days, accounts)
    year = dg.DailyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")
    done = make(**FORMS["table"], partitions_def=year)(days[0], days[-1])
    assert done.success
    assert not_passed(done) == {}
    published = rows(
        queue,
        "SELECT count(*), count(DISTINCT day), min(day), max(day) FROM {s}.results GROUP BY xmin::text ORDER BY 3",
    )
    assert published == [
        (363 * 275, 363, date(2013, 1, 1), date(2013, 12, 29)),
        (2 * 275, 2, date(2013, 12, 30), date(2013, 12, 31)),
    ]
    sums = "SELECT sum(events), sum(size), count(DISTINCT account) FROM {s}.results"
    assert rows(queue, sums) == [(365 * 275, 365 * 274 * 275 // 2, 275)]
    ended = (
        "SELECT state, attempt, count(*), count(DISTINCT id) FROM {s}.job_archive WHERE queue = 'daily' GROUP BY 1, 2"
    )
    assert rows(queue, ended) == [("succeeded", 1, 365 * 275, 365 * 275)]


@pytest.mark.prove
def test_of_results_that_only_tasks_write_the_columns_and_days_are_looked_at(
    queue: SqlQueue, session: SparkSession, output: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)
    monkeypatch.setattr("dagster_sqlqueue.spark.sinks.MAX_ROWS", 3)
    for bad, said in (
        (lambda events: compute(events).drop("account"), "the result has no column 'account'"),
        (lambda events: compute(events).withColumn("day", sf.date_add("day", 7)), "that day was not asked for"),
    ):
        asset = sqlqueue_daily_asset(DAILY, reads=READS, partitions_def=PARTITIONS, output=lambda: output, name="sizes")
        done = Run(asset(bad), make().resources, make().instance)(DAYS[0], DAYS[-1])
        (failure,) = [event.step_failure_data for event in done.get_step_failure_events()]
        assert said in (failure.user_failure_data.description or "")
    assert endings(queue) == in_files(output) == []
    assert not list(output.glob(".staging/*"))


def without(name: str) -> ArchiveRead:
    return ArchiveRead("work", {one: column for one, column in READS.columns.items() if one != name})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"table": None, "output": None},
            "the daily asset of 'daily' has nowhere to go: give a table, an output, or both",
        ),
        ({"table": "a.b.c"}, "table 'a.b.c' is not usable"),
        (
            {"partitions_def": dg.DailyPartitionsDefinition(DAYS[0], hour_offset=6)},
            "has hour_offset=6, .* leave it out",
        ),
        (
            {"partitions_def": dg.DailyPartitionsDefinition("1/1/13", fmt="%d/%m/%y")},
            "has fmt='%d/%m/%y', .* ISO dates",
        ),
        (
            {"reads": without("day")},
            r"\['account', 'size'\], and not 'day', .* as {'day': {'path': 'payload.day', 'type'",
        ),
        ({"reads": without("account")}, r"\['day', 'size'\], and not 'account', .*ArchiveRead\(columns=…\)"),
    ],
)
def test_settings_that_are_not_usable_are_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = {"reads": READS, "partitions_def": PARTITIONS, "table": "t", "output": lambda: tmp_path, **settings}
    with pytest.raises(InvalidInput, match=said):
        sqlqueue_daily_asset(DAILY, **given)
